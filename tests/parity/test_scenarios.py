"""Random scenarios: ours and the reference's agree in all 20 fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlsysim_sweep as ms
from mlsysim_sweep.catalog.objects import PRECISION_ALIASES, adopt
from tests.parity.conftest import Batch
from tests.parity.reference import (
    ACCELERATORS,
    FIELDS,
    WORKLOADS,
    Scenario,
    answers,
    columns,
    compare,
    draw,
)

ROWS = {
    (table, each.name): adopt(table, each)
    for table, objects in (("accelerator", ACCELERATORS), ("workload", WORKLOADS))
    for each in objects
}


def stated(theirs: Any) -> ms.ParallelLayoutScenario:
    """One of the reference's scenarios as a person writes it: catalog rows, quantities as text."""
    fields = {name: getattr(theirs, name) for name in type(theirs).model_fields}
    for name in ("link_bandwidth", "window_resolution", "device_memory"):
        if fields[name] is not None:
            fields[name] = f"{fields[name].magnitude!r} {fields[name].units}"
    for table in ("accelerator", "workload"):
        fields[table] = ROWS[table, fields[table].name]
    fields["precision"] = PRECISION_ALIASES[fields["precision"]][0]
    return ms.ParallelLayoutScenario(**fields)


def test_random_scenarios(batch: Batch, record_property: Callable[[str, object], None]) -> None:
    rng = batch.rng(1)
    theirs = [Scenario(**draw(rng)) for _ in range(batch.points)]
    readers = (ms.from_mlsysim, stated)
    ours = [readers[i % 2](scenario).result for i, scenario in enumerate(theirs)]
    assert all(set(result) == set(FIELDS) for result in ours)
    ties = compare(columns(ours), *answers(theirs))
    for name, count in {"scenarios": batch.points, **ties}.items():
        record_property(f"parity: {name}", count)
