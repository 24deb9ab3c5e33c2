"""The generated pages say what the code says; `make docs` writes them anew."""

import subprocess
import sys
from pathlib import Path

import pytest

from mlsysim_sweep.catalog import FACTS, bundled_table
from mlsysim_sweep.kernels import MODELS, model
from mlsysim_sweep.vocabulary import VOCABULARY

ROOT = Path(__file__).parents[2]


def reference(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", ROOT / "scripts" / "reference.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_pages_are_up_to_date() -> None:
    done = reference("--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_named(tmp_path: Path) -> None:
    reference("--folder", tmp_path)
    page = tmp_path / "quantities.md"
    page.write_text(page.read_text(encoding="utf-8").replace("| s |", "| h |"), encoding="utf-8")
    (tmp_path / "spec.md").unlink()

    done = reference("--check", "--folder", tmp_path)

    assert done.returncode == 1
    stale = [line.split()[0] for line in done.stderr.splitlines()]
    assert stale == ["quantities.md", "spec.md"]
    assert not (tmp_path / "spec.md").exists()
    assert reference("--folder", tmp_path).stdout == "wrote quantities.md\nwrote spec.md\n"
    assert reference("--check", "--folder", tmp_path).returncode == 0


@pytest.mark.parametrize("name", MODELS)
def test_every_quantity_and_input_has_a_row(name: str) -> None:
    page = (ROOT / "docs" / "quantities.md").read_text(encoding="utf-8")
    for quantity in (*model(name).outputs, *VOCABULARY):
        assert f"\n| `{quantity}` | " in page


@pytest.mark.parametrize("table", FACTS)
def test_every_catalog_row_is_listed_with_its_sources(table: str) -> None:
    page = (ROOT / "docs" / "catalog.md").read_text(encoding="utf-8")
    for name, row in bundled_table(table).items():
        assert f"\n| `{name}` | " in page and f"\n- `{name}`:" in page
        assert all(f"]({source['url']})" in page for source in row.remarks["sources"])
