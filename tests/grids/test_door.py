"""Refused at the door, naming the field: the table of PARITY.md, by scenario and by sweep."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.errors import shown
from tests.asking import scenario, sweep

SIZES = ("tp", "pp", "dp", "microbatches")
FIELDS = {"tp": "tp_size", "pp": "pp_size", "dp": "dp_size"}
WHOLE = "a whole number from 1 to 9007199254740992"

NOT_SIZES: list[tuple[object, str]] = [
    (0, "0 given"),
    (-1, "-1 given"),
    (2.5, "2.5 given"),
    (math.nan, "nan given"),
    (math.inf, "inf given"),
    (True, "true given"),
    (np.True_, "true given"),
    ("8", '"8" given'),
    ("eight", '"eight" given'),
    (b"8", "b'8' given"),
    (8 + 0j, "(8+0j) given"),
    (datetime.date(2024, 1, 1), "2024-01-01 given"),
    (Decimal("nan"), "Decimal('NaN') given"),
    (2**53 + 1, "9007199254740993 given"),
    (2**64, "18446744073709551616 given"),
    (10**400, "1000000000000000000000000000000000000"),
    (np.float32(2.5), "2.5 given"),
    (np.int8(-8), "-8 given"),
    (object, "<class 'object'> given"),
]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(("value", "said"), NOT_SIZES, ids=lambda value: repr(value)[:30])
def test_sizes(name: str, value: Any, said: str) -> None:
    field = FIELDS.get(name, name)
    with pytest.raises(ms.Mistake) as caught:
        scenario(**{field: value})
    assert str(caught.value).startswith(f"{field}: {said}")
    assert str(caught.value).endswith(f"needed: {WHOLE}; for example {field} = 8")
    assert caught.value.field == field
    with pytest.raises(ms.Mistake) as caught:
        sweep({name: value})
    assert str(caught.value).startswith(f"inputs.{name}: {said}")
    assert str(caught.value).endswith(f"needed: {WHOLE}; for example {name} = 8")
    with pytest.raises(ms.Mistake) as caught:
        sweep(axes={name: [1, value, 4]})
    assert str(caught.value).startswith(f"{name}: {said}")
    assert f"at position 1; needed: {WHOLE}" in str(caught.value)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [8.0, 1e3, np.int8(8), np.uint64(8), np.float32(8), 2**30])
def test_exact_sizes_of_any_type_are_taken(name: str, value: Any) -> None:
    asked = sweep(
        {"tp": 1, "pp": 1, "dp": 1, name: value},
        feasible={"memory": "off", "tp_within_node": False},
    )
    found = asked.arrow()
    assert asked.grid.fields[name].values.dtype == np.int64
    assert asked.grid.fields[name].values == int(value)
    if name != "microbatches":
        assert found["n_devices"].to_pylist() == [int(value)]


@pytest.mark.parametrize(
    ("sizes", "product"),
    [
        ({"tp": 2**32, "pp": 2**32}, 2**69),
        ({"tp": 2**21, "pp": 2**21, "dp": 2**21}, 2**63),
        ({"tp": 65536, "pp": 65536, "dp": 2**53}, 2**85),
    ],
)
def test_products_that_leave_int64(sizes: dict[str, int], product: int) -> None:
    with pytest.raises(ms.Mistake) as caught:
        sweep(sizes)
    said = f"tp x pp x dp: a product of {product:,}, which exceeds 2^63 - 1"
    assert str(caught.value).startswith(said)
    with pytest.raises(ms.Mistake) as caught:
        scenario(**{FIELDS[name]: value for name, value in sizes.items()})
    assert str(caught.value).startswith(said.replace("tp x pp x dp", "tp_size x pp_size x dp_size"))
    axes = {name: np.array([1, value]) for name, value in sizes.items()}
    with pytest.raises(ms.Mistake, match=r"tp x pp x dp: a product of"):
        sweep(axes=axes)


def test_products_of_derived_sizes_that_leave_int64() -> None:
    with pytest.raises(ms.Mistake, match=r"dp x microbatch_size x seq_len: a product of .*2\^63"):
        sweep(
            {"dp": 2**20, "microbatch_size": 2**30, "seq_len": 2**30, "tp": 8, "pp": 1},
            without=["microbatches"],
        )
    with pytest.raises(ms.Mistake, match=r"dp x microbatch_tokens: a product of"):
        sweep({"dp": 2**40, "microbatch_tokens": 2**30}, without=["microbatches"])


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int16, np.int32, np.uint8, np.uint32, np.uint64, np.float32]
)
def test_narrow_arrays_give_the_int64_result(dtype: type) -> None:
    values: Any = np.array([64, 120], dtype)
    asked = sweep(
        axes={"tp": values, "pp": values, "dp": values},
        feasible={"memory": "off", "tp_within_node": False},
    )
    assert asked.table()["n_devices"].max() == 120**3
    assert asked.dataset()["n_devices"].dtype == np.int64


# A real input, its name, values that are refused, and what the message says is needed.
POSITIVE = "a number in [1e-30, 1e+30]"
REALS: list[tuple[str, tuple[object, ...], str]] = [
    ("batch_tokens", (0, -1, math.nan, math.inf, "nan token", "0 token", 1e31), "2e6"),
    ("flops_per_param_token", (0, -6, math.nan, math.inf), "6"),
    ("local_efficiency", (0, 0.0, -0.5, 1.0000001, 2, math.nan, math.inf, "0 %", "101 %"), "0.5"),
    ("overlap_fraction", (-0.01, 1.01, math.nan, math.inf, "-1 %", "200 %"), "0.5"),
    (
        "link_bandwidth",
        ("0 Gbps", "-1 GB/s", "nan GB/s", "inf GB/s", "1e400 GB/s", "1e300 ZB/s"),
        '"400 Gbps"',
    ),
    ("device_memory", ("0 GB", "-80 GB", "nan GB", "1e29 TB"), '"80 GB"'),
    ("window_resolution", ("0 s", "-0.1 s", "nan s", "inf s", "1e-23 s", "1e23 s"), '"0.1 s"'),
    ("peak_flops", ("0 TFLOP/s", "-1 TFLOP/s", "nan FLOP/s"), '"989 TFLOP/s"'),
    ("parameters", (0, -1, math.nan, math.inf), "175e9"),
]
NOT_IN_A_SCENARIO = {"peak_flops", "parameters"}


@pytest.mark.parametrize(
    ("name", "value", "example"),
    [(name, value, example) for name, values, example in REALS for value in values],
)
def test_reals(name: str, value: Any, example: str) -> None:
    with pytest.raises(ms.Mistake) as caught:
        sweep({name: value})
    said = str(caught.value)
    assert said.startswith(f"inputs.{name}: ")
    assert (shown(value) if isinstance(value, float) else str(value)) in said
    assert f"for example {name} = {example}" in said
    with pytest.raises(ms.Mistake, match=f"^{name}: "):
        sweep(axes={name: [value]})
    if name not in NOT_IN_A_SCENARIO:
        with pytest.raises(ms.Mistake) as caught:
            scenario(**{name: value})
        assert str(caught.value) == said.removeprefix("inputs.")


def test_ranges_are_said() -> None:
    said = {
        "local_efficiency": "needed: a number in (0, 1]",
        "overlap_fraction": "needed: a number in [0, 1]",
        "batch_tokens": "needed: a number in [1e-30, 1e+30]",
    }
    for name, needed in said.items():
        with pytest.raises(ms.Mistake) as caught:
            scenario(**{name: -1})
        assert needed in str(caught.value)
    for name, edge in (("local_efficiency", 1), ("overlap_fraction", 0), ("overlap_fraction", 1.0)):
        assert scenario(**{name: edge}).result.efficiency > 0


BARE = {
    "device_memory": (
        80e9,
        'a number without a unit; for example device_memory = "80 GB" or "80 GiB"',
    ),
    "link_bandwidth": (
        50e9,
        'a number without a unit; for example link_bandwidth = "400 Gbps" or "50 GB/s"',
    ),
    "window_resolution": (0.1, 'a number without a unit; for example window_resolution = "0.1 s"'),
}
WRONG_UNIT = {
    "device_memory": ("80 s", "'s' is not a unit of memory"),
    "link_bandwidth": ("400 GHz", "unknown unit 'GHz'"),
    "window_resolution": ("0.1 GB", "'GB' is not a unit of time"),
    "batch_tokens": ("2e6 byte", "'byte' is not a unit of tokens"),
    "local_efficiency": ("0.5 s", "'s' is not a unit of plain numbers"),
    "flops_per_param_token": ("6 flop", "'flop' is not a unit of"),
}


@pytest.mark.parametrize(("name", "given"), [*BARE.items(), *WRONG_UNIT.items()])
def test_units(name: str, given: tuple[object, str]) -> None:
    value, said = given
    with pytest.raises(ms.Mistake) as caught:
        scenario(**{name: value})
    assert str(caught.value).startswith(f"{name}: ")
    assert said in str(caught.value) and f"; for example {name} = " in str(caught.value)
    for asked in ({"inputs": {name: value}}, {"axes": {name: [value]}}):
        with pytest.raises(ms.Mistake) as caught:
            sweep(**asked)
        assert said in str(caught.value)


PRECISIONS = "fp32, tf32, fp16, bf16, fp8, fp4, int8"


@pytest.mark.parametrize(
    ("accelerator", "precision", "said"),
    [
        ("H100", "fp17", f'unknown "fp17"; did you mean "fp16"?; needed: one of {PRECISIONS}'),
        ("H100", "int4", f'unknown "int4"; did you mean "int8"?; needed: one of {PRECISIONS}'),
        ("H100", "FP8", 'unknown "FP8"; did you mean "fp8"?'),
        (
            "H100",
            "fp4",
            '"fp4": no peak for it on H100; needed: one of bf16, fp16, fp32, fp8, int8, tf32',
        ),
        ("A100-80GB", "fp8", '"fp8": no peak for it on A100-80GB; needed: one of'),
        ("H100", 8, "8 given at position 0"),
    ],
)
def test_precisions(accelerator: str, precision: Any, said: str) -> None:
    with pytest.raises(ms.Mistake) as caught:
        scenario(accelerator=accelerator, precision=precision)
    assert str(caught.value).startswith(f"precision: {said}")
    with pytest.raises(ms.Mistake) as caught:
        sweep({"accelerator": accelerator, "precision": precision})
    assert f"precision: {said}" in str(caught.value)


def test_an_unknown_precision_is_refused_also_where_the_peak_is_given() -> None:
    with pytest.raises(ms.Mistake, match=r'^precision: unknown "fp17"'):
        sweep({"precision": "fp17", "peak_flops": "1 PFLOP/s"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("accelerator", "H10O", 'unknown "H10O"; did you mean "H100"?'),
        ("accelerator", "h100", 'unknown "h100"; did you mean "H100"?'),
        ("accelerator", "H100 SXM", 'did you mean "H100"?'),
        ("accelerator", "H1000", 'did you mean "H100"?'),
        ("accelerator", "", '"" given; needed: a name that is not empty'),
        ("workload", "GPT-3", 'did you mean "GPT3"?'),
        ("workload", "zzz", "`mlsysim-sweep list workloads`"),
        ("gradient_precision", "fp17", 'unknown "fp17"; did you mean "fp16"?'),
        ("accelerator", "a\x1b[2J", '"a\\u001b[2J" has control characters'),
    ],
)
def test_names(name: str, value: str, said: str) -> None:
    for ask in (lambda: scenario(**{name: value}), lambda: sweep({name: value})):
        with pytest.raises(ms.Mistake) as caught:
            ask()
        assert f"{name}: " in str(caught.value) and said in str(caught.value)


def test_gradient_precisions_in_any_case() -> None:
    for name, size in (("FP16", 2), ("Bf16", 2), ("INT4", 0.5), ("fp32", 4)):
        found = scenario(gradient_precision=name).result.gradient_bytes
        assert found.m_as("byte") == size * 175e9


def test_unknown_fields() -> None:
    good = scenario()
    with pytest.raises(ms.Mistake) as caught:
        good.variant(tpsize=1)
    assert str(caught.value).startswith('variant: unknown field "tpsize"; did you mean "tp_size"?')
    with pytest.raises(TypeError, match=r"tpsize"):
        scenario(tpsize=1)
    with pytest.raises(ms.Mistake, match=r'^inputs: unknown "tp_size"'):
        sweep({"tp_size": 1})
    with pytest.raises(AttributeError, match=r'no quantity \'stp_time\'; did you mean "step_time"'):
        good.result.stp_time  # noqa: B018


def test_a_scenario_is_one_layout() -> None:
    for value in ([1, 2], {"range": [1, 2]}, np.array([1, 2])):
        with pytest.raises(ms.Mistake, match=r"^tp_size: .* given; needed: one value"):
            scenario(tp_size=value)
    with pytest.raises(ms.Mistake, match=r"^name: "):
        scenario(name=" ")
    with pytest.raises(AttributeError):
        scenario().tp_size = 2  # type: ignore[misc]


def test_missing_inputs_are_named_with_an_example() -> None:
    said = {
        "batch_tokens": "batch_tokens = 2e6",
        "link_bandwidth": 'link_bandwidth = "400 Gbps"',
        "workload": 'workload = "GPT3"',
        "accelerator": 'accelerator = "H100"',
        "dp": "dp = 16",
        "local_efficiency": "local_efficiency = 0.5",
    }
    for name, example in said.items():
        with pytest.raises(ms.Mistake, match=r"missing, and \w+ depends on it") as caught:
            sweep(without=[name])
        assert f"for example {example}" in str(caught.value)
    for name in ("tp", "pp", "microbatches"):
        assert sweep(without=[name]).point().inputs[name] == 1
