"""The formulas. One function is one quantity and one Parquet column.

Kernels are arithmetic on arrays: no units, labels or checks. They never call each other; they meet
by name in a :class:`~mlsysim_sweep.declare.Model`.
"""

from __future__ import annotations

import functools

from mlsysim_sweep.declare import Model
from mlsysim_sweep.kernels import parallel_layout, sizes

_MODULES = {"parallel_layout": parallel_layout}

MODELS = tuple(_MODULES)
"""Names of the models."""


@functools.cache
def model(name: str) -> Model:
    """The model of this name.

    Raises
    ------
    KeyError
        If there is none; :data:`MODELS` has the names.
    """
    module = _MODULES[name]
    return Model.of(name, module, identities=(sizes,), leaves_out=module.LEAVES_OUT)
