"""The mlsysim model of one optimizer step, all of it on one page.

Symbols of the equations: P parameters, D tokens per step, k FLOPs per parameter and token, F peak
FLOP/s, e local efficiency, B link bandwidth, w overlap fraction, g gradient bytes per parameter,
r window resolution, M device memory, m microbatches.
"""

from __future__ import annotations

import numpy as np

from mlsysim_sweep.declare import Floats, Ints, output

_MLSYSIM = "mlsysim 0.3.0, ParallelLayoutModel"
_NARAYANAN = "Narayanan et al. 2021, arXiv:2104.04473"
_PATARASUK = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002"
_ZERO = "Rajbhandari et al. 2020, arXiv:1910.02054"
_KAPLAN = "Kaplan et al. 2020, arXiv:2001.08361, sec. 2.1"
_PALM = "Chowdhery et al. 2022, arXiv:2204.02311, app. B"

LEAVES_OUT = (
    "Tensor- and pipeline-parallel traffic costs nothing in this model: large tp looks better than "
    "it is.",
    "Memory is training state only: no activations, buffers or framework reserve.",
)


@output(unit="1", source=_NARAYANAN)
def n_devices(tp: Ints, pp: Ints, dp: Ints) -> Ints:
    """Devices that the layout occupies: ``tp pp dp``.

    >>> n_devices(8, 4, 32)
    1024
    """
    return tp * pp * dp


@output(unit="flop", source=_KAPLAN)
def step_flops(
    flops_per_param_token: Floats, counted_parameters: Floats, batch_tokens: Floats
) -> Floats:
    """Work of one optimizer step: ``k P D``.

    >>> step_flops(6, 175e9, 2e6)
    2.1e+18
    """
    return flops_per_param_token * counted_parameters * batch_tokens


@output(unit="s", source=_MLSYSIM)
def compute_time(
    step_flops: Floats,
    n_devices: Ints,
    peak_flops: Floats,
    local_efficiency: Floats,
    window_resolution: Floats | None = None,
) -> Floats:
    """Time that a device computes in one step: ``round_r( k P D / (n F e) )``.

    >>> compute_time(2.1e18, 1000, 2e15, 0.5)
    2.1
    """
    exact = step_flops / (n_devices * peak_flops * local_efficiency)
    return exact if window_resolution is None else _rounded(exact, window_resolution)


_TENS = np.array([10**power for power in range(23)], np.float64)
"""Powers of ten, all that are exact in float64; a library's ``pow`` need not give these."""


def _rounded(exact: Floats, resolution: Floats) -> Floats:
    """``exact`` to the nearest multiple of ``resolution``, ties to even.

    A resolution that is a power of ten (to 1e-12) rounds the exact binary value to that many
    decimals, as Python's ``round`` does; ``numpy.round`` does not on about 4 % of near-ties.

    >>> float(_rounded(2.675, 0.01)), float(_rounded(0.375, 0.25)), float(_rounded(250.0, 100.0))
    (2.67, 0.5, 200.0)
    """
    second = resolution / np.abs(_magnitude(resolution))
    decimals = np.rint(-np.log10(_magnitude(resolution)))
    up, down = (_TENS[np.clip(d, 0, 22).astype(np.int64)] for d in (decimals, -decimals))
    decimal = np.abs(_magnitude(resolution) - down / up) < 1e-12
    places = _round_half_even(_magnitude(exact), up, down) * second
    multiples = np.rint(exact / resolution) * resolution
    return np.where(decimal, places, multiples)


def _magnitude(value: Floats) -> Floats:
    return getattr(value, "magnitude", value)


def _round_half_even(value: Floats, up: Floats, down: Floats) -> Floats:
    """``rint(value up / down) down / up`` with the quotient taken exactly.

    ``up`` and ``down`` are powers of ten, exact in float64, one of them 1. The quotient is carried
    as its float plus an error term (Dekker 1971, doi:10.1007/BF01397083), so that a tie is a tie of
    the exact value and not of a rounded product.
    """
    scaled = value * up / down
    high, low = _exact_product(np.where(down == 1, value, scaled), np.where(down == 1, up, down))
    error = np.where(down == 1, low, (value - high) - low)
    whole = np.rint(scaled)
    gap = scaled - whole
    whole = whole + ((gap == 0.5) & (error > 0)) - ((gap == -0.5) & (error < 0))
    # Beyond 2^53 the step is below half a unit in the last place: nothing to round.
    return np.where(np.abs(scaled) <= 2.0**53, whole * down / up, value)


