"""Fronts: our kernel against moocore and paretoset, and a sweep's front against evaluating it."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _ratio import HIGHER, LOWER, Report, in_turns, run
from bench_scale import ALL, grid, wall

from mlsysim_sweep.engine.mesh import Array
from mlsysim_sweep.engine.plan import Plan
from mlsysim_sweep.engine.run import Walk
from mlsysim_sweep.pareto import non_dominated

PEAK = """
import re, sys
sys.path.insert(0, sys.argv[1])
from bench_pareto import two_objectives
two_objectives(tuple(map(int, sys.argv[2].split(",")))).pareto(minimize=["step_time", "n_devices"])
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""


def points(kind: str, count: int, costs: int) -> Array:
    """Rows of costs: uniform, correlated, or a plane on which no point beats another."""
    rng = np.random.default_rng(0)
    rows = rng.random((count, costs))
    if kind == "correlated":
        return rng.random((count, 1)) + 0.1 * rows
    if kind == "all on the front":
        rows[:, -1] = -rows[:, :-1].sum(axis=1)
    return rows


def peers(kind: str) -> dict[str, Callable[[Array], Array]]:
    """What can be run here; paretoset compares all pairs where all are on the front."""
    found: dict[str, Callable[[Array], Array]] = {}
    if importlib.util.find_spec("moocore"):
        import moocore

        found["moocore"] = lambda rows: moocore.is_nondominated(rows, keep_weakly=True)
    if importlib.util.find_spec("paretoset") and kind != "all on the front":
        from paretoset import paretoset

        found["paretoset"] = lambda rows: paretoset(rows, distinct=False)
        found["paretoset"](points(kind, 100, 2))  # compiled on the first call
    return found


def kernel(report: Report, kind: str, count: int, costs: int) -> None:
    rows = points(kind, count, costs)
    columns = [np.ascontiguousarray(column) for column in rows.T]
    front = len(non_dominated(columns))
    rounds = 1 if report.quick or count > 10**6 else 3
    ratios = {}
    for name, peer in peers(kind).items():
        assert np.count_nonzero(peer(rows)) == front
        _, _, ratios[name] = in_turns(
            lambda peer=peer: wall(lambda: peer(rows)),  # type: ignore[misc]
            lambda: wall(lambda: non_dominated(columns)),
            rounds,
        )
    fastest = max(ratios, key=lambda name: ratios[name])
    each = ", ".join(f"{ratio:.3g} x {name}" for name, ratio in ratios.items())
    report.ratio(
        f"{costs} costs, 10^{np.log10(count):.0f} {kind}, against {fastest}",
        ratios[fastest],
        LOWER,
        1.0 if costs == 2 else 1.1,
        f"front {front:,}; {each}",
    )


def two_objectives(sizes: tuple[int, ...]) -> Any:
    return grid(*sizes, ALL)  # type: ignore[arg-type]


def sweep(report: Report) -> None:
    sizes = (4, 8, 32, 16) if report.quick else (64, 128, 1024, 128)
    made = two_objectives(sizes)

    def evaluated(names: list[str]) -> None:
        for found in Walk(Plan(made.grid)):
            with np.errstate(all="ignore"):
                for name in names:
                    found.box(name)

    rounds = 1 if report.quick else 3
    for minimize, maximize in ((["step_time", "n_devices"], []), (["n_devices"], ["efficiency"])):
        names = [*minimize, *maximize]
        front = len(made.pareto(minimize=minimize, maximize=maximize))
        _, _, ratio = in_turns(
            lambda: wall(lambda: made.pareto(minimize=minimize, maximize=maximize)),  # noqa: B023
            lambda: wall(lambda: evaluated(names)),  # noqa: B023
            rounds,
        )
        title = f"front of {' and '.join(names)}, against evaluating"
        report.ratio(title, ratio, HIGHER, 0.5, f"{made.points:,} points, front {front:,}")
    arguments = [str(Path(__file__).parent), ",".join(map(str, sizes))]
    command = [sys.executable, "-P", "-c", PEAK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = int(re.sub(r"\D", "", done.stdout))
    report.ratio("peak memory of a front, against 500 MB", peak / 5e8, LOWER, 1, f"{peak:,} bytes")


def main(quick: bool) -> int:
    report = Report(quick)
    sweep(report)
    for count in (10**4,) if quick else (10**6, 10**7):
        for costs in (2, 3, 4):
            for kind in ("uniform", "correlated", "all on the front"):
                if (count, costs, kind) != (10**7, 4, "all on the front"):  # minutes, even for one
                    kernel(report, kind, count, costs)
    return report.exit_code()


if __name__ == "__main__":
    run(main)
