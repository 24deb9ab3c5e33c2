"""Every input and axis: its name, unit, meaning and allowed range.

One word per quantity, everywhere: spec key, keyword, axis, kernel parameter, Parquet column and
report label. Values are in base units (see :mod:`mlsysim_sweep.units`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What sort of value an input takes."""

    WHOLE = "whole number"
    REAL = "number"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the models, and what may be given for it.

    ``default`` is None where a value must be given. ``optional`` inputs may be absent: formulas
    that need them are then absent too, or use their own default.
    """

    name: str
    unit: str
    meaning: str
    kind: Kind
    low: float = 0.0
    high: float = 1e30
    low_allowed: bool = False
    default: float | int | str | None = None
    optional: bool = False

    @property
    def allowed(self) -> str:
        """The allowed range in words.

        >>> VOCABULARY["tp"].allowed, VOCABULARY["local_efficiency"].allowed
        ('a whole number from 1 to 9007199254740992', 'a number in (0, 1]')
        """
        if self.kind is Kind.CHOICE:
            return "a name"
        if self.kind is Kind.WHOLE:
            return f"a whole number from {int(self.low)} to {int(self.high)}"
        bracket = "[" if self.low_allowed else "("
        return f"a number in {bracket}{self.low:g}, {self.high:g}]"


LARGEST_WHOLE = 2**53
"""Largest whole number taken: beyond it float64 skips whole numbers."""


def _whole(
    name: str,
    meaning: str,
    *,
    unit: str = "1",
    default: int | None = None,
    optional: bool = False,
) -> Input:
    return Input(
        name, unit, meaning, Kind.WHOLE, 1, LARGEST_WHOLE, True, default=default, optional=optional
    )


def _real(
    name: str,
    unit: str,
    meaning: str,
    *,
    low: float = 1e-30,
    high: float = 1e30,
    low_allowed: bool = True,
    default: float | None = None,
    optional: bool = False,
) -> Input:
    return Input(name, unit, meaning, Kind.REAL, low, high, low_allowed, default, optional)


def _choice(name: str, meaning: str, default: str | None = None) -> Input:
    return Input(name, "1", meaning, Kind.CHOICE, default=default, optional=default is None)


# Ranges of real inputs end at 1e-30 and 1e30 so that no product or quotient of the formulas can
# leave float64. Those of window_resolution end where powers of ten are no longer exact in float64.
_INPUTS = (
    # Layout
    _whole("tp", "Tensor-parallel size", default=1),
    _whole("pp", "Pipeline-parallel size: number of stages", default=1),
    _whole("dp", "Data-parallel size: number of replicas"),
    _whole("microbatches", "Microbatches that each replica sends through its pipeline", default=1),
    _whole(
        "devices", "Devices of the job, from which dp = devices / (tp pp) follows", optional=True
    ),
    _whole(
        "microbatch_tokens",
        "Tokens of one microbatch of one replica, from which microbatches follow",
        unit="token",
        optional=True,
    ),
    _whole("microbatch_size", "Sequences of one microbatch of one replica", optional=True),
    _whole("seq_len", "Tokens of one sequence", unit="token", optional=True),
    # Choices: names whose meaning is a row of data
    _choice("workload", "Model to train, from the catalog or the spec"),
    _choice("accelerator", "Device to train on, from the catalog or the spec"),
    _choice("link", "Network link from the catalog or the spec: gives link_bandwidth"),
    _choice("precision", "Number format of the matrix work: gives peak_flops", "fp8"),
    _choice(
        "gradient_precision", "Number format of gradients: gives gradient_bytes_per_param", "fp16"
    ),
    _choice(
        "collective",
        "Volume of the gradient all-reduce: its large-N bound, or the exact ring",
        "large_n_ring",
    ),
    _choice(
        "parameter_count",
        "Parameters that step_flops counts: all, or the active ones of a mixture of experts",
        "all",
    ),
    # Training step
    _real("batch_tokens", "token", "Tokens of one optimizer step, all replicas together"),
    _real("flops_per_param_token", "flop/parameter/token", "Work per parameter and token"),
    _real(
        "local_efficiency",
        "1",
        "Share of peak that one device reaches on its own work",
        low=0.0,
        high=1.0,
        low_allowed=False,
    ),
    _real("link_bandwidth", "byte/s", "Bandwidth of one device on the data-parallel network"),
    _real(
        "overlap_fraction",
        "1",
        "Share of the gradient all-reduce that can run behind computation",
        low=0.0,
        high=1.0,
    ),
    _real(
        "window_resolution",
        "s",
        "Resolution to which compute_time is rounded; exact when absent",
        low=1e-22,
        high=1e22,
        optional=True,
    ),
    # What an accelerator gives
    _real("peak_flops", "flop/s", "Dense peak of one device at the chosen precision"),
    _real("device_memory", "byte", "Memory of one device", optional=True),
    _whole("devices_per_node", "Devices joined by the scale-up link", optional=True),
    _real("memory_bandwidth", "byte/s", "Memory bandwidth of one device", optional=True),
    _real(
        "scaleup_bandwidth",
        "byte/s",
        "Bandwidth of one device inside its node, one direction",
        optional=True,
    ),
    _real("scaleout_bandwidth", "byte/s", "Usual network bandwidth of one device", optional=True),
    _real("tdp", "W", "Rated power of one device", optional=True),
    # What a workload gives
    _real("parameters", "parameter", "Parameters of the model"),
    _real(
        "active_parameters",
        "parameter",
        "Parameters that one token passes through; all of them unless experts are mixed",
        optional=True,
    ),
    _real("counted_parameters", "parameter", "Parameters that step_flops counts"),
    _whole("layers", "Transformer layers", optional=True),
    _whole("hidden", "Width of the residual stream", optional=True),
    _whole("heads", "Attention heads", optional=True),
    _whole("kv_heads", "Key-value heads", optional=True),
    _whole("head_dim", "Width of one attention head", optional=True),
    _whole("ffn_hidden", "Width of the feed-forward layer", optional=True),
    _whole("vocabulary", "Entries of the token vocabulary", optional=True),
    _whole(
        "context_length", "Tokens of the longest sequence trained on", unit="token", optional=True
    ),
    _whole("experts", "Experts of one mixture layer", optional=True),
    _whole("experts_per_token", "Experts that one token visits", optional=True),
    _whole("expert_ffn_hidden", "Width of one expert", optional=True),
    # What choices stand for
    _real(
        "gradient_bytes_per_param",
        "byte/parameter",
        "Gradient bytes that are reduced per parameter",
    ),
    _real(
        "replicated_bytes_per_param",
        "byte/parameter",
        "Training state that every replica keeps: 16-bit weights and gradients",
        default=4.0,
    ),
    _real(
        "optimizer_bytes_per_param",
        "byte/parameter",
        "Training state that ZeRO-1 spreads: 32-bit weights, momentum and variance",
        default=12.0,
    ),
    _real(
        "active_share",
        "1",
        "1 counts the active parameters of a workload in step_flops, 0 all of them",
        low=0.0,
        high=1.0,
        optional=True,
    ),
    _real(
        "finite_ring",
        "1",
        "1 counts the exact volume of a ring, 0 its bound for many replicas",
        low=0.0,
        high=1.0,
        optional=True,
    ),
)

VOCABULARY: Mapping[str, Input] = {entry.name: entry for entry in _INPUTS}
"""All inputs by name, in the order in which they are listed."""

CHOICES = tuple(entry.name for entry in _INPUTS if entry.kind is Kind.CHOICE)
"""Inputs whose values are names."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""Number formats that an accelerator may have a peak for; all peaks are dense."""
