"""Cuts the inputs to be compared into batches, and sums up what the batches met."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from tests.conftest import PARITY_POINTS

BATCH = 1000


@dataclass(frozen=True)
class Batch:
    """Some of the inputs to compare, the same ones every time."""

    number: int
    points: int

    def rng(self, stream: int) -> np.random.Generator:
        """The source of its inputs."""
        return np.random.default_rng([self.number, stream])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "batch" not in metafunc.fixturenames:
        return
    wanted = metafunc.config.getoption("--parity-points")
    marks = [pytest.mark.slow] if wanted > PARITY_POINTS else []
    batches = [Batch(i, min(BATCH, wanted - i * BATCH)) for i in range(-(-wanted // BATCH))]
    cases = [pytest.param(batch, id=f"batch{batch.number}", marks=marks) for batch in batches]
    metafunc.parametrize("batch", cases)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", ()):
        counts.update({k: v for k, v in report.user_properties if k.startswith("parity: ")})
    for name, count in counts.items():
        terminalreporter.write_line(f"{name}: {count:,}")
