"""All Hypothesis strategies of the suite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from mlsysim_sweep.catalog import bundled_table


def window_resolutions() -> st.SearchStrategy[float]:
    """Powers of ten, exact or almost, and others."""
    powers = st.integers(-22, 22).map(lambda exponent: float(f"1e{exponent}"))
    almost = st.tuples(powers, st.floats(-2e-12, 2e-12)).map(sum).filter(lambda r: r >= 1e-22)
    return powers | almost | st.floats(1e-22, 1e22)


def window_values() -> st.SearchStrategy[float]:
    """Times of any size, decimals with a 5 at the end and their neighbours among them."""

    def moved(value: float, steps: int) -> float:
        for _ in range(abs(steps)):
            value = math.nextafter(value, math.inf if steps > 0 else 0.0)
        return value

    ties = st.builds(
        lambda whole, exponent: float(f"{whole}5e{exponent}"),
        st.integers(0, 10**9),
        st.integers(-30, 20),
    )
    return st.floats(0, 1e285) | st.builds(moved, ties, st.integers(-2, 2))


# --- sweeps --------------------------------------------------------------------------------------

_SIZES: dict[str, tuple[Any, ...]] = {"tp": (1, 2, 3, 4, 8, 16), "pp": (1, 2, 3, 4, 6, 12)}
_REPLICAS = {"dp": (1, 2, 4, 7, 32, 64), "devices": (8, 12, 64, 96, 1000, 1024)}
_MICROBATCHES = (
    {"microbatches": (1, 2, 5, 8, 32)},
    {"microbatch_tokens": (512, 1024, 3000, 2**17)},
    {"microbatch_size": (1, 2, 3), "seq_len": (512, 2048)},
)
_OTHERS: dict[str, tuple[Any, ...]] = {
    "accelerator": ("H100", "A100-80GB", "MI300X", "V100"),
    "workload": ("GPT3", "Llama2-7B", "Mixtral-8x7B"),
    "batch_tokens": (2**20, 2**22, 2e6),
    "flops_per_param_token": (6, 8),
    "local_efficiency": (0.3, 0.5, 1.0),
    "overlap_fraction": (0, 0.5, 1),
    "link_bandwidth": ("100 Gbps", "400 Gbps"),
    "gradient_precision": ("fp16", "fp8"),
    "collective": ("ring", "large_n_ring"),
    "parameter_count": ("all", "active"),
}
_OPTIONAL = {"window_resolution": ("0.1 s", "3 s"), "device_memory": ("80 GB", "30 GB")}
_DEVICE_RULES = st.fixed_dictionaries(
    {},
    optional={
        "equal": st.sampled_from((8, 96, 1024)),
        "max": st.sampled_from((64, 512)),
        "min": st.sampled_from((8, 64)),
        "multiple_of": st.sampled_from((3, 8)),
        "one_of": st.lists(st.sampled_from((8, 12, 64, 96, 1024)), min_size=1, unique=True),
    },
)


@st.composite
def sweeps(draw: st.DrawFn, where: Sequence[str] = ()) -> dict[str, Any]:
    """Keywords of a small sweep: any inputs as axes in any order, derived sizes, zips and rules."""
    replicas = draw(st.sampled_from(sorted(_REPLICAS)))
    known = {**_SIZES, replicas: _REPLICAS[replicas], **draw(st.sampled_from(_MICROBATCHES))}
    known |= {**_OTHERS, **{n: v for n, v in _OPTIONAL.items() if draw(st.booleans())}}
    chosen = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=5, unique=True))
    axes: dict[str, list[Any]] = {
        name: draw(st.lists(st.sampled_from(known[name]), min_size=1, max_size=4, unique=True))
        for name in chosen
    }
    inputs = {name: draw(st.sampled_from(v)) for name, v in known.items() if name not in axes}
    zips = []
    if draw(st.booleans()) and len(axes) > 1:
        together = {name: axes.pop(name) for name in list(axes)[-2:]}
        length = min(map(len, together.values()))
        zips.append({name: values[:length] for name, values in together.items()})
    places: list[dict[str, Any]] = [{"accelerator": [inputs.get("accelerator")]}, axes, *zips]
    accelerators = [name for place in places for name in place.get("accelerator", ()) if name]
    had = {p for name in accelerators for p in bundled_table("accelerator")[name].peaks}
    precisions = draw(
        st.lists(st.sampled_from(sorted(had & {"fp8", "bf16", "fp16"})), min_size=1, unique=True)
    )
    if len(precisions) > 1:
        axes["precision"] = precisions
    else:
        inputs["precision"] = precisions[0]
    feasible = {
        "memory": draw(st.sampled_from(("plain", "zero1", "off"))),
        "headroom": draw(st.sampled_from((1.0, 0.9))),
        "tp_within_node": draw(st.booleans()),
        "devices": draw(_DEVICE_RULES),
        "where": draw(st.lists(st.sampled_from(where), unique=True, max_size=4)) if where else [],
    }
    return {"inputs": inputs, "axes": axes, "zip": zips, "feasible": feasible}
