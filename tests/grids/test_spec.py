"""Specs: the shape of what is asked, from TOML and from keywords, and changed copies."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlsysim_sweep as ms
from mlsysim_sweep import units
from mlsysim_sweep.catalog import bundled_table
from mlsysim_sweep.grids.schema import json_schema
from mlsysim_sweep.grids.spec import Spec, bundled, load
from tests.asking import CHIP, INPUTS, refusal, sweep

GOOD = """
[sweep]
name = "mine"
[inputs]
workload = "GPT3"
accelerator = "H100"
batch_tokens = 2e6
flops_per_param_token = 6
local_efficiency = 0.5
link_bandwidth = "400 Gbps"
overlap_fraction = 0.75
[axes]
tp = [1, 2, 4, 8]
pp = { divisors_of = 96 }
dp = [16, 32]
[feasible]
headroom = 0.9
where = ["step_time < 20 s"]
"""


# --- what is unknown or of the wrong kind --------------------------------------------------------

REFUSED: list[tuple[Mapping[str, Any], str]] = [
    ({"axis": {}}, 'unknown "axis"; did you mean "axes"?; needed: one of sweep, inputs, axes'),
    ({"feasable": {}}, 'did you mean "feasible"?'),
    ({"inputs": 5}, "inputs: 5 given; needed: a table, [inputs]"),
    ({"axes": []}, "axes: [] given; needed: a table, [axes]"),
    ({"sweep": "x"}, 'sweep: "x" given; needed: a table, [sweep]'),
    ({"output": True}, "output: true given; needed: a table"),
    ({"accelerator": "H100"}, 'accelerator: "H100" given; needed: a table'),
    ({"sweep": {"nmae": "x"}}, 'sweep: unknown "nmae"; did you mean "name"?'),
    ({"sweep": {"name": ""}}, 'sweep.name: "" given'),
    ({"sweep": {"model": "transformer"}}, 'sweep.model: unknown "transformer"'),
    ({"sweep": {"model": ["x"]}}, 'sweep.model: ["x"] given; needed: a name'),
    ({"sweep": {"max_points": 0}}, "sweep.max_points: 0 given; needed: a whole number from 1"),
    ({"sweep": {"max_points": True}}, "sweep.max_points: true given"),
    ({"sweep": {"max_points": math.inf}}, "sweep.max_points: inf given"),
    ({"sweep": {"max_points": math.nan}}, "sweep.max_points: nan given"),
    ({"sweep": {"max_points": "1e9"}}, 'sweep.max_points: "1e9" given'),
    ({"output": {"columns": "some"}}, 'output.columns: "some" given; needed: "all" or a list'),
    ({"output": {"columns": []}}, "output.columns: an empty list"),
    ({"output": {"columns": 5}}, "output.columns: 5 given"),
    ({"output": {"columns": ["tp", "tp"]}}, "output.columns: a quantity is listed twice"),
    ({"output": {"columns": [5]}}, "output.columns: [5] given"),
    ({"output": {"column": []}}, 'output: unknown "column"; did you mean "columns"?'),
    ({"inputs": {"topology": "ring"}}, 'inputs: unknown "topology"'),
    ({"inputs": {"TP": 8}}, 'inputs: unknown "TP"; did you mean "tp"?'),
    ({"inputs": {"step_time": 8}}, 'inputs: unknown "step_time"'),
    ({"axes": {"step_time": [1]}}, 'axes: unknown "step_time"'),
    ({"axes": {"point_id": [1]}}, 'axes: unknown "point_id"'),
    ({"zip": [{"tpp": [1]}]}, 'zip: unknown "tpp"; did you mean "tp"?'),
    ({"zip": 5}, "zip: 5 given; needed: [[zip]] tables"),
    ({"zip": [5]}, "zip: [5] given"),
    ({"zip": [{}]}, "zip: [{}] given"),
    (
        {"inputs": {"tp": 1}, "axes": {"tp": [1]}},
        "axes.tp: also given in [inputs]; needed: one of them",
    ),
    ({"axes": {"tp": [1]}, "zip": [{"tp": [1]}]}, "zip.tp: also given in [axes]"),
    ({"zip": [{"tp": [1]}, {"tp": [1]}]}, "zip.tp: also given in [zip]"),
    (
        {"inputs": {"dp": 1, "devices": 8}},
        "inputs.devices: given together with dp, which follows from it",
    ),
    ({"axes": {"devices": [8]}, "inputs": {"dp": 1}}, "axes.devices: given together with dp"),
    (
        {"inputs": {"microbatches": 1, "microbatch_tokens": 8}},
        "microbatch_tokens: given together with microbatches",
    ),
    (
        {"inputs": {"microbatches": 1, "microbatch_size": 8}},
        "microbatch_size: given together with microbatches",
    ),
    (
        {"inputs": {"microbatch_tokens": 1, "microbatch_size": 8}},
        "microbatch_size: given together with microbatch_tokens",
    ),
    ({"feasible": {"wher": []}}, 'feasible: unknown "wher"; did you mean "where"?'),
    ({"feasible": {"memory": "zero2"}}, 'feasible.memory: unknown "zero2"; did you mean "zero1"?'),
    ({"feasible": {"memory": False}}, "feasible.memory: false given"),
    ({"feasible": {"memory": ["off"]}}, 'feasible.memory: ["off"] given'),
    (
        {"feasible": {"headroom": 0}},
        "feasible.headroom: 0 given; needed: usable share of device memory in (0, 1]",
    ),
    ({"feasible": {"headroom": 1.1}}, "feasible.headroom: 1.1 given"),
    ({"feasible": {"headroom": math.nan}}, "feasible.headroom: nan given"),
    ({"feasible": {"headroom": "90 %"}}, 'feasible.headroom: "90 %" given'),
    ({"feasible": {"headroom": True}}, "feasible.headroom: true given"),
    (
        {"feasible": {"tp_within_node": 1}},
        "feasible.tp_within_node: 1 given; needed: true or false",
    ),
    (
        {"feasible": {"devices": 1024}},
        "feasible.devices: 1024 given; needed: a table; for example devices = { equal",
    ),
    (
        {"feasible": {"devices": {"equals": 8}}},
        'feasible.devices: unknown "equals"; did you mean "equal"?',
    ),
    (
        {"feasible": {"devices": {"equal": 0}}},
        "feasible.devices.equal: 0 given; needed: a whole number from 1",
    ),
    ({"feasible": {"devices": {"equal": [8]}}}, "feasible.devices.equal: [8] given"),
    ({"feasible": {"devices": {"max": True}}}, "feasible.devices.max: true given"),
    ({"feasible": {"devices": {"max": "8"}}}, 'feasible.devices.max: "8" given'),
    (
        {"feasible": {"devices": {"one_of": []}}},
        "feasible.devices.one_of: [] given; needed: a whole number from 1, or several",
    ),
    ({"feasible": {"devices": {"one_of": [8, 2.5]}}}, "feasible.devices.one_of: [8, 2.5] given"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED, ids=range(len(REFUSED)))
def test_refused(asked: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ms.Mistake) as caught:
        Spec.read(asked)
    assert said in str(caught.value)


def test_axes_walked_together_are_equally_long() -> None:
    with pytest.raises(ms.Mistake) as caught:
        sweep(zip={"tp": [1, 2], "pp": [1]})
    said = "zip: axes of different lengths: {'tp': 2, 'pp': 1}; needed: equally many values in each"
    assert str(caught.value) == said


@given(
    st.dictionaries(
        st.text(max_size=8), st.none() | st.integers() | st.text(max_size=4), max_size=4
    )
)
def test_any_table_is_read_or_refused(table: dict[str, Any]) -> None:
    for section in ("sweep", "inputs", "axes", "zip", "feasible", "output", "accelerator", "link"):
        error = refusal(partial(Spec.read, {section: table}), ms.Mistake)
        assert error is None or str(error).isprintable()


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(st.sampled_from(sorted(INPUTS)), json_like, st.sampled_from(("inputs", "axes", "zip")))
def test_any_value_of_an_input_is_read_or_refused(name: str, value: Any, place: str) -> None:
    error = refusal(lambda: sweep(**{place: {name: value}}).plan(), ms.Mistake)
    assert error is None or name in str(error) or "zip" in str(error)


@given(
    st.sampled_from(("memory", "headroom", "devices", "tp_within_node", "where")),
    json_like,
)
def test_any_value_of_a_rule_is_read_or_refused(key: str, value: Any) -> None:
    error = refusal(lambda: sweep(feasible={key: value}).plan(), ms.Mistake)
    assert error is None or f"feasible.{key}" in str(error)


# --- TOML and keywords ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [GOOD, "\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD + "\n\t# a comment \n"]
)
def test_a_file_and_keywords_ask_the_same(tmp_path: Path, text: str) -> None:
    (tmp_path / "spec.toml").write_bytes(text.encode())
    loaded = ms.Sweep.load(tmp_path / "spec.toml")
    asked = tomllib.loads(GOOD)
    built = ms.Sweep(
        name="mine", inputs=asked["inputs"], axes=asked["axes"], feasible=asked["feasible"]
    )
    assert loaded.spec == built.spec
    assert loaded.arrow().equals(built.arrow(), check_metadata=True)
    assert loaded.sizes == {"tp": 4, "pp": 12, "dp": 2}


def test_numbers_of_toml() -> None:
    text = "[inputs]\nbatch_tokens = 1e9\ntp = 1_000\nlocal_efficiency = 5e-1\n"
    spec = Spec.read(tomllib.loads(text))
    assert spec.inputs == {"batch_tokens": 10**9, "tp": 1000, "local_efficiency": 0.5}


def test_a_long_list_in_toml(tmp_path: Path) -> None:
    sizes = list(range(1, 100_001))
    (tmp_path / "long.toml").write_text(GOOD.replace("dp = [16, 32]", f"dp = {sizes}"))
    asked = ms.Sweep.load(tmp_path / "long.toml")
    assert asked.points == 4 * 12 * 100_000
    assert len(json.dumps(asked.spec)) < 2000


@pytest.mark.parametrize("name", bundled())
def test_a_bundled_spec_says_what_it_is_for(name: str) -> None:
    assert load(name).name == name
    assert bundled()[name].strip() and not bundled()[name].startswith("[")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("gpt3-1k-h10", 'spec: unknown "gpt3-1k-h10"; did you mean "gpt3-1k-h100"?'),
        ("nosuch.toml", "`mlsysim-sweep list grids`"),
        ("", "spec: "),
        (".", "spec: unknown"),
        ("x" * 5000, "spec: unknown"),
        ("a\x00b", 'unknown "a\\u0000b"'),
        ("../../etc/passwd/x", "spec: unknown"),
    ],
)
def test_specs_that_are_not_there(source: str, said: str) -> None:
    with pytest.raises(ms.Mistake) as caught:
        ms.Sweep.load(source)
    assert said in str(caught.value) and str(caught.value).isprintable()


def test_a_spec_reads_back_from_its_own_dictionary() -> None:
    asked = sweep(
        axes={"tp": [1, 8]},
        zip={"accelerator": ["H100", "Mine"], "link_bandwidth": ["400 Gbps", "1 GB/s"]},
        feasible={"where": "step_time < 9 s", "devices": {"max": 512}},
        columns=["step_time"],
        accelerator={"Mine": CHIP},
    )
    text = json.dumps(asked.spec, allow_nan=False)
    again = ms.Sweep._of(Spec.read(json.loads(text)))
    assert again.spec == asked.spec
    assert again.arrow().equals(asked.arrow())


def test_what_is_asked_in_numpy_or_pint_is_written_plainly() -> None:
    ours = units.registry()
    asked = sweep(
        {"batch_tokens": np.float64(2e6), "link_bandwidth": ours.Quantity(400, "Gbps")},
        {"tp": np.array([1, 8]), "dp": range(16, 20000), "pp": (1, np.int64(2))},
    )
    spec = json.loads(json.dumps(asked.spec, allow_nan=False))
    assert spec["inputs"]["link_bandwidth"] == {"magnitude": 400, "unit": "gigabps"}
    assert spec["axes"]["tp"] == [1, 8] and spec["axes"]["pp"] == [1, 2]
    long = spec["axes"]["dp"]
    assert (long["values"], long["first"], long["last"]) == (19984, 16, 19999)
    same = sweep(axes={"dp": np.arange(16, 20000)}).spec["axes"]["dp"]
    other = sweep(axes={"dp": [*range(16, 19999), 20000]}).spec["axes"]["dp"]
    assert long == same != other


# --- changed copies ------------------------------------------------------------------------------


def asked_spec(**changes: Any) -> Spec:
    base = {
        "inputs": {"workload": "GPT3", "devices": 1024},
        "axes": {"tp": [1, 8], "pp": [1, 2]},
        "zip": [{"accelerator": ["H100", "B200"], "link_bandwidth": ["400 Gbps", "800 Gbps"]}],
        "feasible": {"headroom": 0.9},
        "output": {"columns": ["n_devices"]},
    }
    return Spec.read({**base, **changes})


def test_a_variant_moves_what_it_names() -> None:
    spec = asked_spec()
    fixed = spec.variant(inputs={"tp": 4})
    assert fixed.inputs == {"workload": "GPT3", "devices": 1024, "tp": 4}
    assert list(fixed.axes) == ["pp"]
    freed = spec.variant(axes={"workload": ["GPT3", "Llama2-7B"]})
    assert "workload" not in freed.inputs
    assert list(freed.axes) == ["tp", "pp", "workload"]
    kept = spec.variant(axes={"tp": [2]})
    assert list(kept.axes) == ["tp", "pp"] and kept.axes["tp"] == (2,)
    assert spec == asked_spec()


def test_a_variant_takes_the_place_of_what_would_follow() -> None:
    spec = asked_spec()
    assert spec.variant(inputs={"dp": 32}).inputs == {"workload": "GPT3", "dp": 32}
    on_axis = spec.variant(axes={"dp": [1, 2]})
    assert "devices" not in on_axis.inputs and "dp" in on_axis.axes
    back = on_axis.variant(inputs={"devices": 64})
    assert "dp" not in back.axes and back.inputs["devices"] == 64
    sequences = spec.variant(inputs={"microbatches": 8}).variant(
        inputs={"microbatch_size": 1, "seq_len": 2048}
    )
    assert "microbatches" not in sequences.inputs
    with pytest.raises(ms.Mistake, match=r"given together with dp"):
        spec.variant(inputs={"dp": 1, "devices": 8})


def test_a_variant_takes_names_out_of_a_group() -> None:
    spec = asked_spec()
    left = spec.variant(inputs={"link_bandwidth": "1 GB/s"}).zips
    assert left == ({"accelerator": ("H100", "B200")},)
    assert spec.variant(inputs={"link_bandwidth": "1 GB/s", "accelerator": "H100"}).zips == ()


def test_a_variant_changes_single_rules() -> None:
    changed = asked_spec().variant(feasible={"memory": "off"}).feasible
    assert (changed.memory, changed.headroom) == ("off", 0.9)
    with pytest.raises(ms.Mistake, match=r"^feasible: unknown"):
        asked_spec().variant(feasible={"headrom": 1})
    with pytest.raises(ms.Mistake, match=r"^inputs: unknown"):
        asked_spec().variant(inputs={"ttp": 1})


def test_a_variant_keeps_its_columns_unless_asked() -> None:
    few = sweep(columns=["step_time"])
    assert few.variant({"dp": 16}).columns == ("step_time",)
    assert few.variant(columns="all").columns == sweep().columns
    assert few.variant(columns=["bubble"]).columns == ("bubble",)
    with pytest.raises(ms.Mistake, match=r"^output\.columns: "):
        few.variant(columns=["bubble", "bubble"])


# --- schema --------------------------------------------------------------------------------------


def test_schema_lists_every_bundled_name() -> None:
    properties = json_schema()["properties"]
    examples = properties["inputs"]["properties"]["accelerator"]["examples"]
    assert examples == list(bundled_table("accelerator"))
    assert set(properties) == {
        *("sweep", "inputs", "axes", "zip", "feasible", "output"),
        *("accelerator", "workload", "link"),
    }


def test_schema_knows_the_keys_that_the_reader_knows() -> None:
    properties = json_schema()["properties"]
    known = set(Spec.read({}).feasible.__dataclass_fields__)
    assert set(properties["feasible"]["properties"]) == known