def _exact_product(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """``left right`` as a float and the error of its rounding."""
    product = left * right
    left_high, left_low = _split(left)
    right_high, right_low = _split(right)
    error = ((left_high * right_high - product) + left_high * right_low + left_low * right_high) + (
        left_low * right_low
    )
    return product, error


def _split(value: Floats) -> tuple[Floats, Floats]:
    """``value`` as a sum of two floats of at most 26 bits each (Veltkamp)."""
    scaled = value * (2.0**27 + 1)
    high = scaled - (scaled - value)
    return high, value - high


@output(unit="byte", source=_MLSYSIM)
def gradient_bytes(gradient_bytes_per_param: Floats, parameters: Floats) -> Floats:
    """Gradients of the whole model: ``g P``.

    >>> gradient_bytes(2, 175e9)
    350000000000.0
    """
    return gradient_bytes_per_param * parameters


@output(unit="byte", source=_MLSYSIM)
def dp_shard(gradient_bytes: Floats, tp: Ints, pp: Ints) -> Floats:
    """Gradients that one device reduces with its replicas: ``g P / (tp pp)``.

    >>> dp_shard(350e9, 8, 4)
    10937500000.0
    """
    return gradient_bytes / (tp * pp)


@output(unit="byte", source=_PATARASUK)
def ring_bytes(dp_shard: Floats, dp: Ints) -> Floats:
    """Bytes that one device sends in a ring all-reduce: ``2 (dp-1)/dp dp_shard``.

    >>> ring_bytes(10937500000.0, 32)
    21191406250.0
    """
    return 2 * (dp - 1) / dp * dp_shard


@output(unit="1", source=_PATARASUK)
def ring_correction(finite_ring: Floats, dp: Ints) -> Floats:
    """Share by which an exact ring stays below its large-N bound: ``1/dp for a ring, else 0``.

    >>> ring_correction(1, 32)
    0.03125
    """
    return finite_ring / dp


@output(unit="s", source=_PATARASUK)
def allreduce_time(
    dp_shard: Floats, link_bandwidth: Floats, ring_correction: Floats | float = 0.0
) -> Floats:
    """Time of the gradient all-reduce: ``2 dp_shard / B``, times ``1 - 1/dp`` for an exact ring.

    >>> allreduce_time(10937500000.0, 5e10)
    0.4375
    """
    return 2 * dp_shard * (1 - ring_correction) / link_bandwidth


@output(unit="s", source=_MLSYSIM)
def hidden_time(overlap_fraction: Floats, allreduce_time: Floats, compute_time: Floats) -> Floats:
    """All-reduce time that runs behind computation: ``min(w allreduce_time, compute_time)``.

    >>> float(hidden_time(0.75, 0.4375, 2.1))
    0.328125
    """
    return np.minimum(overlap_fraction * allreduce_time, compute_time)


@output(unit="s", source=_MLSYSIM)
def exposed_time(allreduce_time: Floats, hidden_time: Floats) -> Floats:
    """All-reduce time that compute does not hide: ``allreduce_time - hidden_time``.

    >>> exposed_time(0.4375, 0.328125)
    0.109375
    """
    return allreduce_time - hidden_time


@output(unit="1", source=f"{_NARAYANAN}, sec. 2.2.1")
def bubble(pp: Ints, microbatches: Ints) -> Floats:
    """Share of the pipeline that waits: ``(pp-1) / (m + pp - 1)``.

    >>> bubble(4, 32)
    0.08571428571428572
    """
    return (pp - 1) / (microbatches + pp - 1)


@output(unit="s", source=_MLSYSIM)
def step_time(compute_time: Floats, bubble: Floats, exposed_time: Floats) -> Floats:
    """Time of one optimizer step: ``compute_time / (1 - bubble) + exposed_time``.

    >>> round(step_time(2.1, 3 / 35, 0.109375), 12)
    2.40625
    """
    return compute_time / (1 - bubble) + exposed_time


@output(unit="1", source=_MLSYSIM)
def efficiency(compute_time: Floats, step_time: Floats) -> Floats:
    """Share of the step that computes: ``compute_time / step_time``.

    >>> round(efficiency(2.1, 2.40625), 6)
    0.872727
    """
    return compute_time / step_time


@output(unit="1", source=_MLSYSIM)
def efficiency_no_overlap(compute_time: Floats, bubble: Floats, allreduce_time: Floats) -> Floats:
    """Efficiency if nothing overlapped:
    ``compute_time / (compute_time/(1-bubble) + allreduce_time)``.

    >>> round(efficiency_no_overlap(2.1, 3 / 35, 0.4375), 12)
    0.768
    """
    return compute_time / (compute_time / (1 - bubble) + allreduce_time)


@output(unit="1", source=_MLSYSIM)
def overlap_share(overlap_fraction: Floats, compute_time: Floats, allreduce_time: Floats) -> Floats:
    """Share of the all-reduce that is hidden:
    ``hidden_time / allreduce_time = min(w, compute_time / allreduce_time)``.

    The second form stays defined, as its limit w, where an exact ring over one replica moves
    nothing.

    >>> float(overlap_share(0.75, 2.1, 0.4375))
    0.75
    """
    return np.minimum(overlap_fraction, compute_time / allreduce_time)


@output(unit="byte", source=f"{_ZERO}, sec. 3.1")
def state_total(
    replicated_bytes_per_param: Floats, optimizer_bytes_per_param: Floats, parameters: Floats
) -> Floats:
    """Training state of the whole model, mixed-precision Adam: ``(4 + 12) P``.

    >>> state_total(4, 12, 175e9)
    2800000000000.0
    """
    return (replicated_bytes_per_param + optimizer_bytes_per_param) * parameters


@output(unit="byte", source=_MLSYSIM)
def state_per_device(state_total: Floats, tp: Ints, pp: Ints) -> Floats:
    """Training state on one device, replicas holding it all: ``state_total / (tp pp)``.

    >>> state_per_device(2.8e12, 8, 4)
    87500000000.0
    """
    return state_total / (tp * pp)


@output(unit="byte", source=f"{_ZERO}, sec. 5.1")
def zero1_state_per_device(
    replicated_bytes_per_param: Floats,
    optimizer_bytes_per_param: Floats,
    parameters: Floats,
    tp: Ints,
    pp: Ints,
    dp: Ints,
) -> Floats:
    """Training state on one device with ZeRO-1: ``(4 P + 12 P / dp) / (tp pp)``.

    >>> zero1_state_per_device(4, 12, 175e9, 8, 4, 32)
    23925781250.0
    """
    replicated = replicated_bytes_per_param * parameters
    return (replicated + optimizer_bytes_per_param * parameters / dp) / (tp * pp)


@output(unit="1", source=_PALM)
def fleet_mfu(local_efficiency: Floats, efficiency: Floats) -> Floats:
    """Share of the fleet's peak that trains the model: ``e efficiency``.

    >>> fleet_mfu(0.5, 0.872)
    0.436
    """
    return local_efficiency * efficiency


@output(unit="1", source=_MLSYSIM)
def double_counted_mfu(fleet_mfu: Floats, efficiency: Floats) -> Floats:
    """A pitfall, losses charged twice: ``e efficiency^2``.

    >>> double_counted_mfu(0.375, 0.75)
    0.28125
    """
    return fleet_mfu * efficiency


@output(unit="1", source=_MLSYSIM)
def min_devices_for_state(state_total: Floats, device_memory: Floats) -> Ints:
    """Devices whose memory together holds the training state: ``ceil(state_total / M)``.

    >>> int(min_devices_for_state(2.8e12, 80e9))
    35
    """
    return np.ceil(state_total / device_memory)
