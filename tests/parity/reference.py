"""The oracle: random inputs for mlsysim 0.3.0, its answers, and how two sets of answers compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any
from unittest import mock

import mlsysim
import numpy as np
import numpy.typing as npt
from mlsysim.core.units import Q_
from mlsysim.engine.results import ParallelLayoutResult
from mlsysim.engine.solvers import parallelism

from mlsysim_sweep.catalog.objects import PRECISION_ALIASES
from mlsysim_sweep.kernels import model
from mlsysim_sweep.kernels.parallel_layout import _rounded, compute_time
from tests.laws.registry import evaluated

Array = npt.NDArray[Any]
Inputs = dict[str, Any]
"""Keyword arguments of one of the reference's scenarios."""

MODEL = model("parallel_layout")
FIELDS = tuple(name for name in ParallelLayoutResult.model_fields if name in MODEL.outputs)
TOLERANCE = 1e-13
ULPS = 4

MLSYSIM: Any = mlsysim
Scenario: Any = type(MLSYSIM.Scenarios.Gpt3ThreeDParallel1K)
CLOUD, MODELS = MLSYSIM.Hardware.Cloud, MLSYSIM.Models
ACCELERATORS = (
    CLOUD.A100,
    CLOUD.B200,
    CLOUD.GB200_NVL72,
    CLOUD.Gaudi3,
    CLOUD.H100,
    CLOUD.H100_PCIe,
    CLOUD.H200,
    CLOUD.MI300X,
    CLOUD.MI325X,
    CLOUD.TPUv4,
    CLOUD.TPUv5p,
    CLOUD.V100,
)
WORKLOADS = (
    MODELS.Language.GPT3,
    MODELS.Language.Llama3_70B,
    MODELS.Language.Llama3_405B,
    MODELS.Language.DeepSeek_V3,  # mixture of experts
    MODELS.Language.Mixtral_8x7B,
    MODELS.Language.GPT2_Small,
    MODELS.StateSpace.Mamba_2_8B,
    MODELS.Vision.ResNet50,
    MODELS.Language.GPT3.model_copy(
        update={"name": "GPT-3 with a size of its own", "model_size": Q_(352, "GB")}
    ),
)
GRADIENTS = ("fp16", "bf16", "fp8", "int8", "int4", "fp32", "tf32")


def precisions(accelerator: Any) -> list[str]:
    """The reference's keys of the dense peaks that both sides have."""
    return [key for key in accelerator.compute.precision_flops if key in PRECISION_ALIASES]


# --- inputs --------------------------------------------------------------------------------------


def draw(rng: np.random.Generator) -> Inputs:
    """Random valid inputs over all fields; corners and ties more often than by chance."""
    accelerator = pick(rng, ACCELERATORS)
    inputs = {
        "name": "parity",
        "description": "",
        "workload": pick(rng, WORKLOADS),
        "tp_size": size(rng, 12),
        "pp_size": size(rng, 10),
        "dp_size": size(rng, 17),
        "microbatches": size(rng, 12),
        "batch_tokens": pick(rng, (2e6, 2.0**22, _log(rng, 1e3, 1e9))),
        "flops_per_param_token": pick(rng, (6.0, 8.0, rng.uniform(1, 10))),
        "accelerator": accelerator,
        "precision": pick(rng, precisions(accelerator)),
        "local_efficiency": pick(rng, (0.5, 1.0, rng.uniform(0.01, 1), rng.uniform(0.2, 0.7))),
        "link_bandwidth": bandwidth(rng),
        "overlap_fraction": pick(rng, (0.0, 1.0, 0.75, rng.uniform())),
        "gradient_precision": gradient(rng),
    }
    inputs["device_memory"] = memory(rng, accelerator, inputs["workload"])
    window = resolution(rng)
    if window is not None and rng.random() < 0.3:
        inputs["batch_tokens"] *= _to_a_tie(rng, inputs, window)
    return {**inputs, "window_resolution": window}


