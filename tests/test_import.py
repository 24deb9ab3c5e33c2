"""What importing the package costs, and which names it takes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import mlsysim_sweep as ms

HEAVY = (
    *("dask", "duckdb", "hypothesis", "matplotlib", "mlsysim", "numba", "pandas", "pint"),
    *("pint_xarray", "plotly", "polars", "pyarrow", "rich", "scipy", "typer", "xarray", "yaml"),
)


ASK = "import mlsysim_sweep as ms; ms.Sweep.load('gpt3-1k-h100')"


def loaded_by(statements: str, folder: Path) -> set[str]:
    """Top-level modules that a fresh interpreter holds after some statements."""
    code = f"{statements}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-P", "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    assert loaded_by("import mlsysim_sweep", tmp_path).isdisjoint({*HEAVY, "numpy"})


def test_asking_and_answering_load_only_numpy(tmp_path: Path) -> None:
    loaded = loaded_by(f"{ASK}.variant(axes={{'tp': [8]}}).plan()", tmp_path)
    assert "numpy" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_a_table_needs_neither_xarray_nor_pint(tmp_path: Path) -> None:
    loaded = loaded_by(f"{ASK}.variant(inputs={{'dp': 32}}).arrow()", tmp_path)
    assert loaded.isdisjoint({"dask", "matplotlib", "mlsysim", "pint", "xarray"})


@pytest.mark.parametrize("name", ms.__all__)
def test_public_names(name: str) -> None:
    assert getattr(ms, name).__module__.startswith("mlsysim_sweep.") or name in (
        "Floats",
        "Ints",
        "Scenarios",
    )
    assert name in dir(ms)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match=r"^module 'mlsysim_sweep' has no attribute 'Swep'$"):
        ms.Swep  # noqa: B018
    with pytest.raises(ImportError):
        from mlsysim_sweep import Swep  # noqa: F401


@pytest.mark.parametrize("name", ["kernels", "grids"])
def test_the_links_at_the_root_are_no_modules(name: str, tmp_path: Path) -> None:
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    command = [sys.executable, "-c", f"import mlsysim_sweep; {code}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "mlsysim" not in done.stdout
    importlib.import_module(f"mlsysim_sweep.{name}")
