"""Every notebook runs from top to bottom and prints what is checked in."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))

# A process of its own: the warnings of Jupyter's parts are not ours.
RUN = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], 4)
NotebookClient(book, timeout=120, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(book, sys.argv[2] + "/done.ipynb")
"""


def printed(path: Path) -> list[str]:
    """What each cell prints."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        texts = [
            output.get("data", {}).get("text/plain", output.get("text", ""))
            for output in cell.get("outputs", [])
        ]
        found.append("".join("".join(text) for text in texts))
    return found


def test_the_four_notebooks_are_here() -> None:
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04"]


@pytest.mark.parametrize("name", NAMES)
def test_it_prints_what_is_checked_in(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, FOLDER / name, tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert printed(tmp_path / "done.ipynb") == printed(FOLDER / name)
    assert (FOLDER / name).stat().st_size < 20_000