def pick(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[below(rng, len(values))]


def below(rng: np.random.Generator, end: int) -> int:
    return int(end * rng.random())  # far cheaper than rng.integers for one number


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


def size(rng: np.random.Generator, bits: int) -> int:
    """1, a power of two, or any whole number; now and then a very large one."""
    chance = rng.random()
    if chance < 0.6:
        return 1 if chance < 0.2 else 2 ** below(rng, bits + 1)
    return int(_log(rng, 1, 2 ** (bits if chance < 0.8 else 20)))


def bandwidth(rng: np.random.Generator) -> Any:
    if rng.random() < 0.5:
        return Q_(pick(rng, (100, 200, 400, 800, 1600)), "Gbps")
    return Q_(_log(rng, 1, 1000), pick(rng, ("GB/s", "Gbps")))


def gradient(rng: np.random.Generator) -> str:
    name: str = pick(rng, GRADIENTS)
    return str(pick(rng, (name, name, name.upper(), name.capitalize())))


def memory(rng: np.random.Generator, accelerator: Any, workload: Any) -> Any | None:
    """No budget, a usual one, any, or one of which a whole number hold the state."""
    kind = pick(rng, (None, None, "usual", "usual", "any", "whole"))
    if kind == "usual":
        return pick(rng, (Q_(80, "GB"), Q_(1, "TB"), accelerator.memory.capacity))
    if kind == "any":
        return Q_(_log(rng, 1, 2000), pick(rng, ("GB", "GiB")))
    state = 16 * workload.parameters.m_as("param")
    return Q_(state / 1e9 / (1 + below(rng, 99)), "GB") if kind == "whole" else None


def resolution(rng: np.random.Generator) -> Any | None:
    """No window, a power of ten (or almost), or another resolution."""
    kind = pick(rng, (None, None, "s", "ms", "other"))
    if kind == "other":
        almost = 0.1 + pick(rng, (5e-13, -5e-13, 5e-12))
        return Q_(pick(rng, (0.25, 0.5, 0.125, 0.3, 2.5, 7.0, almost, _log(rng, 1e-4, 10))), "s")
    exponent = below(rng, 9) - (6 if kind == "s" else 3)
    return Q_(10.0**exponent, kind) if kind else None


def _to_a_tie(rng: np.random.Generator, inputs: Inputs, window: Any) -> float:
    """The factor of the work that puts the compute window next to a tie."""
    scenario = Scenario(**inputs)
    count = scenario.n_devices * scenario.local_efficiency
    work = scenario.flops_per_param_token * scenario.batch_tokens
    work *= scenario.workload.parameters.m_as("param")
    exact = work / (count * peak(scenario))
    return float((below(rng, 200) + 0.5) * window.m_as("s") / exact)


def peak(scenario: Any) -> float:
    return float(scenario.accelerator.compute.precision_flops[scenario.precision].m_as("flop/s"))


# --- answers -------------------------------------------------------------------------------------


def answers(scenarios: Sequence[Any]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The reference's fields for its scenarios, and what else a comparison needs to know of them.

    The latter are inputs in base units, and as ``exact`` and ``resolution`` the compute windows
    that the reference rounds, in its own last bits; NaN where there is none.
    """
    with _windows_watched() as windows:
        results = columns([scenario.result for scenario in scenarios])
    exact, resolution = np.array(windows).T
    memory = [None if s.device_memory is None else s.device_memory.m_as("B") for s in scenarios]
    return results, {
        "peak_flops": np.array([peak(s) for s in scenarios]),
        "local_efficiency": np.array([s.local_efficiency for s in scenarios]),
        "overlap_fraction": np.array([s.overlap_fraction for s in scenarios]),
        "device_memory": np.array(memory, float),
        "exact": exact,
        "resolution": resolution,
    }


@contextmanager
def _windows_watched() -> Iterator[list[tuple[float, float]]]:
    seen: list[tuple[float, float]] = []
    original = parallelism._round_to

    def watched(exact: Any, resolution: Any | None) -> Any:
        seen.append((exact.m_as("s"), math.nan if resolution is None else resolution.m_as("s")))
        return original(exact, resolution)

    with mock.patch.object(parallelism, "_round_to", watched):
        yield seen


def columns(results: Iterable[Any]) -> dict[str, Array]:
    """The fields of results, ours or theirs, as floats in base units; NaN where there is none."""
    rows = [[getattr(result, name) for name in FIELDS] for result in results]
    return {
        name: _factor(name, values[0]) * np.array([_number(value) for value in values])
        for name, values in zip(FIELDS, zip(*rows, strict=True), strict=True)
    }


def _factor(name: str, value: Any) -> float:
    """To base units from the unit of a field, which is the same in every result."""
    unit = MODEL.outputs[name].unit
    return 1.0 if unit == "1" else float(type(value)(1.0, value.units).m_as(unit))


def _number(value: Any) -> float:
    return math.nan if value is None else float(getattr(value, "magnitude", value))


# --- comparison ----------------------------------------------------------------------------------


def compare(
    ours: Mapping[str, Array], theirs: Mapping[str, Array], inputs: Mapping[str, Array]
) -> dict[str, int]:
    """Assert that all fields agree; returns how often the last bits decided.

    Next to a tie they do, and the reference's unit conversions cost it some of them. So where the
    two sides round apart, both must be within a few units of the last place of the tie, and what
    follows from the window must agree given the same one.
    """
    ours = {name: ours[name].astype(float) for name in FIELDS}
    exact, step = inputs["exact"], inputs["resolution"]
    rounded = np.isfinite(step)
    by_kernel = _rounded(exact[rounded], step[rounded])
    np.testing.assert_array_equal(by_kernel, theirs["compute_time"][rounded])

    raw = compute_time(
        ours["step_flops"], ours["n_devices"], inputs["peak_flops"], inputs["local_efficiency"]
    )
    np.testing.assert_allclose(raw, exact, rtol=3e-15, atol=0)
    apart = rounded & ~np.isclose(ours["compute_time"], theirs["compute_time"], TOLERANCE, 0)
    for values in (raw, exact):
        assert all(map(near_tie, values[apart], step[apart]))
    _substitute(ours, theirs["compute_time"], inputs, apart)

    fewest, ratio = "min_devices_for_state", ours["state_total"] / inputs["device_memory"]
    off = np.isfinite(ratio) & (ours[fewest] != theirs[fewest])
    assert all(map(near_whole, ratio[off]))
    ours[fewest][off] = theirs[fewest][off]
    little = _almost_equal_times(ours, theirs)
    ours["exposed_time"][little] = theirs["exposed_time"][little]
    for name in FIELDS:
        np.testing.assert_allclose(ours[name], theirs[name], TOLERANCE, 0, err_msg=name)
    return {
        "windows at a tie": int(apart.sum()),
        "ceilings at a whole number": int(off.sum()),
        "exposed times that are a difference of near equals": int(little.sum()),
    }


def _almost_equal_times(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> Array:
    """Where exposed times differ by the last places of the time that they are left from."""
    exposed = ours["exposed_time"], theirs["exposed_time"]
    last_places = ULPS * np.spacing(theirs["allreduce_time"])
    found = ~np.isclose(*exposed, TOLERANCE, 0) & np.isclose(*exposed, 0, last_places)
    return np.asarray(found)


def _substitute(
    ours: dict[str, Array], window: Array, inputs: Mapping[str, Array], where: Array
) -> None:
    """Where the two sides round to either side of a tie, go on from the reference's window."""
    given = {name: ours[name][where] for name in ("allreduce_time", "bubble")}
    given |= {n: inputs[n][where] for n in ("local_efficiency", "overlap_fraction")}
    for name, values in evaluated(MODEL, {**given, "compute_time": window[where]}).items():
        if name in ours:
            ours[name][where] = values


def near_tie(value: float, resolution: float) -> bool:
    """Whether a value is a few units of its last place from the middle of two multiples."""
    digits = round(-math.log10(resolution))
    step = Fraction(10) ** -digits
    step = step if abs(float(step) - resolution) < 1e-12 else Fraction(resolution)
    tie = (math.floor(Fraction(value) / step) + Fraction(1, 2)) * step
    return bool(abs(Fraction(value) - tie) <= ULPS * Fraction(float(np.spacing(value))))


def near_whole(ratio: float) -> bool:
    """Whether a ratio is within a few units of its last place of a whole number."""
    return bool(abs(ratio - round(ratio)) <= ULPS * np.spacing(ratio))
