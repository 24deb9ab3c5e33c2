"""The sweep as people hold it: what it says of itself, one layout in full, and saving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.declare import Ints, output
from tests.asking import sweep

FREE = {"memory": "off", "tp_within_node": False}
AXES: dict[str, Any] = {"tp": [1, 2, 4, 8], "dp": [8, 16, 32], "microbatches": [1, 32]}


@pytest.fixture(scope="module")
def asked() -> ms.Sweep:
    return sweep(axes=AXES, feasible={"devices": {"max": 512}, "where": "step_time < 20 s"})


def test_it_says_what_it_is(asked: ms.Sweep) -> None:
    assert repr(asked) == "Sweep('sweep': 24 points = tp 4 x dp 3 x microbatches 2)"
    assert repr(sweep()) == "Sweep('sweep': 1 points)"
    assert (asked.name, asked.points, asked.sizes) == (
        "sweep",
        24,
        {"tp": 4, "dp": 3, "microbatches": 2},
    )
    assert asked.columns[:3] == ("tp", "dp", "microbatches")
    for plain in (asked.spec, asked.plan(), asked.funnel().as_dict()):
        json.dumps(plain, allow_nan=False)


@pytest.mark.parametrize("name", ["spec", "name", "grid", "points", "sizes", "columns", "notes"])
def test_it_cannot_be_changed(asked: ms.Sweep, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(asked, name, None)
    asked.spec["inputs"]["tp"] = 5
    assert "tp" not in asked.spec["inputs"]


def test_only_keywords_are_taken() -> None:
    with pytest.raises(TypeError):
        ms.Sweep({"tp": 8})  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match=r"axis"):
        ms.Sweep(axis={})  # type: ignore[call-arg]


def test_every_way_out_gives_the_same_rows(asked: ms.Sweep, tmp_path: Path) -> None:
    saved = asked.to_parquet(tmp_path / "out.parquet")
    frame = asked.table()
    pd.testing.assert_frame_equal(frame, pq.read_table(tmp_path / "out.parquet").to_pandas())
    assert saved.rows == len(frame) == asked.funnel().feasible == asked.arrow().num_rows
    ds = asked.dataset()
    stacked = ds["step_time"].where(ds["feasible"]).to_series().dropna()
    assert stacked.tolist() == frame["step_time"].tolist()
    for row in frame.to_dict("records"):
        layout = asked.point(**{name: row[name] for name in AXES})
        assert layout.feasible
        assert {name: layout.quantities[name] for name in asked.columns[3:]} == {
            name: row[name] for name in asked.columns[3:]
        }


def test_the_funnel_of_a_run_is_that_of_explain(asked: ms.Sweep, tmp_path: Path) -> None:
    saved, full = asked.to_parquet(tmp_path / "out.parquet").funnel, asked.funnel()
    brief = [(row.rule, row.text, row.axes, row.rejected, row.left) for row in saved.rows]
    assert brief == [(row.rule, row.text, row.axes, row.rejected, row.left) for row in full.rows]
    assert saved.points == full.points == sum(row.rejected for row in full.rows) + full.feasible
    assert saved.rows[0].rejects is None and full.rows[0].rejects is not None
    assert str(saved).splitlines()[0].split() == ["all", "points", "24"]


def test_the_best_few(asked: ms.Sweep, tmp_path: Path) -> None:
    frame = asked.table().sort_values("step_time", kind="stable")
    for best in (0, 1, 5, 100):
        saved = asked.to_parquet(tmp_path / f"{best}.parquet", best=best)
        assert saved.ranked_by == "step_time"
        assert list(saved.best) == frame.head(best).to_dict("records")
    assert asked.to_parquet(tmp_path / "none.parquet", best=-1).best == ()
    assert all(type(value) in (int, float, str) for row in saved.best for value in row.values())


def test_progress_counts_every_point(asked: ms.Sweep, tmp_path: Path) -> None:
    seen: list[int] = []
    asked.to_parquet(tmp_path / "out.parquet", progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == asked.points


# --- one layout ----------------------------------------------------------------------------------


def test_a_layout_in_full() -> None:
    asked = sweep(
        axes={"tp": [1, 8]},
        feasible={
            "headroom": 0.5,
            "devices": {"equal": 1000},
            "where": ["step_time < 2 s", 'accelerator == "H100"', "tp in [8, 16] or pp == 1"],
        },
    )
    layout = asked.point(tp=8)
    assert layout.inputs["tp"] == 8 and layout.inputs["accelerator"] == "H100"
    assert layout.quantities["n_devices"] == 1024 and type(layout.quantities["n_devices"]) is int
    assert not layout.feasible
    found = {verdict.rule: verdict for verdict in layout.verdicts}
    assert found["tp_within_node"].holds and found["tp_within_node"].margin == 0
    memory = found["memory zero1"]
    assert (memory.holds, memory.margin, memory.unit) == (
        True,
        0.5 * 80 * 2**30 - 23925781250.0,
        "byte",
    )
    devices = found["devices equal"]
    assert (devices.holds, devices.margin) == (False, -24)
    slow = found["step_time < 2 s"]
    assert not slow.holds and slow.unit == "s"
    assert slow.margin == pytest.approx(2 - layout.quantities["step_time"], rel=1e-15)
    assert found['accelerator == "H100"'].margin is None
    assert found["tp == 8 or tp == 16 or pp == 1"].holds


def test_a_layout_off_the_grid_is_checked_like_any_other() -> None:
    asked = sweep(axes={"tp": [1, 8]})
    for wrong in ({"tp": 0}, {"tp": [1, 2]}, {"tpp": 1}, {"accelerator": "H10O", "tp": 8}):
        with pytest.raises(ms.Mistake):
            asked.point(**wrong)
    assert asked.point(tp=8, devices=2048).quantities["dp"] == 64
    assert asked.points == 2


def test_a_layout_of_a_scenario_is_the_same() -> None:
    result = ms.Scenarios.Gpt3ThreeDParallel1K.result
    window = sweep({"window_resolution": "0.1 s", "device_memory": "80 GB"}).point()
    for name in result:
        value = result[name]
        assert getattr(value, "magnitude", value) == window.quantities[name]
    assert len(result) == 20
    assert dict(result) == {name: getattr(result, name) for name in result}
    assert f"step_time = {result.step_time!r}\n" in repr(result)
    assert set(result) <= set(dir(result))


# --- what people should know ---------------------------------------------------------------------


def test_notes_say_what_the_model_leaves_out() -> None:
    assert any("traffic costs nothing" in note for note in sweep().notes)
    assert any("training state only" in note for note in sweep().notes)


def test_a_window_that_rounds_to_nothing_is_noted() -> None:
    coarse = sweep({"window_resolution": "0.1 s"}, {"dp": [32, 20000]}, feasible=FREE)
    assert any("rounds compute_time to 0" in note for note in coarse.notes)
    assert coarse.table()["efficiency"].tolist()[-1] == 0
    fine = sweep({"window_resolution": "1 ms"}, {"dp": [32]}, feasible=FREE)
    assert not any("rounds compute_time" in note for note in fine.notes)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Step_Time", "TP", "step_time", "Feasible"])
def test_columns_never_differ_only_in_case(name: str) -> None:
    def formula(tp: Ints) -> Ints:
        """Something."""
        return tp

    formula.__name__ = name
    declared = output(unit="1", source="here")(formula)
    with pytest.raises(ms.DeclarationError, match=r"declared twice"):
        sweep(formulas=[declared])


def test_a_nan_is_no_survivor() -> None:
    @output(unit="1", source="here")
    def odd(tp: Ints) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Nothing where tp is 4."""
        return np.where(tp == 4, np.nan, 1.0 * tp)

    asked = sweep(
        axes={"tp": [2, 4, 8]}, feasible={**FREE, "where": "not odd > 100"}, formulas=[odd]
    )
    assert asked.table()["tp"].tolist() == [2, 8]
    (row,) = asked.funnel().rows
    assert (row.rejects, row.left) == (1, 2)
    assert row.nearest is not None and row.nearest.layout == {"tp": 4}
    assert asked.funnel().as_dict()["rules"][0]["nearest_miss"]["shortfall"] is None
