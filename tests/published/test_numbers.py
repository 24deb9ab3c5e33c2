"""Numbers that others have printed. A new formula adds one row here.

A row is the quantity, what it follows from, the number as printed, and where. The printed digits
are the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.kernels import MODELS, model
from tests.laws.registry import evaluated

ZERO = "Rajbhandari et al. 2020, arXiv:1910.02054"
MEGATRON = "Narayanan et al. 2021, arXiv:2104.04473"
GPT3 = "Brown et al. 2020, arXiv:2005.14165, table D.1"
LLAMA3 = "Grattafiori et al. 2024, arXiv:2407.21783, sec. 3.2"
PALM = "Chowdhery et al. 2022, arXiv:2204.02311, sec. 4.1"
NCCL = "nccl-tests, doc/PERFORMANCE.md: the factor of an all-reduce, 2 (n-1)/n"
GPIPE = "Huang et al. 2019, arXiv:1811.06965, sec. 2.3: (K-1)/(M+K-1)"
TEXTBOOK = "mlsysim 0.3.0, Scenarios.Gpt3ThreeDParallel1K"

DAY, GB = 86_400.0, 1e9
ADAM = {"replicated_bytes_per_param": 4, "optimizer_bytes_per_param": 12, "tp": 1, "pp": 1}
ONE = {"tp": 1, "pp": 1, "dp": 1}
LAYOUT = {
    **ADAM,
    **{"tp": 8, "pp": 4, "dp": 32, "microbatches": 32, "parameters": 175e9, "batch_tokens": 2e6},
    **{"flops_per_param_token": 6, "peak_flops": 1979e12, "local_efficiency": 0.5},
    **{"link_bandwidth": 50e9, "overlap_fraction": 0.75, "gradient_bytes_per_param": 2},
    **{"window_resolution": 0.1, "device_memory": 80e9},
}


def training_days(parameters: float, tokens: float, devices: int, reached: float) -> dict[str, Any]:
    """A whole training as one step, activations recomputed: 8 FLOPs a parameter and token."""
    work = {"parameters": parameters, "batch_tokens": tokens, "flops_per_param_token": 8}
    return {
        **ONE,
        **work,
        "dp": devices,
        "peak_flops": 312e12,
        "local_efficiency": reached / 312e12,
    }


def work(parameters: float, tokens: float) -> dict[str, float]:
    return {"parameters": parameters, "batch_tokens": tokens, "flops_per_param_token": 6}


Row = tuple[str, Mapping[str, Any], float, float, str]
ROWS: tuple[Row, ...] = (
    # quantity, given, printed, half a unit of the last digit printed, where
    ("state_total", {**ADAM, "parameters": 7.5e9}, 120 * GB, 0.5 * GB, f"{ZERO}, fig. 1"),
    ("state_total", {**ADAM, "parameters": 1.5e9}, 24 * GB, 0.5 * GB, f"{ZERO}, sec. 3.1"),
    ("step_flops", work(174.6e9, 300e9), 3.14e23, 0.005e23, GPT3),
    ("step_flops", work(12.85e9, 300e9), 2.31e22, 0.005e22, GPT3),
    ("step_flops", work(405e9, 15.6e12), 3.8e25, 0.05e25, LLAMA3),
    ("compute_time", training_days(175e9, 300e9, 1024, 140e12), 34 * DAY, DAY / 2, MEGATRON),
    ("compute_time", training_days(1.008e12, 450e9, 3072, 163e12), 84 * DAY, DAY / 2, MEGATRON),
    ("ring_bytes", {"dp_shard": 1.0, "dp": 8}, 1.75, 0, NCCL),
    ("ring_bytes", {"dp_shard": 1.0, "dp": 2}, 1.0, 0, NCCL),
    ("ring_correction", {"finite_ring": 1, "dp": 8}, 1 - 1.75 / 2, 0, NCCL),
    ("bubble", {"pp": 4, "microbatches": 16}, 3 / 19, 1e-15, GPIPE),
    ("n_devices", LAYOUT, 1024, 0, TEXTBOOK),
    ("gradient_bytes", LAYOUT, 350 * GB, 0, TEXTBOOK),
    ("dp_shard", LAYOUT, 10.9375 * GB, 0, TEXTBOOK),
    ("allreduce_time", LAYOUT, 0.4375, 0, TEXTBOOK),
    ("hidden_time", LAYOUT, 0.328125, 0, TEXTBOOK),
    ("exposed_time", LAYOUT, 0.109375, 0, TEXTBOOK),
    ("overlap_share", LAYOUT, 0.75, 0, TEXTBOOK),
    ("bubble", LAYOUT, 0.0857142857, 5e-11, TEXTBOOK),
    ("step_time", LAYOUT, 2.40625, 1e-15, TEXTBOOK),
    ("efficiency", LAYOUT, 0.8727272727, 5e-11, TEXTBOOK),
    ("efficiency_no_overlap", LAYOUT, 0.768, 1e-15, TEXTBOOK),
    ("fleet_mfu", LAYOUT, 0.4363636364, 5e-11, TEXTBOOK),
    ("double_counted_mfu", LAYOUT, 0.3808264463, 5e-11, TEXTBOOK),
    ("state_per_device", LAYOUT, 87.5 * GB, 0, TEXTBOOK),
    ("zero1_state_per_device", LAYOUT, 23.92578125 * GB, 0, TEXTBOOK),
    ("min_devices_for_state", LAYOUT, 35, 0, TEXTBOOK),
)
OWNER = model("parallel_layout")


@pytest.mark.parametrize(("name", "given", "printed", "tolerance", "where"), ROWS)
def test_printed(
    name: str, given: Mapping[str, Any], printed: float, tolerance: float, where: str
) -> None:
    assert abs(evaluated(OWNER, given)[name] - printed) <= tolerance, where


@pytest.mark.parametrize("name", MODELS)
def test_every_output_has_a_row(name: str) -> None:
    assert set(model(name).outputs) <= {row[0] for row in ROWS}


# ZeRO table 1, P_os: GB a device by data-parallel degree, digits that are not printed cut off.
ZERO_1: dict[float, dict[int, float]] = {
    7.5e9: {1: 120, 4: 52.5, 16: 35.6, 64: 31.4, 256: 30.4, 1024: 30.1},
    128e9: {1: 2048, 4: 896, 16: 608, 64: 536, 256: 518, 1024: 513},
    1e12: {1: 16000, 4: 7000, 16: 4750, 64: 4187, 256: 4046, 1024: 4011},
}


@pytest.mark.parametrize("parameters", ZERO_1)
def test_zero_table_1(parameters: float) -> None:
    for dp, printed in ZERO_1[parameters].items():
        given = {**ADAM, "parameters": parameters, "dp": dp}
        found = evaluated(OWNER, given)["zero1_state_per_device"] / GB
        digit = 0.1 if parameters == 7.5e9 else 1
        assert abs(found - printed) < digit, (dp, ZERO)


@pytest.mark.parametrize(("devices", "batch"), [(32, 32), (32, 128), (128, 128), (128, 512)])
def test_megatron_bubble_against_data_parallel_size(devices: int, batch: int) -> None:
    """Sec. 3.3.1, figure 6: of the ideal time, (p-1)/m = (n-d)/b' with p = n/d and m = b'/d."""
    for dp in (1, 2, 4, 8, 16, 32):
        given = {"pp": devices // dp, "microbatches": batch // dp}
        bubble = evaluated(OWNER, given)["bubble"]
        assert bubble / (1 - bubble) == pytest.approx((devices - dp) / batch, rel=1e-14), MEGATRON


def test_palm_throughput_and_utilization() -> None:
    """238.3K tokens/s on 6,144 chips of 275 TFLOP/s are an MFU of 45.7 % without attention."""
    step = ms.ParallelLayoutScenario(
        name="PaLM",
        description=PALM,
        workload="PaLM-540B",
        dp_size=6144,
        batch_tokens=238.3e3,
        flops_per_param_token=6,
        accelerator="TPUv4",
        precision="bf16",
        local_efficiency=0.457,
        link_bandwidth="1000000 GB/s",
        overlap_fraction=1,
    ).result
    assert step.step_time.m_as("s") == pytest.approx(1, abs=0.002)
    assert step.fleet_mfu == pytest.approx(0.457, abs=0.0005)
