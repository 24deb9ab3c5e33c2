"""Scale: what filters save on a billion points; streaming, threads, memory, Dask."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq
from _ratio import HIGHER, LOWER, Report, in_turns, run, seconds

from mlsysim_sweep import Sweep, store
from mlsysim_sweep.engine.mesh import whole
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Walk

INPUTS = {
    "workload": "GPT3",
    "accelerator": "H100",
    "batch_tokens": 2e6,
    "flops_per_param_token": 6,
    "local_efficiency": 0.5,
    "link_bandwidth": "400 Gbps",
    "overlap_fraction": 0.75,
}
ALL = {"memory": "off", "tp_within_node": False}
FIXED = {"memory": "zero1", "tp_within_node": False, "devices": {"equal": 16384}}


def grid(tp: int, pp: int, dp: int, microbatches: int, feasible: dict[str, object]) -> Sweep:
    sizes = {"tp": tp, "pp": pp, "dp": dp, "microbatches": microbatches}
    axes = {name: {"range": [1, size]} for name, size in sizes.items()}
    return Sweep(inputs=INPUTS, axes=axes, feasible=feasible)


def wall(work: object) -> float:
    start = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - start


def walked(sweep: Sweep) -> None:
    """All twenty outputs, block by block, each at its own rank in its block, written nowhere."""
    for points in Walk(Plan(sweep.grid)):
        with np.errstate(all="ignore"):
            for name in sweep.columns:
                points.box(name)


def whole_array(sweep: Sweep) -> None:
    """All twenty outputs at once, each at its own rank, as plain NumPy would."""
    box = whole(Plan(sweep.grid))
    for name in sweep.grid.columns:
        box(name)


def reference_loop(layouts: int) -> float:
    """CPU seconds a layout of the reference, one call each."""
    from mlsysim import Scenarios

    base = Scenarios.Gpt3ThreeDParallel1K
    return seconds(lambda: [base.variant(dp_size=1 + i).result for i in range(layouts)]) / layouts


PEAK = r"""
import re, sys
sys.path.insert(0, sys.argv[1])
from bench_scale import ALL, FIXED, grid
sizes = tuple(map(int, sys.argv[3].split(",")))
kinds = {"fixed": (FIXED, None), "some": ({**ALL, "where": "efficiency > 0.8"}, "600 MB")}
feasible, memory = kinds[sys.argv[2]]
saved = grid(*sizes, feasible).to_parquet(sys.argv[4], overwrite=True, workers=2, memory=memory)
print(saved.rows)
# Not ru_maxrss: a child begins with that of the process that started it.
print(int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024)
"""


def peak_memory(kind: str, sizes: tuple[int, ...], target: Path) -> tuple[int, float]:
    """Rows that a process of its own writes, and its peak bytes."""
    arguments = [str(Path(__file__).parent), kind, ",".join(map(str, sizes)), str(target)]
    command = [sys.executable, "-P", "-c", PEAK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows, peak = map(int, done.stdout.split())
    return rows, peak


def pushdown(report: Report, folder: Path) -> None:
    sizes = (8, 16, 128, 16) if report.quick else (64, 128, 1024, 128)
    fixed, slice_ = grid(*sizes, FIXED), grid(1, *sizes[1:], ALL)
    scale = sizes[0]

    grid(1, 1, 1, 1, ALL).to_parquet(folder / "f.parquet", workers=1)  # imports are not the matter

    def filtered() -> float:
        return seconds(lambda: fixed.to_parquet(folder / "f.parquet", overwrite=True, workers=1))

    def everything() -> float:
        return seconds(lambda: walked(slice_)) * scale

    cost, full, _ = in_turns(filtered, everything, 1)
    detail = f"{fixed.points:,} points; the other side is one tp of {scale}, scaled"
    report.ratio("fixed devices, against every point evaluated", cost / full, LOWER, 0.05, detail)
    _, peak = peak_memory("fixed", sizes, folder / "p.parquet")
    detail = f"{peak / 1e6:,.0f} MB"
    report.ratio("peak memory of the same, against 400 MB", peak / 400e6, LOWER, 1.0, detail)


def streaming(report: Report, folder: Path) -> None:
    made = grid(8, 32, 16 if report.quick else 1024, 64, ALL)
    plan = Plan(made.grid)
    table = store.table(plan).combine_chunks()
    settings = store._settings(plan)

    out = folder / "out.parquet"

    def written() -> None:
        pq.write_table(table, out, row_group_size=2**20, **settings)

    def streamed(workers: int) -> None:
        store.write(plan, out, overwrite=False, workers=workers)

    def anew(clock: Callable[[Callable[[], None]], float], work: Callable[[], None]) -> float:
        """Both sides begin without a file: a file replaced holds its pages until the very end."""
        out.unlink(missing_ok=True)
        return clock(work)

    rounds = 1 if report.quick else 5
    _, _, ratio = in_turns(
        lambda: anew(seconds, written), lambda: anew(seconds, lambda: streamed(1)), rounds
    )
    detail = f"{len(table):,} rows; CPU seconds"
    report.ratio("sweep to Parquet, against write_table alone", ratio, LOWER, 1.1, detail)
    _, _, ratio = in_turns(
        lambda: anew(wall, lambda: streamed(1)), lambda: anew(wall, lambda: streamed(2)), rounds
    )
    detail = f"wall seconds; {len(os.sched_getaffinity(0))} processors"
    report.ratio("two threads, against one", ratio, LOWER, 0.7, detail)
    out.unlink()


def evaluating(report: Report) -> None:
    made = grid(8, 32, 16 if report.quick else 512, 128, ALL)
    rounds = 1 if report.quick else 9
    blocks, arrays, ratio = in_turns(
        lambda: seconds(lambda: walked(made)), lambda: seconds(lambda: whole_array(made)), rounds
    )
    detail = (
        f"{made.points / blocks / 1e6:,.0f} and {made.points / arrays / 1e6:,.0f} million points/s"
    )
    report.ratio("block by block, against whole arrays", ratio, HIGHER, 2.0, detail)
    each = median(reference_loop(20 if report.quick else 300) for _ in range(3))
    detail = f"the reference: {1 / each:,.0f} layouts/s"
    report.ratio(
        "block by block, against the reference's loop",
        each / (blocks / made.points),
        HIGHER,
        100_000,
        detail,
    )


def memory(report: Report, folder: Path) -> None:
    small, large = (
        ((4, 8, 32, 8), (4, 8, 64, 8))
        if report.quick
        else ((10, 100, 100, 100), (100, 100, 1000, 100))
    )
    found = [peak_memory("some", sizes, folder / "m.parquet") for sizes in (small, large)]
    detail = " and ".join(f"{peak / 1e6:,.0f} MB ({rows:,} rows)" for rows, peak in found)
    ratio = found[1][1] / found[0][1]
    report.ratio("peak memory at 10^9 points, against 10^7", ratio, LOWER, 1.1, detail)


def dask(report: Report, folder: Path) -> None:
    from mlsysim_sweep.cluster import connected

    sizes = (8, 16, 16, 64) if report.quick else (64, 64, 1000, 800)
    made = grid(*sizes, {**ALL, "where": "efficiency > 0.93"})

    def on(workers: int) -> float:
        with connected("local", workers) as client:
            return wall(
                lambda: made.to_parquet(folder / f"d{workers}", overwrite=True, client=client)
            )

    one, two = on(1), on(2)
    detail = f"{one:,.0f} s and {two:,.0f} s of wall time, {made.points:,} points"
    report.ratio("Dask, two workers against one", one / two, HIGHER, 1.6, detail)


def main(quick: bool) -> int:
    report = Report(quick)
    memory_folder = Path("/dev/shm")  # a disk's speed is not ours
    with tempfile.TemporaryDirectory(dir=memory_folder if memory_folder.is_dir() else None) as name:
        folder = Path(name)
        # First: in a process that has freed gigabytes, whole arrays take up to a fifth less time.
        evaluating(report)
        pushdown(report, folder)
        streaming(report, folder)
        memory(report, folder)
        dask(report, folder)
    return report.exit_code()


if __name__ == "__main__":
    run(main)
