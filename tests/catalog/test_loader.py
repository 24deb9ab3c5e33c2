"""Reading catalog rows: bundled, from a spec, from a file; what is refused, and by which name."""

from __future__ import annotations

import datetime
import json
import math
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.catalog import (
    FACTS,
    Catalog,
    Row,
    bundled_table,
    clean_name,
    read_file,
    read_toml,
)
from mlsysim_sweep.vocabulary import VOCABULARY, Kind
from tests.asking import CHIP, sweep


@pytest.mark.parametrize("table", FACTS)
def test_bundled_rows_are_in_base_units(table: str) -> None:
    for name, row in bundled_table(table).items():
        assert (row.table, row.name) == (table, name)
        for fact, value in row.facts.items():
            entry = VOCABULARY[fact]
            assert entry.low <= value <= entry.high
            assert type(value) is (int if entry.kind is Kind.WHOLE else float)
        json.loads(json.dumps(row.as_dict(), allow_nan=False))


def test_memory_labels_mean_what_machines_report() -> None:
    rows = bundled_table("accelerator")
    assert rows["H100"].facts["device_memory"] == 80 * 2**30
    assert rows["B300"].facts["device_memory"] == 288e9
    assert rows["H100"].peaks["fp8"] == 1979e12


def test_active_parameters_are_all_of_them_unless_experts_are_mixed() -> None:
    rows = bundled_table("workload")
    assert rows["GPT3"].facts["active_parameters"] == rows["GPT3"].facts["parameters"]
    assert rows["DeepSeek-V3"].facts["active_parameters"] == 37e9


BAD_ROWS: list[tuple[str, Any, str]] = [
    ("accelerator", 5, "accelerator.Mine: 5 given; needed: a table of facts, [accelerator.Mine]"),
    (
        "accelerator",
        {},
        "accelerator.Mine.peak_flops: missing; needed: a value; for example peak_flops = {",
    ),
    (
        "workload",
        {},
        "workload.Mine.parameters: missing; needed: a value; for example parameters = 175e9",
    ),
    ("link", {}, "link.Mine.link_bandwidth: missing"),
    (
        "accelerator",
        {"peak_flop": 1},
        'accelerator.Mine: unknown "peak_flop"; did you mean "peak_flops"?',
    ),
    (
        "accelerator",
        {**CHIP, "device_memory": 80e9},
        "device_memory: 80000000000: a number without a unit",
    ),
    (
        "accelerator",
        {**CHIP, "device_memory": "80 GBps"},
        "device_memory: \"80 GBps\": unknown unit 'GBps'; did you mean GB/s?",
    ),
    ("accelerator", {**CHIP, "device_memory": "80 Gbps"}, "'Gbps' is not a unit of memory"),
    (
        "accelerator",
        {**CHIP, "device_memory": "0 GB"},
        'Mine.device_memory: "0 GB" given; needed: a number in',
    ),
    ("accelerator", {**CHIP, "device_memory": "-80 GB"}, 'Mine.device_memory: "-80 GB" given'),
    ("accelerator", {**CHIP, "device_memory": True}, "Mine.device_memory: true given"),
    ("accelerator", {**CHIP, "device_memory": math.nan}, "nan is not a finite number"),
    ("accelerator", {**CHIP, "device_memory": 10**400}, "a number without a unit"),
    (
        "accelerator",
        {**CHIP, "devices_per_node": 2.5},
        "devices_per_node: 2.5 given; needed: a whole number from 1",
    ),
    (
        "accelerator",
        {**CHIP, "devices_per_node": 10**400},
        "outside the range of numbers understood; for example devices_per_node = 8",
    ),
    (
        "accelerator",
        {**CHIP, "devices_per_node": 0},
        "devices_per_node: 0 given; needed: a whole number from 1 to 9007199254740992; "
        "for example devices_per_node = 8",
    ),
    (
        "link",
        {"link_bandwidth": "80 GB"},
        "link.Mine.link_bandwidth: \"80 GB\": 'GB' is not a unit of bandwidth; "
        'for example link_bandwidth = "400 Gbps" or "50 GB/s"',
    ),
    (
        "accelerator",
        {**CHIP, "devices_per_node": [8]},
        "devices_per_node: [8]: [8] is not a number",
    ),
    ("accelerator", {"peak_flops": {}}, "Mine.peak_flops: {} given; needed: a peak a precision"),
    (
        "accelerator",
        {"peak_flops": "1 PFLOP/s"},
        'Mine.peak_flops: "1 PFLOP/s" given; needed: a peak a precision',
    ),
    (
        "accelerator",
        {"peak_flops": {"fp9": "1 PFLOP/s"}},
        'peak_flops: unknown "fp9"; did you mean "fp8"?',
    ),
    (
        "accelerator",
        {"peak_flops": {"fp8": "1 PFLOP"}},
        "peak_flops.fp8: \"1 PFLOP\": 'PFLOP' is not a unit of compute",
    ),
    (
        "accelerator",
        {"peak_flops": {"fp8": 1e15}},
        "peak_flops.fp8: 1000000000000000: a number without a unit",
    ),
    ("accelerator", {**CHIP, "note": 5}, "accelerator.Mine.note: 5 given; needed: text"),
    (
        "accelerator",
        {**CHIP, "year": math.nan},
        "accelerator.Mine.year: nan given; needed: a whole number",
    ),
    (
        "accelerator",
        {**CHIP, "year": True},
        "accelerator.Mine.year: true given; needed: a whole number",
    ),
    (
        "accelerator",
        {**CHIP, "sources": "me"},
        'accelerator.Mine.sources: "me" given; needed: a list of tables',
    ),
    (
        "accelerator",
        {**CHIP, "sources": ["me"]},
        'Mine.sources: ["me"] given; needed: a list of tables',
    ),
    ("workload", {"parameters": 0}, "workload.Mine.parameters: 0 given; needed: a number in"),
    ("workload", {"parameters": math.inf}, "inf is not a finite number"),
    (
        "workload",
        {"parameters": 1e9, "tied_embeddings": 1},
        "tied_embeddings: 1 given; needed: true or false",
    ),
    ("link", {"link_bandwidth": "400 Gb/s"}, "did you mean Gbit (bits) or GB (bytes)?"),
]


