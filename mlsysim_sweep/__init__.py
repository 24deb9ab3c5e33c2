"""Every training layout of a cluster at once: TP x PP x DP, evaluated, filtered and saved.

>>> import mlsysim_sweep as ms
>>> ms.Scenarios.Gpt3ThreeDParallel1K.n_devices
1024
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlsysim_sweep.answers import pareto_front, top
    from mlsysim_sweep.catalog import Catalog
    from mlsysim_sweep.constraints import Funnel, RuleError
    from mlsysim_sweep.declare import DeclarationError, Floats, Ints, output
    from mlsysim_sweep.errors import Mistake, OutputError
    from mlsysim_sweep.interop import from_mlsysim
    from mlsysim_sweep.scenarios import ParallelLayoutScenario, Scenarios
    from mlsysim_sweep.store import read_document
    from mlsysim_sweep.sweep import Sweep
    from mlsysim_sweep.whatif import diff, invert, regimes, robust

_HOMES = {
    "Catalog": "catalog",
    "DeclarationError": "declare",
    "Floats": "declare",
    "Funnel": "constraints",
    "Ints": "declare",
    "Mistake": "errors",
    "OutputError": "errors",
    "ParallelLayoutScenario": "scenarios",
    "RuleError": "constraints",
    "Scenarios": "scenarios",
    "Sweep": "sweep",
    "diff": "whatif",
    "from_mlsysim": "interop",
    "invert": "whatif",
    "output": "declare",
    "pareto_front": "answers",
    "read_document": "store",
    "regimes": "whatif",
    "robust": "whatif",
    "top": "answers",
}

__all__ = [
    "Catalog",
    "DeclarationError",
    "Floats",
    "Funnel",
    "Ints",
    "Mistake",
    "OutputError",
    "ParallelLayoutScenario",
    "RuleError",
    "Scenarios",
    "Sweep",
    "diff",
    "from_mlsysim",
    "invert",
    "output",
    "pareto_front",
    "read_document",
    "regimes",
    "robust",
    "top",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing the package stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
