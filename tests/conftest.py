"""Options of the whole suite."""

from __future__ import annotations

import hypothesis
import pytest

PARITY_POINTS = 20_000

# No test fails because the machine is busy.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--parity-points",
        type=int,
        default=PARITY_POINTS,
        metavar="N",
        help=f"inputs compared with mlsysim, by scenario and by grid (default {PARITY_POINTS}); "
        "more than that count as slow: add -m slow",
    )
