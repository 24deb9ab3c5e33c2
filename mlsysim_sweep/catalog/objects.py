"""mlsysim objects as catalog rows. They are read by their attributes; mlsysim is not imported.

Quantities cross over as a magnitude and the text of its unit, never as pint objects: two
registries do not mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlsysim_sweep import units
from mlsysim_sweep.catalog import Row, read_row
from mlsysim_sweep.errors import Mistake, shown

PRECISION_ALIASES: Mapping[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "tf32": ("tf32",),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    # Tensor and matrix cores run both 16-bit formats at one rate where mlsysim uses this key.
    "fp16_dense": ("fp16", "bf16"),
    "fp8": ("fp8",),
    "fp4": ("fp4",),
    "int8": ("int8",),
}
"""mlsysim's precision keys -> ours. Its sparse peaks are not taken: all of ours are dense."""

_WORKLOAD = {
    "parameters": "parameters",
    "active_parameters": "active_parameters",
    "layers": "layers",
    "hidden_dim": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocabulary",
    "context_length": "context_length",
    "experts": "experts",
    "active_experts_per_token": "experts_per_token",
}


def adopt(table: str, given: Any) -> Row:
    """A catalog row, or an mlsysim ``HardwareNode`` or ``Workload``, as a catalog row.

    Raises
    ------
    Mistake
        If the object is neither.
    """
    if isinstance(given, Row):
        if given.table != table:
            raise Mistake(
                table, f"a row of the {given.table} table given", f"a row of the {table} table"
            )
        return given
    if table == "accelerator" and hasattr(given, "compute") and hasattr(given, "memory"):
        return _accelerator(given)
    if table == "workload" and hasattr(given, "parameters") and hasattr(given, "name"):
        return _workload(given)
    raise Mistake(
        table,
        f"{shown(given)} given",
        "a name, a catalog row or an mlsysim object",
        f'"{_NAMES[table]}"',
    )


_NAMES = {"accelerator": "H100", "workload": "GPT3", "link": "InfiniBand-NDR"}


def _accelerator(node: Any) -> Row:
    keys = dict(node.compute.precision_flops or {})
    # A key of ours wins over an alias that stands for several.
    ordered = sorted(keys, key=lambda key: len(PRECISION_ALIASES.get(key, ())), reverse=True)
    peaks = {ours: _text(keys[k]) for k in ordered for ours in PRECISION_ALIASES.get(k, ())}
    if not peaks:
        known = ", ".join(PRECISION_ALIASES)
        raise Mistake("accelerator", f"{shown(node.name)} has no dense peak", f"one of {known}")
    row: dict[str, Any] = {"title": node.name, "peak_flops": peaks}
    row["device_memory"] = _text(node.memory.capacity)
    row["memory_bandwidth"] = _text(node.memory.bandwidth)
    link = getattr(node, "nvlink", None)
    if link is not None:
        both_ways = getattr(link, "direction", "") == "bidirectional_total"
        rate = units.to_si(_text(link.bandwidth), "byte/s") / (2 if both_ways else 1)
        row["scaleup_bandwidth"] = f"{rate!r} byte/s"
    if getattr(node, "tdp", None) is not None:
        row["tdp"] = _text(node.tdp)
    return read_row("accelerator", node.name, row)


def _workload(model: Any) -> Row:
    row: dict[str, Any] = {"title": model.name}
    for theirs, ours in _WORKLOAD.items():
        value = getattr(model, theirs, None)
        if value is not None:
            row[ours] = _text(value) if hasattr(value, "magnitude") else value
    found = read_row("workload", model.name, row)
    size = getattr(model, "model_size", None)
    if size is None:
        return found
    remarks = {**found.remarks, "model_size": units.to_si(_text(size), "byte")}
    return Row(found.table, found.name, found.facts, found.peaks, remarks)


def _text(quantity: Any) -> str:
    return f"{float(quantity.magnitude)!r} {quantity.units}"
