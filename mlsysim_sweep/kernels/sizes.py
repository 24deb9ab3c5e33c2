"""Sizes that follow from other sizes: used where a layout is asked for by its total.

A size with no whole value is NaN: such a point has no layout, and the rule of the same name in the
funnel counts it.
"""

from __future__ import annotations

import numpy as np

from mlsysim_sweep.declare import Floats, Ints, output

_DEFINITION = "definition"


@output(unit="1", source=_DEFINITION)
def dp(devices: Ints, tp: Ints, pp: Ints) -> Ints:
    """Data-parallel size that fills the devices: ``devices / (tp pp)``.

    >>> float(dp(1024, 8, 4)), float(dp(1000, 8, 4))
    (32.0, nan)
    """
    return np.where(devices % (tp * pp) == 0, devices // (tp * pp), np.nan)


@output(unit="token", source=_DEFINITION)
def microbatch_tokens(microbatch_size: Ints, seq_len: Ints) -> Ints:
    """Tokens of one microbatch of one replica: ``microbatch_size seq_len``.

    >>> microbatch_tokens(4, 2048)
    8192
    """
    return microbatch_size * seq_len


@output(unit="1", source=_DEFINITION)
def microbatches(batch_tokens: Floats, dp: Ints, microbatch_tokens: Ints) -> Ints:
    """Microbatches of one replica: ``batch_tokens / (dp microbatch_tokens)``.

    >>> float(microbatches(2**21, 32, 8192)), float(microbatches(2**21, 24, 8192))
    (8.0, nan)
    """
    exact = batch_tokens / (dp * microbatch_tokens)
    return np.where((exact >= 1) & (exact == np.floor(exact)), exact, np.nan)


@output(unit="parameter", source=_DEFINITION)
def counted_parameters(
    parameters: Floats, active_parameters: Floats | float = 0.0, active_share: Floats | float = 0.0
) -> Floats:
    """Parameters that step_flops counts: ``(1 - a) P + a P_active, a = 0 or 1``.

    >>> counted_parameters(671e9), counted_parameters(671e9, 37e9, 1)
    (671000000000.0, 37000000000.0)
    """
    return (1 - active_share) * parameters + active_share * active_parameters
