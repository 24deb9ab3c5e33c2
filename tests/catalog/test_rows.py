"""Lint of the catalog's TOML rows: names, sources, units, sane ratios and parameter counts.

They are compared with the reference tables where those are present.
"""

from __future__ import annotations

import csv
import datetime
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]
Rows = dict[str, Row]

FILES = {"accelerators": 24, "workloads": 20, "links": 14}  # file -> fewest rows
LABELS = {
    "accelerators": {"title", "vendor", "year"},
    "workloads": {"title"},
    "links": {"title", "scope"},
}
FACTS = {
    "accelerators": {
        "device_memory",
        "memory_bandwidth",
        "scaleup_bandwidth",
        "scaleout_bandwidth",
        "devices_per_node",
        "tdp",
        "peak_flops",
    },
    "workloads": {
        "parameters",
        "active_parameters",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn_hidden",
        "gated_mlp",
        "vocabulary",
        "tied_embeddings",
        "context_length",
        "experts",
        "experts_per_token",
        "expert_ffn_hidden",
    },
    "links": {"link_bandwidth"},
}
NEEDED = {
    "accelerators": {"device_memory", "memory_bandwidth", "peak_flops"},
    "workloads": {
        "parameters",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn_hidden",
        "vocabulary",
        "context_length",
    },
    "links": {"link_bandwidth"},
}
EXTRAS = {"note", "sources"}
PRECISIONS = {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"}
UNITS = {
    "device_memory": {"GB": 1e9, "GiB": 2.0**30},
    "memory_bandwidth": {"TB/s": 1e12},
    "scaleup_bandwidth": {"GB/s": 1e9},
    "scaleout_bandwidth": {"Gbps": 1.25e8},
    "link_bandwidth": {"GB/s": 1e9, "Gbps": 1.25e8},
    "tdp": {"W": 1.0},
    "peak_flops": {"TFLOP/s": 1e12},
}

# Rows that break a rule for a reason.
FP8_OVER_BF16 = {"Trainium3": 3.75}  # its 8-bit peak is the MX format's, which bf16 does not share
FP16_IS_NOT_BF16 = {"Gaudi3"}  # fp16 runs at the tf32 rate
# heads * head_dim != hidden, see their notes
ATTENTION_IS_NOT_HIDDEN = {"PaLM-540B", "DeepSeek-V3", "Qwen3-235B-A22B", "GPT-OSS-120B"}
INPUT_EMBEDDING_IS_INACTIVE = {"GPT-OSS-120B"}  # so counted on its model card
DEEPSEEK_DENSE_LAYERS, DEEPSEEK_SHARED_EXPERTS = 3, 1
COUNT_TOLERANCE, ACTIVE_TOLERANCE = 0.03, 0.03
WIDER_COUNT_TOLERANCE = {"Megatron-1.7B": 0.035}  # 1.65e9 that its table rounds to two digits


def load(name: str) -> Rows:
    return tomllib.loads(files("mlsysim_sweep.catalog").joinpath(f"{name}.toml").read_text("utf-8"))


ROWS = {name: load(name) for name in FILES}
EVERY = [pytest.param(file, name, id=f"{file}-{name}") for file in FILES for name in ROWS[file]]
ACCELERATORS = ROWS["accelerators"]
WORKLOADS = ROWS["workloads"]
every_row = pytest.mark.parametrize(("file", "name"), EVERY)
every_accelerator = pytest.mark.parametrize("name", ACCELERATORS)
every_workload = pytest.mark.parametrize("name", WORKLOADS)


def amount(key: str, text: str) -> float:
    """`text` in SI units, refused unless it is a plain number and a unit that `key` may have."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) (\S+)", text)
    assert match, f"{key}: {text!r} is not '<number> <unit>'"
    number, unit = match.groups()
    assert unit in UNITS[key], f"{key}: unit {unit!r}, allowed {sorted(UNITS[key])}"
    value = float(number) * UNITS[key][unit]
    assert value > 0
    return value


def peaks(name: str) -> dict[str, float]:
    return {
        key: amount("peak_flops", text) for key, text in ACCELERATORS[name]["peak_flops"].items()
    }


@pytest.mark.parametrize("file", FILES)
def test_enough_rows_and_names_unique_without_case(file: str) -> None:
    names = [name.casefold() for name in ROWS[file]]
    assert len(names) >= FILES[file]
    assert len(names) == len(set(names))


@every_row
def test_keys_are_known_and_the_needed_ones_there(file: str, name: str) -> None:
    keys = set(ROWS[file][name])
    assert keys <= LABELS[file] | FACTS[file] | EXTRAS
    assert keys >= LABELS[file] | NEEDED[file] | {"sources"}
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.\-]*", name)


@every_row
def test_every_fact_has_a_source(file: str, name: str) -> None:
    row = ROWS[file][name]
    facts = set(row) & FACTS[file]
    covered = {field for source in row["sources"] for field in source["fields"]}
    assert covered == facts


@every_row
def test_sources_are_complete(file: str, name: str) -> None:
    for source in ROWS[file][name]["sources"]:
        assert set(source) == {"fields", "title", "url", "read"}
        assert source["fields"] and len(source["fields"]) == len(set(source["fields"]))
        assert source["title"].strip() == source["title"] != ""
        assert re.fullmatch(r"https://[^\s/]+\.[^\s/]+(/\S*)?", source["url"])
        assert type(source["read"]) is datetime.date


@every_row
def test_amounts_have_an_allowed_unit(file: str, name: str) -> None:
    for key in sorted(set(ROWS[file][name]) & set(UNITS) - {"peak_flops"}):
        amount(key, ROWS[file][name][key])


@pytest.mark.parametrize("name", ROWS["links"])
def test_links_say_where_they_are_used(name: str) -> None:
    assert ROWS["links"][name]["scope"] in {"scale-up", "scale-out"}


@every_accelerator
def test_accelerator_sizes_are_sane(name: str) -> None:
    row = ACCELERATORS[name]
    assert 8e9 <= amount("device_memory", row["device_memory"]) <= 300 * 2**30
    assert 0.3e12 <= amount("memory_bandwidth", row["memory_bandwidth"]) <= 30e12
    assert type(row["year"]) is int and 2017 <= row["year"] <= 2026
    nodes = row.get("devices_per_node", 1)
    assert type(nodes) is int and nodes >= 1
    assert 50 <= amount("tdp", row.get("tdp", "500 W")) <= 2500


@every_accelerator
def test_scaleup_is_the_faster_link(name: str) -> None:
    row = ACCELERATORS[name]
    if {"scaleup_bandwidth", "scaleout_bandwidth"} <= set(row):
        inside = amount("scaleup_bandwidth", row["scaleup_bandwidth"])
        assert inside > amount("scaleout_bandwidth", row["scaleout_bandwidth"])


@every_accelerator
def test_peaks_stand_in_sane_ratios(name: str) -> None:
    peak = peaks(name)
    assert set(peak) <= PRECISIONS and peak
    sixteen = peak.get("bf16", peak.get("fp16"))
    assert sixteen is not None
    if "fp16" in peak and "bf16" in peak and name not in FP16_IS_NOT_BF16:
        assert peak["fp16"] == peak["bf16"]
    assert peak.get("tf32", 0) <= sixteen
    assert peak.get("fp32", 0) < sixteen


@every_accelerator
def test_low_precision_peaks_are_dense(name: str) -> None:
    peak = peaks(name)
    if "fp8" in peak:
        allowed = [1.0, 2.0, FP8_OVER_BF16.get(name, 2.0)]
        assert any(
            peak["fp8"] / peak["bf16"] == pytest.approx(ratio, rel=0.03) for ratio in allowed
        )
    if "fp4" in peak:
        assert 1.0 <= peak["fp4"] / peak["fp8"] <= 3.0


@every_workload
def test_workload_numbers_have_their_type(name: str) -> None:
    row = WORKLOADS[name]
    for key in set(row) & FACTS["workloads"]:
        if key in {"gated_mlp", "tied_embeddings"}:
            assert type(row[key]) is bool, key
        else:
            assert type(row[key]) is int and row[key] > 0, key


@every_workload
def test_heads_fit(name: str) -> None:
    row = WORKLOADS[name]
    assert row["heads"] % row["kv_heads"] == 0
    same = row["heads"] * row["head_dim"] == row["hidden"]
    assert same != (name in ATTENTION_IS_NOT_HIDDEN)
    if not same:
        assert "head" in row["note"]


@every_workload
def test_mixture_keys_go_together(name: str) -> None:
    row = WORKLOADS[name]
    mixture = {"active_parameters", "experts", "experts_per_token"} & set(row)
    assert len(mixture) in {0, 3}
    if mixture:
        assert row["active_parameters"] < row["parameters"]
        assert row["experts_per_token"] < row["experts"]
        assert row.get("expert_ffn_hidden", 0) != row["ffn_hidden"]
    else:
        assert "expert_ffn_hidden" not in row


def attention_count(row: Row) -> int:
    """Query and output projections, key and value projections."""
    return int(2 * row["hidden"] * row["head_dim"] * (row["heads"] + row["kv_heads"]))


def latent_attention_count(
    row: Row, query_rank: int = 1536, kv_rank: int = 512, rope: int = 64
) -> int:
    """DeepSeek's low-rank attention: queries down and up, keys and values down and up, output."""
    width, heads, dim = (int(row[key]) for key in ("hidden", "heads", "head_dim"))
    query = query_rank * (width + heads * (dim + rope))
    key_value = width * (kv_rank + rope) + kv_rank * heads * 2 * dim
    return query + key_value + heads * dim * width


def block_count(row: Row, inner: int) -> int:
    return (3 if row["gated_mlp"] else 2) * int(row["hidden"]) * inner


def feed_forward_count(name: str, row: Row, experts: int) -> int:
    """All layers' feed-forward weights, with `experts` of the routed ones in each mixture."""
    if "experts" not in row:
        return int(row["layers"] * block_count(row, row["ffn_hidden"]))
    dense, shared = (
        (DEEPSEEK_DENSE_LAYERS, DEEPSEEK_SHARED_EXPERTS) if name == "DeepSeek-V3" else (0, 0)
    )
    inner: int = row["expert_ffn_hidden"] if "expert_ffn_hidden" in row else row["ffn_hidden"]
    expert = block_count(row, inner)
    mixture = (experts + shared) * expert + int(row["experts"] * row["hidden"])  # with its router
    return dense * block_count(row, row["ffn_hidden"]) + (int(row["layers"]) - dense) * mixture


def count(name: str, row: Row, experts: int) -> int:
    """Parameters that the dimensions of a row add up to, but for biases and norms."""
    attention = latent_attention_count(row) if name == "DeepSeek-V3" else attention_count(row)
    embedding = row["vocabulary"] * row["hidden"] * (1 if row["tied_embeddings"] else 2)
    return int(row["layers"] * attention + feed_forward_count(name, row, experts) + embedding)


@every_workload
def test_dimensions_add_up_to_the_parameters(name: str) -> None:
    row = WORKLOADS[name]
    tolerance = WIDER_COUNT_TOLERANCE.get(name, COUNT_TOLERANCE)
    assert count(name, row, row.get("experts", 0)) == pytest.approx(
        row["parameters"], rel=tolerance
    )


@pytest.mark.parametrize("name", [name for name in WORKLOADS if "experts" in WORKLOADS[name]])
def test_dimensions_add_up_to_the_active_parameters(name: str) -> None:
    row = WORKLOADS[name]
    active = count(name, row, row["experts_per_token"])
    if name in INPUT_EMBEDDING_IS_INACTIVE:
        active -= row["vocabulary"] * row["hidden"]
    assert active == pytest.approx(row["active_parameters"], rel=ACTIVE_TOLERANCE)


def test_the_count_notices_a_slipped_digit() -> None:
    for key, wrong in (("layers", 69), ("hidden", 12880), ("ffn_hidden", 59152)):
        assert count("GPT3", WORKLOADS["GPT3"] | {key: wrong}, 0) != pytest.approx(
            175e9, rel=COUNT_TOLERANCE
        )


REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "hardware_catalog.csv"
REFERENCE_TOLERANCE = 0.02
REFERENCE_NAMES = {
    "V100": "V100-SXM2-32GB",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-80GB": "A100-SXM4-80GB",
    "H100": "H100-SXM5-80GB",
    "H200": "H200-SXM-141GB",
    "H800": "H800-SXM-80GB",
    "B100": "B100-SXM-192GB",
    "B200": "B200-SXM-180GB",
    "GB200": "GB200-NVL72 (per GPU)",
    "B300": "B300-SXM-288GB",
    "GB300": "GB300-NVL72 (per GPU)",
    "L40S": "L40S-48GB",
    "MI250X": "MI250X-128GB (2 GCD)",
    "MI300X": "MI300X-192GB",
    "MI325X": "MI325X-256GB",
    "MI355X": "MI355X-288GB",
    "TPUv4": "TPU v4",
    "TPUv5e": "TPU v5e",
    "TPUv5p": "TPU v5p",
    "TPUv6e": "TPU v6e (Trillium)",
    "TPUv7": "TPU v7x (Ironwood)",
    "Gaudi2": "Gaudi2-96GB",
    "Gaudi3": "Gaudi3-128GB",
    "Trainium1": "Trainium1",
    "Trainium2": "Trainium2",
}
REFERENCE_COLUMNS = {
    "fp32": "fp32_vector_TF",
    "tf32": "tf32_dense_TF",
    "bf16": "bf16_dense_TF",
    "fp16": "fp16_dense_TF",
    "fp8": "fp8_dense_TF",
    "fp4": "fp4_dense_TF",
}
REFERENCE_DIFFERS = {
    ("B200", "fp32"): "the table has 80; the board sheet's 600 over 8 GPUs is 75",
    ("B300", "fp32"): "the table has 80; the board sheet's 600 over 8 GPUs is 75",
    ("B300", "fp4"): "the table has 12600; sources range from that to 14000",
}


@pytest.fixture(scope="module")
def reference() -> dict[str, dict[str, str]]:
    if not REFERENCE.is_file():
        pytest.skip("no shared/reference/hardware_catalog.csv beside this checkout")
    with REFERENCE.open(newline="", encoding="utf-8") as lines:
        return {row["device"]: row for row in csv.DictReader(lines)}


@pytest.mark.parametrize("name", REFERENCE_NAMES)
def test_memory_bandwidth_agrees_with_the_reference(
    name: str, reference: dict[str, dict[str, str]]
) -> None:
    text = reference[REFERENCE_NAMES[name]]["memory_bw_TBps"]
    if text:
        ours = amount("memory_bandwidth", ACCELERATORS[name]["memory_bandwidth"])
        assert ours == pytest.approx(float(text) * 1e12, rel=REFERENCE_TOLERANCE)


@pytest.mark.parametrize("name", REFERENCE_NAMES)
def test_dense_peaks_agree_with_the_reference(
    name: str, reference: dict[str, dict[str, str]]
) -> None:
    theirs = reference[REFERENCE_NAMES[name]]
    for precision, ours in peaks(name).items():
        text = theirs[REFERENCE_COLUMNS[precision]] if precision in REFERENCE_COLUMNS else ""
        if not text:
            continue
        same = ours == pytest.approx(float(text) * 1e12, rel=REFERENCE_TOLERANCE)
        assert same != ((name, precision) in REFERENCE_DIFFERS), precision


def test_every_reference_row_is_in_the_catalog(reference: dict[str, dict[str, str]]) -> None:
    assert set(reference) == set(REFERENCE_NAMES.values())
    assert set(REFERENCE_NAMES) <= set(ACCELERATORS)