@pytest.mark.parametrize(("table", "row", "message"), BAD_ROWS)
def test_bad_rows_are_refused_by_name(table: str, row: Any, message: str) -> None:
    with pytest.raises(ms.Mistake) as caught:
        sweep(**{table: {"Mine": row}})
    assert message in str(caught.value)
    assert f"{table}.Mine" in caught.value.field


def test_a_table_of_rows_is_a_table() -> None:
    for rows in ([1], "Mine", 5):
        with pytest.raises(
            ms.Mistake, match=r"^accelerator: .* given; needed: a table, \[accelerator\]"
        ):
            sweep(accelerator=rows)


# --- names ---------------------------------------------------------------------------------------

BAD_NAMES = (
    *(
        "",
        " ",
        "\t",
        "a\nb",
        "a\x1b[2J",
        "a\x00",
        "a\u202eb",
        "a\u200bb",
        "\ufeffa",
        "a\u2066",
        "x" * 81,
    ),
    *(5, None, b"a", ("a",)),
)
ODD_NAMES = (
    *(
        "Café",
        "名前",
        "🚀",
        "a.b",
        "a b",
        '"',
        "'",
        "=1+1",
        "<script>",
        "../../etc",
        "-1",
        "%s",
        "x" * 80,
    ),
    *("NUL", "and", "step_time", "null", "1e5"),
)


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names_that_hide_or_reorder_text_are_refused(name: Any) -> None:
    with pytest.raises(ms.Mistake) as caught:
        clean_name(name, "here")
    assert str(caught.value).startswith("here: ") and str(caught.value).isprintable()
    with pytest.raises(ms.Mistake, match=r"^accelerator: "):
        sweep(accelerator={name: CHIP})
    with pytest.raises(ms.Mistake, match=r"^sweep\.name: "):
        sweep(name=name)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_other_names_go_all_the_way(name: str) -> None:
    asked = sweep(
        {"accelerator": name}, accelerator={name: CHIP}, name=name, columns=["accelerator"]
    )
    assert asked.name == name
    assert asked.table()["accelerator"].tolist() == [name]
    rule = f"accelerator == '{name}'" if '"' in name else f'accelerator == "{name}"'
    assert len(asked.variant(feasible={"where": rule}).table()) == 1


