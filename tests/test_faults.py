"""Signals, limits and surroundings: what goes wrong around a run, provoked for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep import dataset, store
from mlsysim_sweep.errors import Mistake, OutputError

MAIN = [sys.executable, "-P", "-c", "from mlsysim_sweep.cli import main; main()"]
SPEC = """
[inputs]
workload = "GPT3"
accelerator = "H100"
batch_tokens = 2e6
flops_per_param_token = 6
local_efficiency = 0.5
link_bandwidth = "400 Gbps"
overlap_fraction = 0.75
precision = "fp8"
[axes]
tp = [1, 2, 4, 8]
pp = {{ range = [1, 16] }}
dp = {{ range = [1, {dp}] }}
microbatches = {{ range = [1, 64] }}
[feasible]
memory = "off"
"""


def spec(folder: Path, dp: int) -> Path:
    path = folder / "spec.toml"
    path.write_text(SPEC.format(dp=dp))
    return path


def rows(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in dataset.files(folder))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_folder_is_resumed_after_a_signal(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    path = spec(tmp_path, 4000)  # four parts
    child = subprocess.Popen(
        [*MAIN, "run", str(path), "-o", "out/"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    journal = tmp_path / "out" / "journal.jsonl"
    while child.poll() is None and not (
        journal.exists() and journal.read_bytes().count(b'"part":') > 0
    ):
        time.sleep(0.01)
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == code
    assert "--resume" in said
    assert "finished parts are kept" in said
    before = dataset.status(tmp_path / "out", hashes=True)
    assert (before.damaged, before.complete) == ((), False)
    kept = {f: f.stat().st_mtime_ns for f in dataset.files(tmp_path / "out", partial=True)}
    again = subprocess.run(
        [*MAIN, "run", str(path), "-o", "out/", "--resume"], cwd=tmp_path, capture_output=True
    )
    assert again.returncode == 0
    assert all(file.stat().st_mtime_ns == when for file, when in kept.items())
    assert dataset.status(tmp_path / "out", hashes=True).complete


@pytest.mark.parametrize(
    "surroundings",
    [
        {"TZ": "Asia/Kathmandu"},
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX", "PYTHONHASHSEED": "1"},
    ],
)
def test_surroundings_do_not_change_a_byte(tmp_path: Path, surroundings: dict[str, str]) -> None:
    path = spec(tmp_path, 10)
    for name, more in (("a.parquet", {}), ("b.parquet", surroundings)):
        environment = {**os.environ, **more}
        command = [*MAIN, "run", str(path), "-o", name]
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_clock_that_goes_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ms.Sweep.load(spec(tmp_path, 10))
    made.to_parquet(tmp_path / "a.parquet")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    made.to_parquet(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_too_little_room_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ms.Sweep.load(spec(tmp_path, 1000))
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:4], 10, *real[5:]))
    monkeypatch.setattr(store.os, "statvfs", lambda _: full)
    walked = store.row_groups
    monkeypatch.setattr(store, "row_groups", None)
    for target in ("out.parquet", "out"):
        with pytest.raises(OutputError, match=r"at least [\d,]+ bytes needed, [\d,]+ bytes free"):
            made.to_parquet(tmp_path / target)
    assert [found.name for found in tmp_path.iterdir()] == ["spec.toml"]
    monkeypatch.setattr(store, "row_groups", walked)
    for target in ("out.parquet", "out"):
        assert made.to_parquet(tmp_path / target, force=True).rows == made.points


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    path = spec(tmp_path, 300)
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        for target in ("out.parquet", "out/"):
            done = subprocess.run(
                [*MAIN, "run", str(path), "-o", f"{disk}/{target}"], capture_output=True, text=True
            )
            assert done.returncode == 3
            assert "no room to write" in done.stderr
            assert "Traceback" not in done.stderr
        assert not (disk / "out.parquet").exists()
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        done = subprocess.run([*MAIN, "run", str(path), "-o", f"{disk}/out/", "--resume"])
        assert done.returncode == 0
        assert rows(disk / "out").num_rows == 4 * 16 * 300 * 64
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
import mlsysim_sweep as ms
saved = ms.Sweep.load(sys.argv[2]).to_parquet(sys.argv[3], memory="400 MB", workers=1)
print(saved.rows)
"""


def test_a_run_stays_within_a_limit_of_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", LIMITED, str(2 * 2**30), str(spec(tmp_path, 500))]
    done = subprocess.run([*command, str(tmp_path / "out.parquet")], capture_output=True, text=True)
    assert done.stdout == f"{4 * 16 * 500 * 64}\n", done.stderr


