"""The report's pictures as files."""

from pathlib import Path

import pyarrow as pa
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.report import gather
from mlsysim_sweep.report.figures import FIGURES, draw


@pytest.fixture(scope="module")
def content():
    return gather(ms.Sweep.load("gpt3-1k-h100"))


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize(("suffix", "begin"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_every_picture_is_drawn(content, tmp_path: Path, figure, suffix, begin):
    draw(content, figure, tmp_path / f"x{suffix}")
    found = (tmp_path / f"x{suffix}").read_bytes()
    assert found.startswith(begin) and len(found) > 5000


def test_names_are_no_mathematics(tmp_path):
    odd = pa.table(
        {"accelerator": ["$\\frac{$", "a_b^c"], "tp": [1, 2], "pp": [1, 2], "step_time": [1.0, 2]}
    )
    for figure in ("front", "heat", "parallel"):
        draw(gather(odd, minimize=["step_time", "tp"]), figure, tmp_path / "x.png")


def test_what_cannot_be_drawn_is_refused(content, tmp_path):
    with pytest.raises(ms.Mistake, match="one of front, heat"):
        draw(content, "pie", tmp_path / "x.png")
    with pytest.raises(ms.Mistake, match=r"ends in \.png or \.svg"):
        draw(content, "front", tmp_path / "x.pdf")
    rows = gather(pa.table({"x": [1.0, 2.0], "y": [2.0, 1.0]}), minimize=["x", "y"])
    for figure in ("heat", "funnel"):
        with pytest.raises(ms.Mistake, match="figure: "):
            draw(rows, figure, tmp_path / "x.png")