def test_names_are_one_in_every_unicode_form() -> None:
    composed, split = (unicodedata.normalize(form, "Café") for form in ("NFC", "NFD"))
    assert composed != split
    for stored in (composed, split):
        for asked in (composed, split):
            made = sweep(axes={"accelerator": [asked, "H100"]}, accelerator={stored: CHIP})
            assert made.table()["accelerator"].tolist() == [composed, "H100"]
    with pytest.raises(ms.Mistake, match=r"^accelerator\.Café: given twice, in two Unicode forms"):
        sweep(accelerator={composed: CHIP, split: CHIP})
    with pytest.raises(ms.Mistake, match=r'"Café" is given twice'):
        sweep(axes={"accelerator": [composed, split]}, accelerator={composed: CHIP})


def test_names_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(ms.Mistake, match=r'^accelerator\.h100: differs from "H100" only in case'):
        sweep(accelerator={"h100": CHIP})
    with pytest.raises(ms.Mistake, match=r'^accelerator\.MINE: differs from "Mine" only in case'):
        sweep(accelerator={"Mine": CHIP, "MINE": CHIP})
    with pytest.raises(ms.Mistake, match=r'differs from "straße" only in case'):
        sweep(accelerator={"straße": CHIP, "STRASSE": CHIP})


def test_a_row_of_ones_own_hides_a_bundled_one() -> None:
    asked = sweep(accelerator={"H100": CHIP})
    assert asked.point().inputs["peak_flops"] == 1e15
    assert sweep().point().inputs["peak_flops"] == 1979e12


def test_catalog_row_by_name() -> None:
    assert Catalog().row("link", "InfiniBand-NDR").facts == {"link_bandwidth": 50e9}
    for name in (None, 5, ["H100"], "H10O"):
        with pytest.raises(ms.Mistake, match=r"^accelerator: "):
            Catalog().row("accelerator", name)
    more = Catalog().added(Row("link", "Mine", {"link_bandwidth": 1.0}))
    assert more.row("link", "Mine").facts["link_bandwidth"] == 1.0


def test_what_a_row_says_of_itself_goes_into_the_document() -> None:
    sources = [
        {"title": "bench", "read": datetime.date(2026, 12, 1), "fields": ["tdp", "peak_flops"]}
    ]
    row: Mapping[str, Any] = {**CHIP, "sources": sources, "note": "ours", "year": 2026}
    asked = sweep({"accelerator": "Mine"}, accelerator={"Mine": row})
    document = json.loads(asked.arrow().schema.metadata[b"mlsysim_sweep"])
    mine = next(found for found in document["catalog"] if found["name"] == "Mine")
    assert mine["sources"] == [
        {"title": "bench", "read": "2026-12-01", "fields": ["tdp", "peak_flops"]}
    ]
    assert (mine["note"], mine["year"], mine["peak_flops"]["fp8"]) == ("ours", 2026, 1e15)


# --- files ---------------------------------------------------------------------------------------

GOOD = b"""[accelerator.Mine]
device_memory = "80 GB"
devices_per_node = 8
peak_flops = { fp8 = "1 PFLOP/s" }
"""
ASKING = """[sweep]
catalog = ["chips.toml"]
[inputs]
workload = "GPT3"
accelerator = "Mine"
dp = 1024
batch_tokens = 2e6
flops_per_param_token = 6
local_efficiency = 0.5
link = "InfiniBand-NDR"
overlap_fraction = 0.75
"""


@pytest.mark.parametrize(
    "content",
    [GOOD, b"\xef\xbb\xbf" + GOOD, GOOD.replace(b"\n", b"\r\n"), GOOD.replace(b" = ", b"\t=\t")],
)
def test_a_catalog_file_beside_the_spec(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "chips.toml").write_bytes(content)
    (tmp_path / "spec.toml").write_text(ASKING)
    assert ms.Sweep.load(tmp_path / "spec.toml").point().inputs["peak_flops"] == 1e15


