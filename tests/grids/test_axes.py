"""Axes: every form, its ends, its order, its length; and what is no axis."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlsysim_sweep as ms
from mlsysim_sweep import units
from mlsysim_sweep.grids import axes
from mlsysim_sweep.grids.axes import LONGEST_AXIS, make_labels, read_axis
from tests.asking import sweep


def labels(name: str, form: Any) -> list[Any]:
    return make_labels([read_axis(name, form)])[name].tolist()  # type: ignore[no-any-return]


FORMS: list[tuple[str, Any, list[Any]]] = [
    ("tp", [8, 1, 4], [8, 1, 4]),
    ("tp", (8, 1.0, 1e3), [8, 1, 1000]),
    ("tp", range(2, 9, 3), [2, 5, 8]),
    ("tp", np.array([3, 1], np.uint8), [3, 1]),
    ("tp", pd.Series([3, 1], index=[7, 9]), [3, 1]),
    ("tp", pd.Index([3, 1]), [3, 1]),
    ("tp", {"powers_of_two": [1, 8]}, [1, 2, 4, 8]),
    ("tp", {"powers_of_two": [3, 20]}, [4, 8, 16]),
    ("tp", {"powers_of_two": (1, 1e2)}, [1, 2, 4, 8, 16, 32, 64]),
    ("pp", {"divisors_of": 96}, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96]),
    ("pp", {"divisors_of": 97}, [1, 97]),
    ("pp", {"divisors_of": 49}, [1, 7, 49]),
    ("dp", {"range": [1, 4]}, [1, 2, 3, 4]),
    ("dp", {"range": [4, 4]}, [4]),
    ("dp", {"range": [8, 30, 8]}, [8, 16, 24]),
    ("dp", {"range": [8, 32, 8]}, [8, 16, 24, 32]),
    ("dp", {"linspace": [1, 9, 3]}, [1, 5, 9]),
    ("dp", {"linspace": [9, 1, 3]}, [9, 5, 1]),
    ("dp", {"linspace": [1, 3, 9]}, [1, 2, 3]),
    ("dp", {"geomspace": [1, 1024, 11]}, [2**i for i in range(11)]),
    ("dp", {"geomspace": [1000, 1, 4]}, [1000, 100, 10, 1]),
    ("dp", {"geomspace": [1, 8, 40]}, [1, 2, 3, 4, 5, 6, 7, 8]),
    ("local_efficiency", {"range": [0.1, 0.7, 0.1]}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
    ("local_efficiency", {"linspace": [0.3, 0.6, 4]}, [0.3, 0.4, 0.5, 0.6]),
    ("local_efficiency", {"linspace": [0.6, 0.3, 2]}, [0.6, 0.3]),
    ("local_efficiency", ["50 %", 0.25], [0.5, 0.25]),
    ("overlap_fraction", {"range": [0, 1, 0.25]}, [0, 0.25, 0.5, 0.75, 1]),
    ("batch_tokens", {"range": [1e6, 3e6, 1e6]}, [1e6, 2e6, 3e6]),
    (
        "link_bandwidth",
        {"range": ["100 Gbps", "50 GB/s", "12.5 GB/s"]},
        [12.5e9, 25e9, 37.5e9, 50e9],
    ),
    ("link_bandwidth", {"linspace": ["100 Gbps", "400 Gbps", 2]}, [12.5e9, 50e9]),
    ("window_resolution", {"range": ["1 ms", "3 ms", "1 ms"]}, [0.001, 0.002, 0.003]),
    ("device_memory", {"linspace": ["80 GB", "160 GB", 2]}, [80e9, 160e9]),
    ("accelerator", ["H100", "A100-80GB"], ["H100", "A100-80GB"]),
]


@pytest.mark.parametrize(("name", "form", "expected"), FORMS)
def test_forms(name: str, form: Any, expected: list[Any]) -> None:
    assert read_axis(name, form).count == len(expected)
    assert labels(name, form) == expected

    assert read_axis(name, form).make().dtype in (np.int64, np.float64, object)


def test_geomspace_with_units() -> None:
    found = labels("link_bandwidth", {"geomspace": ["100 Gbps", "1600 Gbps", 3]})
    assert found == pytest.approx([12.5e9, 50e9, 200e9], rel=1e-15)


BAD: list[tuple[str, Any, str]] = [
    ("tp", [], "tp: an empty axis; needed: at least one value"),
    ("tp", np.array([]), "tp: an empty axis"),
    (
        "tp",
        {"range": [1024, 1]},
        "tp: range = [1024, 1] ends before it starts; needed: the smaller end first; "
        "for example tp = { range = [1, 1024] }",
    ),
    ("tp", {"range": [9, 1, 2]}, "for example tp = { range = [1, 9, 2] }"),
    ("tp", {"powers_of_two": [8, 1]}, "tp: powers_of_two = [8, 1] ends before it starts"),
    (
        "tp",
        {"powers_of_two": [5, 7]},
        "tp: no power of two from 5 to 7; needed: at least one value; "
        "for example tp = { powers_of_two = [1, 64] }",
    ),
    (
        "link_bandwidth",
        ["80 GB"],
        "link_bandwidth: \"80 GB\": 'GB' is not a unit of bandwidth; "
        'for example link_bandwidth = "400 Gbps" or "50 GB/s"',
    ),
    ("devices_per_node", [0], "to 9007199254740992; for example devices_per_node = 8"),
    ("tp", 8, "tp: 8 given; needed: a list of values or a form; for example tp = [8]"),
    ("tp", "1,2", 'tp: "1,2" given; needed: a list of values or a form; for example tp = ["1,2"]'),
    ("tp", None, "tp: nothing given; needed: a list of values or a form"),
    ("tp", {1, 2}, "tp: {1, 2} given; needed: a list"),
    ("tp", iter([1]), "tp: <list_iterator"),
    ("tp", np.array(8), "tp: array(8) given; needed: a list"),
    ("tp", np.ones((2, 2)), "tp: array([[1., 1.], [1., 1.]]) given; needed: a list"),
    ("tp", [[1, 2]], "tp: [1, 2] given; needed: a whole number"),
    ("tp", [1, True], "tp: true given at position 1; needed: a whole number"),
    ("tp", np.array([True, False]), "tp: true given at position 0"),
    ("tp", np.array(["1", "2"]), 'tp: "1" given at position 0'),
    ("tp", [1, "2"], 'tp: "2" given at position 1'),
    ("tp", [4, 1, 4], "tp: 4 is given twice; needed: each value once"),
    ("tp", [1, 1.0], "tp: 1 is given twice"),
    ("link_bandwidth", ["400 Gbps", "50 GB/s"], "link_bandwidth: 50000000000 is given twice"),
    (
        "link_bandwidth",
        ["400 Gbps", 5e10],
        "link_bandwidth: 50000000000 at position 1: a number without a unit",
    ),
    ("link_bandwidth", np.array([5e10]), "link_bandwidth: 50000000000: a number without a unit"),
    ("link_bandwidth", {"range": [1e9, 2e9, 1e9]}, "1000000000: a number without a unit"),
    ("link_bandwidth", {"range": ["1 GB/s", "2 GB/s"]}, "needed: a step as third value"),
    ("accelerator", ["H100", 5], "accelerator: 5 given at position 1; needed: a name"),
    ("accelerator", "H100", 'for example accelerator = ["H100"]'),
    ("accelerator", {"range": [1, 2]}, "accelerator: range given; needed: a list of names"),
    ("tp", {}, "tp: {} given; needed: one form"),
    ("tp", {"range": [1, 2], "linspace": [1, 2, 2]}, "needed: one form"),
    (
        "tp",
        {"rnage": [1, 2]},
        'tp: unknown "rnage"; did you mean "range"?; needed: one of powers_of_two',
    ),
    ("tp", {"range": 5}, "tp: range = 5 given; needed: { range = [1, 1024] }"),
    ("tp", {"range": [1]}, "tp: range = [1] given"),
    ("tp", {"range": [1, 2, 3, 4]}, "tp: range = [1, 2, 3, 4] given"),
    ("tp", {"range": [1, 9, 0]}, "tp: range: a step of 0 given; needed: a step above 0"),
    ("tp", {"range": [9, 1, -1]}, "tp: range: a step of -1 given"),
    ("tp", {"range": [1.5, 3]}, "tp: 1.5 given at position 0; needed: a whole number"),
    ("tp", {"range": [0, 3]}, "tp: 0 given at position 0; needed: a whole number"),
    ("tp", {"range": ["1", "3"]}, 'tp: "1" given'),
    ("tp", {"range": [1, math.nan]}, "tp: nan given"),
    ("tp", {"powers_of_two": [1]}, "tp: powers_of_two = [1] given"),
    ("tp", {"powers_of_two": [1, 2.5]}, "tp: powers_of_two: 2.5 given"),
    ("tp", {"powers_of_two": [0, 8]}, "tp: powers_of_two: 0 given"),
    ("tp", {"powers_of_two": [1, True]}, "tp: powers_of_two: true given"),
    ("tp", {"divisors_of": [96]}, "tp: divisors_of: [96] given; needed: { divisors_of = 96 }"),
    (
        "tp",
        {"divisors_of": 10**13},
        "tp: divisors_of: 10000000000000 given; needed: a number up to 10^12",
    ),
    ("tp", {"divisors_of": math.inf}, "tp: divisors_of: inf given"),
    ("tp", {"linspace": [1, 9, 0]}, "tp: linspace: 0 given"),
    ("tp", {"linspace": [1, 9, 2.5]}, "tp: linspace: 2.5 given"),
    ("tp", {"linspace": [-5, 5, 3]}, "tp: -5 given; needed: a whole number"),
    ("tp", {"linspace": [1, 1e300, 3]}, "tp: 1e+300 given; needed: a whole number"),
    ("tp", {"geomspace": [0, 9, 3]}, "tp: 0 given; needed: a whole number"),
    ("overlap_fraction", {"geomspace": [0, 1, 3]}, "needed: ends above 0"),
    ("local_efficiency", {"powers_of_two": [1, 8]}, "needed: linspace or geomspace for this input"),
    ("local_efficiency", {"divisors_of": 8}, "needed: linspace or geomspace for this input"),
    (
        "local_efficiency",
        {"linspace": [0, 1, 3]},
        "local_efficiency: 0 given at position 0; needed: a number in (0, 1]",
    ),
    (
        "local_efficiency",
        {"linspace": [0.5, 1.5, 3]},
        "local_efficiency: 1.5 given; needed: a number in (0, 1]",
    ),
    (
        "device_memory",
        {"range": ["1 GB", "1e300 ZB", "1 GB"]},
        "outside the range of numbers understood",
    ),
    # Too long: said before any value is made.
    (
        "tp",
        {"range": [1, 2**53]},
        "tp: 9,007,199,254,740,992 values; needed: at most 100,000,000 on one axis",
    ),
    (
        "tp",
        {"linspace": [1, 2**53, 10**7]},
        "linspace: 10,000,000 values given; needed: at most 1,000,000 whole numbers",
    ),
    ("local_efficiency", {"range": [0, 1, 1e-30]}, f"{10**30 + 1:,} values; needed: at most"),
    (
        "local_efficiency",
        {"linspace": [0.1, 1, 10**12]},
        "1,000,000,000,000 values; needed: at most",
    ),
    ("tp", range(1, 10**12), "999,999,999,999 values; needed: at most"),
]


@pytest.mark.parametrize(("name", "form", "said"), BAD, ids=range(len(BAD)))
def test_refused(name: str, form: Any, said: str) -> None:
    with pytest.raises(ms.Mistake) as caught:
        labels(name, form)
    assert said in str(caught.value)
    assert caught.value.field == name
    with pytest.raises(ms.Mistake, match=name):
        sweep(axes={name: form})


DECIMALS = st.decimals("0.001", "0.9", allow_nan=False, places=3)


@given(first=DECIMALS, step=DECIMALS, count=st.integers(1, 400))
def test_ranges_are_the_decimals_that_people_write(first: Any, step: Any, count: int) -> None:
    last = first + (count - 1) * step
    found = labels("batch_tokens", {"range": [float(first), float(last), float(step)]})
    assert found == [float(first + k * step) for k in range(count)]


@given(st.floats(1e-6, 1), st.floats(1e-6, 1), st.floats(1e-5, 1))
def test_ranges_of_any_floats_keep_to_their_ends(one: float, other: float, step: float) -> None:
    first, last = sorted((one, other))
    asked = read_axis("batch_tokens", {"range": [first, last, step]})
    values = asked.make()
    assert len(values) == asked.count
    assert values[0] == first
    assert values[-1] <= last * (1 + 1e-12)
    assert last - values[-1] < step * (1 + 1e-9)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 1000), st.booleans())
def test_spaces_have_both_ends(one: int, other: int, count: int, is_geometric: bool) -> None:
    form = "geomspace" if is_geometric else "linspace"
    values = labels("dp", {form: [one, other, max(count, 2)]})
    assert values[0] == one and values[-1] == other
    assert values == sorted(set(values), reverse=one > other)
    assert len(values) <= max(count, 2)


@given(st.integers(1, 10**6))
def test_divisors_divide(whole: int) -> None:
    values = labels("pp", {"divisors_of": whole})
    assert all(whole % value == 0 for value in values)
    assert values == sorted({whole // value for value in values})


@pytest.mark.parametrize(
    "registry", [pint.UnitRegistry(), units.registry(), units.array_registry()]
)
def test_pint_arrays(registry: Any) -> None:
    assert labels("link_bandwidth", registry.Quantity([100.0, 400.0], "Gbps")) == [12.5e9, 50e9]
    assert labels("link_bandwidth", [registry.Quantity(100, "Gbps"), "400 Gbps"]) == [12.5e9, 50e9]
    for wrong in ("second", "degree_Celsius"):
        with pytest.raises(ms.Mistake, match=r"^link_bandwidth: .* for example link_bandwidth = "):
            labels("link_bandwidth", registry.Quantity([1.0, 2.0], wrong))
    with pytest.raises(ms.Mistake, match=r"^link_bandwidth: .* given at position 1; needed"):
        labels("link_bandwidth", registry.Quantity([1.0, math.nan], "Gbps"))
    with pytest.raises(ms.Mistake, match=r"^link_bandwidth: .* given; needed: a list"):
        labels("link_bandwidth", registry.Quantity(1.0, "Gbps"))


def test_lists_and_arrays_may_change_afterwards() -> None:
    sizes, replicas = [1, 2, 4], np.array([8, 16])
    asked = sweep(axes={"tp": sizes, "dp": replicas}, feasible={"memory": "off"})
    sizes.append(8)
    replicas[:] = 0
    assert asked.table()["tp"].unique().tolist() == [1, 2, 4]
    assert asked.variant({"pp": 8}).sizes == {"tp": 3, "dp": 2}
    assert asked.spec["axes"] == {"tp": [1, 2, 4], "dp": [8, 16]}


def test_a_long_list_is_read_at_c_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> None:
        raise AssertionError("one by one")

    monkeypatch.setattr(axes, "_one_number", no)
    count = 10**6
    for values in (list(range(1, count + 1)), range(1, count + 1), np.arange(1, count + 1)):
        made = read_axis("dp", values).make()
        assert made.dtype == np.int64 and made[-1] == count
    assert read_axis("batch_tokens", [1.5 + i for i in range(1000)]).make()[-1] == 1000.5


def test_ten_million_values_cost_a_few_arrays() -> None:
    count = 10**7
    tracemalloc.start()
    made = make_labels([read_axis("dp", {"range": [1, count]})])["dp"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made[0] == 1 and made[-1] == count == len(made)
    assert peak < 4 * 8 * count
    assert count <= LONGEST_AXIS


def test_counting_makes_nothing() -> None:
    tracemalloc.start()
    counts = [
        read_axis("dp", {"range": [1, 10**8]}).count,
        read_axis("local_efficiency", {"linspace": [0.1, 1, 10**8]}).count,
        read_axis("dp", range(1, 10**8 + 1)).count,
    ]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counts == [10**8] * 3
    assert peak < 10**5


def test_a_range_counts_exactly() -> None:
    for first, last, step in ((1, 2**53 - 1, 1), (1, 2**52, 3), (7, 10**15, 10**3)):
        expected = (last - first) // step + 1
        with pytest.raises(ms.Mistake, match=f"{expected:,} values"):
            read_axis("dp", {"range": [first, last, step]})
