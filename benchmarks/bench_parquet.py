"""Parquet: what the encodings of store.py are worth, and what streaming adds to writing."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from _ratio import LOWER, Report, in_turns, run, seconds

from mlsysim_sweep import Sweep, store
from mlsysim_sweep.engine import budget
from mlsysim_sweep.engine.plan import Plan

INPUTS = {
    "workload": "GPT3",
    "precision": "fp8",
    "batch_tokens": 2e6,
    "flops_per_param_token": 6,
    "local_efficiency": 0.5,
    "link_bandwidth": "400 Gbps",
    "overlap_fraction": 0.75,
}
TARGETS = {"pyarrow defaults": 0.8, "zstd alone": 0.9}
# How our settings differ from the alternatives is measured here, so they are read from the inside.
_settings = store._settings


def all_feasible(quick: bool) -> Sweep:
    """3,145,728 layouts of GPT-3, all kept."""
    return Sweep(
        inputs=INPUTS,
        axes={
            "accelerator": ["H100", "H200", "B200", "MI300X"],
            "tp": {"powers_of_two": [1, 8]},
            "pp": {"divisors_of": 96},
            "dp": {"range": [1, 8 if quick else 256]},
            "microbatches": {"range": [1, 64]},
        },
        feasible={"memory": "off", "tp_within_node": False},
    )


def alternatives(plan: Plan) -> dict[str, Mapping[str, Any]]:
    """Other settings: pyarrow's own, and ours with one thing changed."""
    ours = _settings(plan)
    found: dict[str, Mapping[str, Any]] = {
        "pyarrow defaults": {},
        "zstd alone": {"compression": "zstd", "compression_level": 3},
        "ours without byte-stream-split": {**ours, "use_byte_stream_split": False},
    }
    for power in range(10, 18):
        with mock.patch.object(store, "DICTIONARY_CELLS", 2**power):
            found[f"ours with DICTIONARY_CELLS 2**{power}"] = _settings(plan)
    for level in (1, 6):
        found[f"ours with zstd level {level}"] = {**ours, "compression_level": level}
    return found


def write_table(table: pa.Table, path: Path, settings: Mapping[str, Any]) -> None:
    pq.write_table(table, path, row_group_size=budget.ROW_GROUP_ROWS, **settings)


def main(quick: bool) -> int:
    report = Report(quick)
    sweep = all_feasible(quick)
    plan, table, rounds = Plan(sweep.grid), sweep.arrow(), 1 if quick else 3
    rows = table.num_rows
    with tempfile.TemporaryDirectory() as folder:
        ours, other = Path(folder, "ours.parquet"), Path(folder, "other.parquet")
        write = partial(write_table, table, ours, _settings(plan))
        for name, settings in alternatives(plan).items():
            rival = partial(write_table, table, other, settings)
            cost_other, cost_ours, time_ratio = in_turns(
                partial(seconds, rival), partial(seconds, write), rounds
            )
            size, size_other = ours.stat().st_size, other.stat().st_size
            report.ratio(
                f"bytes a row, ours / {name}",
                size / size_other,
                LOWER,
                TARGETS.get(name),
                f"{size / rows:.2f} / {size_other / rows:.2f}",
            )
            report.ratio(
                f"time to write, ours / {name}",
                time_ratio,
                LOWER,
                detail=f"{cost_ours:.2f} s / {cost_other:.2f} s",
            )
        streamed = partial(store.write, plan, other, overwrite=True)
        cost_table, cost_stream, ratio = in_turns(
            partial(seconds, write), partial(seconds, streamed), rounds
        )
        report.ratio(
            "evaluate, filter and write / write the finished table",
            ratio,
            LOWER,
            2,
            f"{cost_stream:.2f} s / {cost_table:.2f} s for {rows:,} rows",
        )
    return report.exit_code()


if __name__ == "__main__":
    run(main)
