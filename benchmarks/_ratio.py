"""Two sides timed in turns, and one line a figure: seconds depend on the machine, ratios hardly."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LOWER, HIGHER = "lower is better", "higher is better"
_SIGNS = {LOWER: "<=", HIGHER: ">="}


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of one call, all threads together; other processes do not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turns(
    a: Callable[[], float], b: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """Costs of two sides measured A B A B; with several rounds, one before them does not count.

    Returns the median of each side and of the ratios b / a of the rounds.
    """
    if rounds > 1:
        a(), b()
    pairs = [(a(), b()) for _ in range(rounds)]
    ratios = [cost_b / cost_a for cost_a, cost_b in pairs]
    medians = [statistics.median(costs) for costs in zip(*pairs, strict=True)]
    return medians[0], medians[1], statistics.median(ratios)


@dataclass
class Report:
    """Prints figures as they come; remembers which missed their target."""

    quick: bool
    missed: list[str] = field(default_factory=list)

    def ratio(
        self,
        name: str,
        value: float,
        better: str,
        target: float | None = None,
        detail: str = "",
        *,
        unit: str = "x",
    ) -> None:
        """One line: name, ratio, which direction is good, the target, and what was measured."""
        goal = "no target"
        if target is not None:
            met = value <= target if better == LOWER else value >= target
            verdict = "not judged: quick" if self.quick else "met" if met else "MISSED"
            goal = f"target {_SIGNS[better]} {target:,g} {unit}, {verdict}"
            self.missed += [name] if verdict == "MISSED" else []
        shown = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        more = f"  ({detail})" if detail else ""
        print(f"{name:<58} {shown:>8} {unit}  {better:<16}  {goal}{more}", flush=True)

    def exit_code(self) -> int:
        """1 if a target was missed; the small sizes of a quick run are not judged."""
        return int(bool(self.missed))


def run(main: Callable[[bool], int]) -> None:
    """Run a benchmark script: ``--quick`` is a small run, for the tests."""
    unknown = set(sys.argv[1:]) - {"--quick"}
    if unknown:
        sys.exit(f"unknown argument {sorted(unknown)[0]!r}; only --quick is understood")
    sys.exit(main("--quick" in sys.argv[1:]))
