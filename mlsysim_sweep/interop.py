"""mlsysim's scenarios as ours. mlsysim is not imported: its objects are read as they come."""

from __future__ import annotations

import dataclasses
from typing import Any

from mlsysim_sweep.catalog.objects import PRECISION_ALIASES
from mlsysim_sweep.errors import Mistake, shown
from mlsysim_sweep.scenarios import ParallelLayoutScenario


def from_mlsysim(scenario: Any) -> ParallelLayoutScenario:
    """An mlsysim ``ParallelLayoutScenario`` as ours, with the same fields.

    A precision that mlsysim spells otherwise (``fp16_dense``) is renamed; one that its accelerator
    lists no dense peak for is refused, where mlsysim falls back to the headline peak.

    Raises
    ------
    Mistake
        If the object is not such a scenario, or one of its values is not allowed here.
    """
    names = [field.name for field in dataclasses.fields(ParallelLayoutScenario)]
    missing = [name for name in names if not hasattr(scenario, name)]
    if missing:
        raise Mistake(
            "from_mlsysim",
            f"{shown(scenario)} has no {missing[0]}",
            "an mlsysim ParallelLayoutScenario",
        )
    fields = {name: getattr(scenario, name) for name in names}
    fields["precision"] = PRECISION_ALIASES.get(fields["precision"], (fields["precision"],))[0]
    return ParallelLayoutScenario(**fields)
