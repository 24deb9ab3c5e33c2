"""The named scenarios: the table of known values, and the reference's own objects."""

from __future__ import annotations

import pytest

import mlsysim_sweep as ms
from tests.parity.reference import MLSYSIM, answers, columns, compare

# GPT-3 175B on H100s: step time in s, efficiency, bubble, state and ZeRO-1 state per device in GB.
KNOWN = {
    "Gpt3DataParallel1K": ((1, 1, 1024, 1), 14.0, 0.15, 0, 2800, 702.050781),
    "Gpt3TensorDataParallel1K": ((8, 1, 128, 1), 2.5375, 0.8275862068965517, 0, 350, 89.5507812),
    "Gpt3ThreeDParallel1K": (
        (8, 4, 32, 32),
        2.40625,
        0.8727272727272728,
        0.08571428571428572,
        87.5,
        23.9257812,
    ),
}
NAMES = (*KNOWN, "Gpt3ThreeDParallel16K")


@pytest.mark.parametrize("name", KNOWN)
def test_known_values(name: str) -> None:
    scenario = getattr(ms.Scenarios, name)
    layout, step, efficiency, bubble, state, zero1 = KNOWN[name]
    found = scenario.result
    sizes = (scenario.tp_size, scenario.pp_size, scenario.dp_size, scenario.microbatches)
    assert sizes == layout
    assert found.step_time.m_as("s") == pytest.approx(step, rel=1e-15)
    assert (found.efficiency, found.bubble) == pytest.approx((efficiency, bubble), rel=1e-15)
    assert found.state_per_device.m_as("GB") == pytest.approx(state, rel=1e-15)
    assert found.zero1_state_per_device.m_as("GB") == pytest.approx(zero1, rel=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_named_scenario_is_the_references(name: str) -> None:
    ours, theirs = getattr(ms.Scenarios, name), getattr(MLSYSIM.Scenarios, name)
    for scenario in (ours, ms.from_mlsysim(theirs)):
        ties = compare(columns([scenario.result]), *answers([theirs]))
        assert set(ties.values()) == {0}
        assert type(scenario.n_devices) is int
        assert scenario.n_devices == theirs.n_devices == scenario.result.n_devices
        assert scenario.result.min_devices_for_state == 35
    assert (ours.gradient_precision, ours.precision) == ("fp16", "fp8")


def test_a_budget_of_80_gib_needs_two_devices_fewer_than_one_of_80_gb() -> None:
    by_registry = MLSYSIM.Hardware.Cloud.H100.memory.capacity
    scenario = ms.Scenarios.Gpt3DataParallel1K.variant(device_memory=by_registry)
    assert scenario.result.min_devices_for_state == 33


def test_the_fewest_devices_are_a_strict_ceiling() -> None:
    scenario = ms.Scenarios.Gpt3DataParallel1K.variant(device_memory="1399.9999999 GB")
    assert scenario.result.min_devices_for_state == 3
    assert scenario.variant(device_memory=None).result.min_devices_for_state is None


def test_one_device_still_reduces() -> None:
    found = ms.Scenarios.Gpt3DataParallel1K.variant(dp_size=1, window_resolution=None).result
    assert (found.ring_bytes.magnitude, found.allreduce_time.m_as("s")) == (0, 14)
    assert found.efficiency == pytest.approx(0.99835, abs=5e-6)


def test_a_window_that_rounds_to_zero_leaves_a_step_of_communication() -> None:
    found = ms.Scenarios.Gpt3DataParallel1K.variant(dp_size=65_536).result
    assert (found.compute_time.magnitude, found.efficiency) == (0, 0)
    assert found.step_time == found.allreduce_time


def test_variant_refuses_unknown_names() -> None:
    with pytest.raises(ms.Mistake, match=r'unknown field "tpsize"; did you mean "tp_size"\?'):
        ms.Scenarios.Gpt3DataParallel1K.variant(tpsize=1)
