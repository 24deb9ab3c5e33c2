"""The command line as a person meets it: what is printed where, and the exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.grids.spec import Spec, bundled
from mlsysim_sweep.kernels import model

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
POINT = ("accelerator=H100", "tp=8", "pp=4", "dp=32", "microbatches=32")

SMALL = """
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
pp = [1, 2, 4]
dp = [16, 32]
"""


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", "from mlsysim_sweep.cli import main; main()"]
    return subprocess.run(
        [*command, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_run_prints_the_readme(tmp_path: Path) -> None:
    done = call("run", "gpt3-1k-h100", "-o", "layouts.parquet", cwd=tmp_path)
    block = README.read_text().split("```console\n")[1].split("```")[0]
    shown = block.split("\n", 1)[1]
    without_size = re.compile(r"\([\d.]+ kB\)")
    assert done.returncode == 0
    assert without_size.sub("", done.stdout.strip()) == without_size.sub("", shown.strip())
    assert "note: Tensor- and pipeline-parallel traffic costs nothing" in done.stderr


def test_readme_spec_runs(tmp_path: Path) -> None:
    text = README.read_text().split("```toml\n")[1].split("```")[0]
    Spec.read(tomllib.loads(text))
    (tmp_path / "my-cluster.toml").write_text(text)
    done = call("run", "my-cluster.toml", "-o", "out.parquet", cwd=tmp_path)
    assert done.returncode == 0
    where = ("accelerator=H100", "tp=8", "pp=2", "devices=256", "microbatches=32")
    assert call("point", "my-cluster.toml", *where, cwd=tmp_path).returncode == 0


def test_run_json_is_the_whole_of_stdout(small: Path) -> None:
    done = call("run", str(small), "-o", "out.parquet", "--json", cwd=small.parent)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["points"] == 24
    assert found["rows"] == pq.read_metadata(small.parent / "out.parquet").num_rows
    assert found["best"][0]["step_time"] == min(row["step_time"] for row in found["best"])
    assert found["funnel"]["feasible"] == found["rows"]


def test_existing_output_is_kept(small: Path) -> None:
    out = small.parent / "out.parquet"
    out.write_bytes(b"precious")
    refused = call("run", str(small), "-o", "out.parquet", cwd=small.parent)
    assert refused.returncode == 3
    assert "exists already; give --overwrite" in refused.stderr
    assert out.read_bytes() == b"precious"
    done = call("run", str(small), "-o", "out.parquet", "--overwrite", cwd=small.parent)
    assert done.returncode == 0
    assert pq.read_metadata(out).num_rows > 0


@pytest.mark.parametrize("target", ["small.toml/out.parquet", "no/such/folder/out.parquet", "."])
def test_unwritable_output_exits_3(small: Path, target: str) -> None:
    done = call("run", str(small), "-o", target, cwd=small.parent)
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_nothing_feasible_exits_4_with_a_valid_empty_file(small: Path) -> None:
    rule = "feasible.where=step_time < 1 ms"
    done = call("run", str(small), "--set", rule, "-o", "out.parquet", cwd=small.parent)
    assert done.returncode == 4
    assert "nothing feasible: no layout is left after 'step_time < 1 ms'" in done.stderr
    assert "nearest miss: tp=" in done.stderr
    schema = pq.read_schema(small.parent / "out.parquet")
    assert schema.names == list(ms.Sweep.load(small).columns)
    assert pq.read_metadata(small.parent / "out.parquet").num_rows == 0


MISTAKES = [
    (("run", "nosuch", "-o", "x"), "spec: unknown"),
    (("run", "gpt3-1k-h100"), "no output file given"),
    (("run", "gpt3-1k-h100", "--set", "tp", "-o", "x"), "KEY=VALUE"),
    (("run", "gpt3-1k-h100", "--set", "tpp=1", "-o", "x"), 'did you mean "tp"'),
    (("run", "gpt3-1k-h100", "--set", "output.columns=1", "-o", "x"), "inputs or feasible"),
    (("run", "gpt3-1k-h100", "--set", "headroom=0.5", "-o", "x"), "needed: feasible.headroom=0.5"),
    (("point", "gpt3-1k-h100", "tp=8", "tp=4"), "tp is given twice"),
    (("run", "gpt3-1k-h100", "--axis", "accelerator=H10O", "-o", "x"), 'did you mean "H100"'),
    (("run", "gpt3-1k-h100", "--axis", "tp=0,1", "-o", "x"), "whole number from 1"),
    (("explain", "gpt3-1k-h100", "--set", "feasible.where=stpe_time < 2 s"), "step_time"),
    (("point", "gpt3-1k-h100", "tp=8"), "no"),
    (("point", "gpt3-1k-h100", "tp=8", "xx=1"), 'unknown "xx"'),
    (("list", "things"), "one of accelerators"),
    (("run",), "Missing argument"),
    (("fly",), "No such command"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_exit_2_without_a_traceback(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_dry_run_says_what_would_be_done(tmp_path: Path) -> None:
    done = call(
        "run",
        "gpt3-1k-h100",
        "--set",
        "batch_tokens=4e6",
        "--axis",
        "tp=1,2,4",
        "--dry-run",
        "--json",
        cwd=tmp_path,
    )
    plan = json.loads(done.stdout)
    assert done.returncode == 0
    assert plan["points"] == 4 * 3 * 12 * 1024 * 7
    assert plan["axes"]["tp"] == 3
    assert [f["cells"] for f in plan["filters"]] == sorted(f["cells"] for f in plan["filters"])
    assert list(tmp_path.iterdir()) == []
    text = call("run", "gpt3-1k-h100", "--dry-run", cwd=tmp_path).stdout
    assert "1,376,256 points" in text


def test_explain_counts_every_rule(tmp_path: Path) -> None:
    done = call("explain", "gpt3-1k-h100", "--json", cwd=tmp_path)
    rules = json.loads(done.stdout)["rules"]
    assert rules[-1]["left"] == 230
    assert all(rule["rejects"] >= rule["rejected"] >= rule["rejected_only"] for rule in rules)
    assert "fail only it" in call("explain", "gpt3-1k-h100", cwd=tmp_path).stdout


def test_point_shows_every_quantity_with_its_source(tmp_path: Path) -> None:
    done = call("point", "gpt3-1k-h100", *POINT, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    wanted = set(model("parallel_layout").outputs) - {"ring_correction"}
    assert wanted <= set(found["quantities"])
    assert found["quantities"]["bubble"]["value"] == pytest.approx(3 / 35)
    assert all(q["equation"] and q["source"] for q in found["quantities"].values())
    assert found["feasible"] is True
    memory = next(rule for rule in found["rules"] if rule["rule"] == "memory zero1")
    assert memory["margin"] == pytest.approx(0.9 * 80 * 2**30 - 23925781250.0)
    assert memory["unit"] == "byte"
    text = call("point", "gpt3-1k-h100", *POINT, cwd=tmp_path).stdout
    assert text.startswith("feasible: every rule holds\n")
    other = call("point", "gpt3-1k-h100", *POINT[:-1], "microbatches=1", cwd=tmp_path).stdout
    assert other.startswith("not feasible: fails step_time < 5 s, efficiency > 0.5\n")
    assert re.search(r"step_time +2\.376 s +compute_time / \(1 - bubble\) \+ exposed_time", text)


@pytest.mark.parametrize(
    "kind", ["accelerators", "workloads", "links", "grids", "quantities", "inputs"]
)
def test_list(tmp_path: Path, kind: str) -> None:
    rows = json.loads(call("list", kind, "--json", cwd=tmp_path).stdout)
    text = call("list", kind, cwd=tmp_path).stdout
    assert all(row["name"] in text for row in rows)
    assert "…" not in text


def test_schema_accepts_the_bundled_grids(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json.loads(call("schema", cwd=tmp_path).stdout)
    for name in bundled():
        text = (ROOT / "mlsysim_sweep" / "grids" / f"{name}.toml").read_text()
        jsonschema.validate(tomllib.loads(text), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"axis": {}}, schema)


SLOW = SMALL.replace(
    "dp = [16, 32]", "dp = { range = [1, 100000] }\nmicrobatches = { range = [1, 400] }"
)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "slow.toml").write_text(SLOW)
    command = [sys.executable, "-P", "-c", "from mlsysim_sweep.cli import main; main()"]
    child = subprocess.Popen(
        [*command, "run", "slow.toml", "-o", "out.parquet"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def staged() -> bool:
        parts = [path for path in tmp_path.iterdir() if path.name.startswith(".out")]
        return any(path.stat().st_size for path in parts)

    while child.poll() is None and not staged():
        os.sched_yield()
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == code
    assert "nothing was written" in errors
    assert [p.name for p in tmp_path.iterdir()] == ["slow.toml"]


@pytest.mark.parametrize("command", ["schema", "list quantities --json", "list inputs"])
def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path, command: str) -> None:
    main = f"{sys.executable} -P -c 'from mlsysim_sweep.cli import main; main()'"
    script = f"set -o pipefail; {main} {command} | head -1"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_standard_output_is_said(tmp_path: Path) -> None:
    main = f"{sys.executable} -P -c 'from mlsysim_sweep.cli import main; main()'"
    script = f"{main} list quantities > /dev/full"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr == "error: standard output: cannot be written: No space left on device\n"


def test_options_may_give_what_a_spec_lacks(small: Path) -> None:
    small.write_text(SMALL.replace('workload = "GPT3"', ""))
    refused = call("run", str(small), "-o", "out.parquet", cwd=small.parent)
    assert refused.stderr.startswith("error: workload: missing, and step_flops depends on it")
    given = ("--set", "workload=GPT3")
    assert call("run", str(small), *given, "-o", "out.parquet", cwd=small.parent).returncode == 0
    where = ("tp=8", "pp=4", "dp=32", "workload=GPT3")
    assert call("point", str(small), *where, cwd=small.parent).returncode == 0


def test_a_silent_precision_is_noted_and_recorded(small: Path) -> None:
    done = call("run", str(small), "-o", "out.parquet", cwd=small.parent)
    assert 'note: precision is not given: "fp8", as in the reference.' in done.stderr
    inputs = ms.read_document(small.parent / "out.parquet")["inputs"]
    assert (inputs["precision"], inputs["peak_flops"]) == ("fp8", 1979e12)
    said = call("run", str(small), "--set", "precision=bf16", "--dry-run", cwd=small.parent)
    assert "precision is not given" not in said.stderr


def test_a_front_from_a_spec_and_from_its_file(small: Path) -> None:
    folder = small.parent
    objectives = ["--minimize", "step_time", "--minimize", "n_devices"]
    assert call("run", str(small), "-o", "rows.parquet", cwd=folder).returncode == 0
    for source in (str(small), "rows.parquet"):
        done = call("pareto", source, *objectives, "--rank", "2", "--json", cwd=folder)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["units"]["step_time"] == "s"
        ranks = [row["rank"] for row in found["rows"]]
        assert ranks == sorted(ranks) and set(ranks) <= {1, 2}
    done = call("pareto", "rows.parquet", *objectives, "-o", "front.csv", cwd=folder)
    assert done.stdout == "" and "rows saved to front.csv" in done.stderr
    assert "step_time [s]" in (folder / "front.csv").read_text().splitlines()[0]
    again = call("pareto", "rows.parquet", *objectives, "-o", "front.csv", cwd=folder)
    assert again.returncode == 3 and "exists" in again.stderr


def test_the_best_few_for_people_and_for_spreadsheets(tmp_path: Path) -> None:
    ranking = ["top", "gpt3-1k-h100", "--by", "step_time", "--per", "accelerator", "-n", "1"]
    done = call(*ranking, cwd=tmp_path)
    head, first, *_ = done.stdout.splitlines()
    assert head.split()[:3] == ["accelerator", "step_time", "tp"]
    assert first.split()[:4] == ["H100", "2.279", "s", "8"]
    assert "note:" in done.stderr
    rows = call(*ranking, "--csv", cwd=tmp_path).stdout.splitlines()
    assert len(rows) == 5 and "step_time [s]" in rows[0].split(",")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["pareto", "gpt3-1k-h100"], 2, "no objective given"),
        (["pareto", "gpt3-1k-h100", "--minimize", "steptime"], 2, 'did you mean "step_time"'),
        (["top", "none.parquet", "--by", "x"], 3, "no such file"),
        (["top", "gpt3-1k-h100", "--by", "step_time", "-n", "0"], 2, "k: 0 given"),
        (["top", "gpt3-1k-h100", "--by", "tp", "--set", "feasible.where=tp > 9"], 4, "no rows"),
        (["top", "gpt3-1k-h100", "--by", "tp", "-o", "x.xlsx"], 2, "ends in .parquet or .csv"),
        (["top", "x.parquet", "--by", "tp", "--set", "tp=1"], 2, "evaluated already"),
    ],
)
def test_answers_refuse_what_cannot_be_meant(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


BANDWIDTH_AXIS = ["--axis", "link_bandwidth=10 Gbps,50 Gbps,400 Gbps"]


def test_what_ifs_are_printed_for_people_and_programs(tmp_path: Path) -> None:
    spec, least = "gpt3-1k-h100", ["--minimize", "step_time"]
    asked = {
        "regimes": [spec, "--over", "link_bandwidth", *least, *BANDWIDTH_AXIS],
        "robust": [spec, "--uncertain", "local_efficiency=0.3,0.5", *least, "-n", "1"],
        "diff": [spec, spec, "--set", "link_bandwidth=100 Gbps", "--per", "accelerator"],
    }
    parts = {
        "regimes": ["best", "crossovers"],
        "robust": ["layouts", "cases", "neighbours"],
        "diff": ["columns", "winners"],
    }
    for command, arguments in asked.items():
        done = call(command, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if line in parts[command]] == parts[
            command
        ]
        found = json.loads(call(command, *arguments, "--json", cwd=tmp_path).stdout)
        assert set(parts[command]) <= set(found)
        text = call(command, *arguments, "--csv", cwd=tmp_path).stdout
        assert len(text.split("\n\n")) == len(parts[command])


def test_inversion_on_the_command_line(tmp_path: Path) -> None:
    target = ["--where", "step_time < 2 s", "--between", "10 Gbps,10 Tbps"]
    done = call("invert", "gpt3-1k-h100", "link_bandwidth", *target, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["units"]["link_bandwidth"] == "byte/s"
    values = [row["link_bandwidth"] for row in found["rows"]]
    assert values == sorted(values) and 1.25e9 < values[0] < 1.25e12
    bad = call("invert", "gpt3-1k-h100", "link_bandwidth", *target[:3], "10 Gbps", cwd=tmp_path)
    assert bad.returncode == 2 and "LOW,HIGH" in bad.stderr


def test_a_report_and_its_pictures(tmp_path: Path) -> None:
    done = call("report", "gpt3-1k-h100", "-o", "r.html", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert call("report", "gpt3-1k-h100", "-o", "r.html", cwd=tmp_path).returncode == 3
    plot = ["plot", "gpt3-1k-h100", "--figure", "funnel"]
    assert call(*plot, "-o", "f.svg", cwd=tmp_path).returncode == 0
    assert call(*plot, "-o", "f.pdf", cwd=tmp_path).returncode == 2
    none = ["report", "gpt3-1k-h100", "--set", "feasible.where=tp > 9", "-o", "n.html"]
    refused = call(*none, cwd=tmp_path)
    assert refused.returncode == 4 and "no feasible row" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.svg", "r.html"]


def test_a_front_is_drawn_in_the_terminal_and_rows_stay_whole(tmp_path: Path) -> None:
    front = ["pareto", "gpt3-million", "--minimize", "step_time", "--maximize", "efficiency"]
    plain = call(*front, "--csv", cwd=tmp_path)
    drawn = call(*front, "--csv", "--plot", "--by", "accelerator", cwd=tmp_path)
    assert "step_time (up) over efficiency" in drawn.stderr and "A H100" in drawn.stderr
    assert plain.stdout.splitlines()[0] == drawn.stdout.splitlines()[0]
    one = call(*front[:4], "--plot", cwd=tmp_path)
    assert one.returncode == 2 and "one objective given" in one.stderr


def test_explain_says_how_much_is_lacking(tmp_path: Path) -> None:
    lines = call("explain", "gpt3-1k-h100", cwd=tmp_path).stdout.splitlines()
    memory = next(line for line in lines if line.startswith("memory zero1"))
    assert "3.105 GB  accelerator=B200 tp=1 pp=4 dp=256" in memory
