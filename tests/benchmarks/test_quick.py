"""Each benchmark runs, small: what it measures is judged by `make bench` alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
FIGURES = {
    "bench_constraints": 7,
    "bench_evaluate": 4,
    "bench_import": 3,
    "bench_pareto": 12,
    "bench_parquet": 27,
    "bench_scale": 8,
}
LINE = re.compile(
    r".+ +[\d,.]+(e-?\d+)? x +(higher|lower) is better +"
    r"(no target|target [<>]= [\d,.]+ x, not judged: quick)(  \(.+\))?"
)


def test_every_benchmark_is_here() -> None:
    assert sorted(path.stem for path in FOLDER.glob("bench_*.py")) == sorted(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_quick_run_prints_its_figures(name: str) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", "--quick"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == FIGURES[name]
    for line in lines:
        assert LINE.fullmatch(line), line


def test_an_unknown_argument_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "bench_constraints.py", "--fast"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "unknown argument '--fast'; only --quick is understood\n"