def test_too_little_memory_is_refused_at_the_door(tmp_path: Path) -> None:
    made = ms.Sweep.load(spec(tmp_path, 10))
    with pytest.raises(Mistake, match=r"memory: 100 MB given; needed: at least \d+"):
        made.to_parquet(tmp_path / "out.parquet", memory="100 MB")
    assert made.plan()["rows_at_most"] == made.points
    assert made.plan()["peak_memory_bytes"] > 250e6


def test_memory_and_threads_do_not_change_rows(tmp_path: Path) -> None:
    made = ms.Sweep.load(spec(tmp_path, 20))
    wanted = made.arrow()
    for i, options in enumerate(({"workers": 1}, {"workers": 3}, {"memory": "260 MB"})):
        made.to_parquet(tmp_path / f"{i}.parquet", **options)
        assert pq.read_table(tmp_path / f"{i}.parquet").equals(wanted)
    assert pq.read_metadata(tmp_path / "2.parquet").num_row_groups > 1


def test_an_exception_in_a_kernel_stops_all_threads_and_leaves_nothing(tmp_path: Path) -> None:
    @ms.output(unit="s", source="a test")
    def broken(step_time: ms.Floats) -> ms.Floats:
        """A formula that fails on some blocks: ``step_time``."""
        if np.size(step_time) and np.min(step_time) < 0.5:
            raise RuntimeError("planted")
        return step_time

    made = ms.Sweep.load(spec(tmp_path, 200), formulas=[broken])
    for target in ("out.parquet", "out"):
        with pytest.raises(RuntimeError, match="planted"):
            made.to_parquet(tmp_path / target, workers=2)
    assert not (tmp_path / "out.parquet").exists()
    assert not list((tmp_path / "out" / "data").iterdir())


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.3])
def test_a_second_interrupt_ends_at_once(tmp_path: Path, pause: float) -> None:
    path = spec(tmp_path, 4000)
    command = [*MAIN, "run", str(path), "-o", "out/"]
    child = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while child.poll() is None and not (tmp_path / "out" / "journal.jsonl").exists():
        time.sleep(0.01)
    for _ in range(2):
        child.send_signal(signal.SIGINT)
        time.sleep(pause)
    _, said = child.communicate(timeout=10)
    assert child.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in said
    found = dataset.status(tmp_path / "out", hashes=True)
    assert (found.damaged, found.complete) == ((), False)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a read-only disk needs root")
def test_a_read_only_disk_is_said_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount")
    made = ms.Sweep.load(spec(tmp_path, 10))
    monkeypatch.setattr(store, "row_groups", None)
    try:
        for target in ("out.parquet", "out"):
            with pytest.raises(OutputError, match=f"{disk}.*Read-only file system"):
                made.to_parquet(disk / target)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_memory_that_runs_out_is_said_and_resumed(tmp_path: Path) -> None:
    scarce = tmp_path / "scarce"
    scarce.touch()

    @ms.output(unit="s", source="a test")
    def greedy(step_time: ms.Floats, dp: ms.Ints) -> ms.Floats:
        """A formula that takes more memory than there is: ``step_time``."""
        if os.path.exists(scarce) and np.max(dp) > 1500:
            np.empty(2**62, np.uint8)
        return step_time

    made = ms.Sweep.load(spec(tmp_path, 2000), formulas=[greedy])
    for target in ("out.parquet", "out"):
        with pytest.raises(OutputError, match=r"memory ran out; give a smaller memory"):
            made.to_parquet(tmp_path / target, workers=1)
    assert not (tmp_path / "out.parquet").exists()
    scarce.unlink()
    made.to_parquet(tmp_path / "out", workers=1, resume=True)
    assert rows(tmp_path / "out").num_rows == made.points


