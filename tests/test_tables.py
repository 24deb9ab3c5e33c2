"""Rows on their way out: nothing is a formula, an escape sequence or invalid JSON."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep import tables

TEXTS = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "H100", "a=b"]


def test_text_that_a_spreadsheet_would_compute_is_quoted():
    """Fault 50: and numbers are left alone."""
    frame = pd.DataFrame({"name": TEXTS, "x": np.arange(len(TEXTS)) - 1.0})
    with io.StringIO(tables.csv_text(frame), newline="") as text:
        _, *lines = csv.reader(text)
    assert [name for name, _ in lines] == [f"'{t}" for t in TEXTS[:6]] + TEXTS[6:]
    assert lines[0][1] == "-1.0"
    assert tables.csv_text(frame[:4]).splitlines()[1] == "'=1+1,-1.0"
    assert tables.csv_text(frame[:4], raw=True).splitlines()[1] == "=1+1,-1.0"
    assert tables.csv_text(pd.DataFrame({"=x": [1]})).startswith("'=x\n")


def test_json_is_strict_whatever_the_numbers():
    """Fault 52: what is not finite is null."""
    frame = pd.DataFrame({"x": [1.5, np.nan, np.inf, -np.inf], "n": [1, 2, 3, 4]})
    text = json.dumps(tables.records(frame), allow_nan=False)
    assert [row["x"] for row in json.loads(text)] == [1.5, None, None, None]
    assert [type(row["n"]) for row in tables.records(frame)] == [int] * 4
    nullable = pd.DataFrame({"n": pd.array([1, None], "Int64"), "c": pd.Categorical(["a", None])})
    assert tables.records(nullable) == [{"n": 1, "c": "a"}, {"n": None, "c": None}]


def test_control_characters_are_shown_escaped():
    """Fault 51."""
    frame = pd.DataFrame({"name": ["a\x1b[2Jb\nc"]})
    assert tables.shown_cells(frame, ["name"]) == [["a\\u001b[2Jb\\u000ac"]]


def test_numbers_come_back_from_csv_and_parquet(tmp_path):
    frame = ms.Sweep.load("gpt3-1k-h100").top(7, by="step_time")
    tables.save(frame, tmp_path / "x.csv", overwrite=False)
    tables.save(frame, tmp_path / "x.parquet", overwrite=False)
    with (tmp_path / "x.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["step_time [s]"]) for line in lines] == frame["step_time"].tolist()
    again = ms.top(tmp_path / "x.parquet", 7, by="step_time")
    pd.testing.assert_frame_equal(again, frame)
    assert again.attrs == frame.attrs
    assert pq.read_metadata(tmp_path / "x.parquet").num_rows == 7


def test_what_exists_is_not_replaced_unasked(tmp_path):
    frame = pd.DataFrame({"x": [1]})
    tables.save(frame, tmp_path / "x.csv", overwrite=False)
    with pytest.raises(ms.OutputError, match="exists"):
        tables.save(frame + 1, tmp_path / "x.csv", overwrite=False)
    assert (tmp_path / "x.csv").read_text() == "x\n1\n"
    tables.save(frame + 1, tmp_path / "x.csv", overwrite=True)
    assert (tmp_path / "x.csv").read_text() == "x\n2\n"
    with pytest.raises(ms.Mistake, match=r"ends in \.parquet or \.csv"):
        tables.save(frame, tmp_path / "x.xlsx", overwrite=False)