def test_rows_of_a_spec_win_over_those_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "chips.toml").write_bytes(GOOD)
    (tmp_path / "spec.toml").write_text(ASKING + GOOD.decode().replace("1 PFLOP", "2 PFLOP"))
    assert ms.Sweep.load(tmp_path / "spec.toml").point().inputs["peak_flops"] == 2e15


BAD_FILES = {
    b"[acelerator.X]": 'chips.toml: unknown "acelerator"; did you mean "accelerator"?',
    b"accelerator = 5": "chips.toml: accelerator: 5 given; needed: tables such as [accelerator",
    b"[sweep]": 'chips.toml: unknown "sweep"',
}


@pytest.mark.parametrize("content", BAD_FILES)
def test_bad_catalog_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "chips.toml").write_bytes(content)
    with pytest.raises(ms.Mistake) as caught:
        read_file(tmp_path / "chips.toml")
    assert str(caught.value).startswith(BAD_FILES[content])


MALFORMED = {
    "a line": (b"[inputs]\ntp = = 8\n", "(at line 2, column 6)"),
    "a key twice": (b"[inputs]\ntp = 8\ntp = 8\n", "(at line 3"),
    "a table twice": (b"[axes]\ntp = [1]\n[axes]\n", "Cannot declare"),
    "no quotes": (b"[inputs]\naccelerator = H100\n", "(at line 2, column 15)"),
    "yaml": (b"inputs:\n  tp: 8\n", "(at line 1"),
    "an open list": (b"[axes]\ntp = [1, 2\n", "Unclosed array"),
    "an open string": (b'[inputs]\nworkload = "GPT3\n', "(at line 2"),
    "a leading zero": (b"[inputs]\ntp = 010\n", "(at line 2, column 7)"),
    "sexagesimal": (b"[inputs]\ntp = 22:22\n", "(at line 2, column 8)"),
    "a word": (b"[inputs]\ntp_within_node = no\n", "(at line 2"),
    "an anchor": (b"[axes]\ntp = &a [1]\n", "(at line 2"),
    "a merge key": (b"[inputs]\n<< = 1\n", "(at line 2, column 1)"),
    "a decimal comma": (b"[inputs]\nlocal_efficiency = 0,5\n", "(at line 2"),
    "5,000 digits": (b"[inputs]\ntp = " + b"9" * 5000, "4300 digits"),
    "20,000 brackets": (b"[axes]\ntp = " + b"[" * 20_000 + b"]" * 20_000, "nested too deeply"),
    "latin-1": ('[inputs]\nworkload = "é"\n'.encode("latin-1"), "can't decode"),
    "utf-16": ("[inputs]\n".encode("utf-16"), "can't decode"),
    "a NUL": (b'[inputs]\nworkload = "\x00"\n', "(at line 2"),
    "an escape sequence": (b"[inputs]\n\x1b[2J\n", "(at line 2, column 1)"),
    "Parquet": (b"PAR1\x15\x04\xff", "can't decode"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_toml_names_the_file_and_the_line(tmp_path: Path, case: str) -> None:
    content, where = MALFORMED[case]
    path = tmp_path / "spec.toml"
    path.write_bytes(content)
    with pytest.raises(ms.Mistake) as caught:
        ms.Sweep.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: not valid TOML: ")
    assert where in message
    assert message.isprintable() and len(message) < len(str(path)) + 200


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ms.Mistake, match=r"nosuch\.toml: cannot be read: No such file"):
        read_toml(tmp_path / "nosuch.toml")
    with pytest.raises(ms.Mistake, match=r"cannot be read: Is a directory"):
        read_toml(tmp_path)
    with (tmp_path / "huge.toml").open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(ms.Mistake, match=r"huge\.toml: larger than 256 MiB"):
        read_toml(tmp_path / "huge.toml")


def test_a_missing_catalog_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('[sweep]\ncatalog = "nosuch.toml"\n')
    with pytest.raises(ms.Mistake, match=r"nosuch\.toml: cannot be read"):
        ms.Sweep.load(tmp_path / "spec.toml")
    (tmp_path / "spec.toml").write_text("[sweep]\ncatalog = 5\n")
    with pytest.raises(ms.Mistake, match=r"^sweep\.catalog: 5 given; needed: text"):
        ms.Sweep.load(tmp_path / "spec.toml")