PEAK = """
import atexit, re
from mlsysim_sweep.cli import main
status = lambda: open("/proc/self/status").read()
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", status())[1]))
main()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_an_absurd_grid_is_refused_in_no_time_and_memory(tmp_path: Path) -> None:
    path = spec(tmp_path, 10)
    wide = [f"--axis={n}={{range=[1,1000]}}" for n in ("tp", "pp", "dp", "microbatches")]
    wide += ["--axis=batch_tokens={linspace=[1e6,2e6,1000]}"]
    wide += ["--axis=overlap_fraction={linspace=[0,1,1000]}"]
    command = [sys.executable, "-P", "-c", PEAK, "run", str(path), "-o", "out/", *wide]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{10**18:,} points" in done.stderr
    assert "years" in done.stderr and "cut " in done.stderr
    assert int(done.stdout) < 200 * 1024
    assert not (tmp_path / "out").exists()


_WIDE = {"tp": 10, "pp": 100, "dp": 1000, "microbatches": 10**7}


def test_an_absurd_grid_may_be_forced(tmp_path: Path) -> None:
    """10^13 points, of which three hundred pass filters that each live on few axes."""
    path = spec(tmp_path, 10)
    wide = [f"--axis={n}={{range=[1,{size}]}}" for n, size in _WIDE.items()]
    rules = ["--set=feasible.devices={equal=7}", '--set=feasible.where=["microbatches <= 100"]']
    command = [*MAIN, "run", str(path), "-o", "out.parquet", *wide, *rules]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"{10**13:,} points" in refused.stderr and "give --force" in refused.stderr
    done = subprocess.run([*command, "--force"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = pq.read_table(tmp_path / "out.parquet", columns=["tp", "pp", "dp"]).to_pylist()
    assert [tuple(row.values()) for row in found[::100]] == [(1, 1, 7), (1, 7, 1), (7, 1, 1)]


def test_a_million_values_in_a_spec(tmp_path: Path) -> None:
    path = spec(tmp_path, 10)
    values = ", ".join(map(str, range(1, 10**6 + 1)))
    text = path.read_text().replace("{ range = [1, 10] }", f"[{values}]")
    path.write_text(text.replace("tp = [1, 2, 4, 8]", "tp = [8]"))
    made = ms.Sweep.load(path)
    assert made.sizes["dp"] == 10**6 and made.points == 16 * 10**6 * 64


def test_numbers_come_back_from_csv_as_they_were(tmp_path: Path) -> None:
    import pandas as pd

    made = ms.Sweep.load(spec(tmp_path, 3)).variant(
        axes={"dp": [1, 3, (2**53 - 2) // 3]}, inputs={"tp": 1, "pp": 3, "microbatches": 8}
    )
    made.to_parquet(tmp_path / "out.parquet")
    frame = pq.read_table(tmp_path / "out.parquet").to_pandas()
    frame.to_csv(tmp_path / "out.csv", index=False)
    again = pd.read_csv(tmp_path / "out.csv").astype(frame.dtypes)
    pd.testing.assert_frame_equal(again, frame, check_exact=True)
    assert frame["n_devices"].dtype == np.int64
    assert frame["n_devices"].tolist() == [3, 9, (2**53 - 2) // 3 * 3]


BOMB = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
from pathlib import Path
from mlsysim_sweep import dataset
print(dataset.status(Path(sys.argv[1]), hashes=True).damaged)
"""


def test_a_planted_bomb_is_named_and_never_unpacked(tmp_path: Path) -> None:
    ms.Sweep.load(spec(tmp_path, 10)).to_parquet(tmp_path / "out")
    (part,) = dataset.files(tmp_path / "out")
    pq.write_table(pa.table({"x": np.zeros(10**8)}), part)
    assert part.stat().st_size < 10**6
    command = [sys.executable, "-P", "-c", BOMB, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"({part.name!r},)\n", "")
    with pytest.raises(OutputError, match=part.name):
        dataset.files(tmp_path / "out")


def test_a_label_cannot_leave_the_folder(tmp_path: Path) -> None:
    hostile = ["../../x", "/etc/x", "..", "CON", "a b\\c"]
    row = {"device_memory": "80 GB", "peak_flops": {"fp8": "1 PFLOP/s"}}
    made = ms.Sweep.load(spec(tmp_path, 3))
    changed = ms.Sweep(
        inputs={k: v for k, v in made.spec["inputs"].items() if k != "accelerator"},
        axes={**made.spec["axes"], "accelerator": hostile},
        feasible={"memory": "off", "tp_within_node": False},
        accelerator=dict.fromkeys(hostile, row),
    )
    before = set(tmp_path.rglob("*"))
    changed.to_parquet(tmp_path / "out", partition="accelerator")
    made_now = set(tmp_path.rglob("*")) - before
    assert all(p.is_relative_to(tmp_path / "out") for p in made_now)
    folders = sorted(p.name for p in (tmp_path / "out" / "data").iterdir())
    assert len(folders) == len(hostile) and not any("/" in f or f == ".." for f in folders)
    assert rows(tmp_path / "out").num_rows == changed.points
