"""Folders of parts: interrupted, damaged, resumed and contended for, on purpose."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep import dataset
from mlsysim_sweep.errors import Mistake, OutputError

PART_POINTS = 400
INPUTS = {
    "workload": "GPT3",
    "batch_tokens": 2e6,
    "flops_per_param_token": 6,
    "local_efficiency": 0.5,
    "link_bandwidth": "400 Gbps",
    "overlap_fraction": 0.75,
}
AXES = {
    "accelerator": ["H100", "B200"],
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4, 8, 16],
    "dp": {"range": [1, 40]},
    "microbatches": [8, 32],
}


def sweep(**inputs: object) -> ms.Sweep:
    return ms.Sweep(inputs={**INPUTS, **inputs}, axes=AXES, feasible={"where": "efficiency > 0.5"})


def write(
    folder: Path, made: ms.Sweep | None = None, workers: int = 1, **options: object
) -> object:
    plan = (made or sweep())._plan
    runner = dataset.on_threads(workers)
    return dataset.write_dataset(plan, folder, runner=runner, part_points=PART_POINTS, **options)


def rows(folder: Path, **options: object) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in dataset.files(folder, **options))


@pytest.fixture(scope="module")
def whole() -> pa.Table:
    return sweep().arrow()


@pytest.fixture
def done(tmp_path: Path) -> Path:
    write(tmp_path / "out")
    return tmp_path / "out"


def same(found: pa.Table, wanted: pa.Table) -> bool:
    return found.replace_schema_metadata().equals(wanted.replace_schema_metadata())


def test_rows_are_those_of_one_table(done: Path, whole: pa.Table) -> None:
    found = dataset.status(done, hashes=True)
    assert same(rows(done), whole)
    assert found.complete
    assert found.parts == found.finished > 3
    assert (found.rows, found.damaged, found.strangers) == (whole.num_rows, (), ())
    assert sorted(p.name for p in done.iterdir()) == ["data", "journal.jsonl", "lock"]


@pytest.mark.parametrize("workers", [2, 3])
def test_threads_write_the_same_bytes(done: Path, tmp_path: Path, workers: int) -> None:
    write(tmp_path / "threads", workers=workers)
    for file in dataset.files(done):
        assert (tmp_path / "threads" / "data" / file.name).read_bytes() == file.read_bytes()


def test_existing_folder_is_refused_and_kept(done: Path) -> None:
    before = {p: p.read_bytes() for p in done.rglob("*") if p.is_file()}
    with pytest.raises(OutputError, match="exists already; give --resume"):
        write(done)
    assert {p: p.read_bytes() for p in done.rglob("*") if p.is_file()} == before


def test_overwrite_replaces_only_when_complete(done: Path, whole: pa.Table) -> None:
    made = sweep(batch_tokens=4e6)
    failing = _FailsAt(3)
    with pytest.raises(RuntimeError):
        dataset.write_dataset(
            made._plan, done, runner=failing, overwrite=True, part_points=PART_POINTS
        )
    assert same(rows(done), whole)
    write(done, made, overwrite=True)
    assert same(rows(done), made.arrow())
    assert [p.name for p in done.parent.iterdir()] == ["out"]


class _FailsAt:
    """A runner that fails after some parts."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, plan, table, todo, folder, options):  # type: ignore[no-untyped-def]
        for part in todo[: self.count]:
            yield dataset.write_part(plan, table, part, folder, options)
        raise RuntimeError("planted")


def test_a_failed_run_keeps_its_parts_and_resumes(tmp_path: Path, whole: pa.Table) -> None:
    folder = tmp_path / "out"
    with pytest.raises(RuntimeError):
        dataset.write_dataset(sweep()._plan, folder, runner=_FailsAt(2), part_points=PART_POINTS)
    assert dataset.status(folder).finished == 2
    with pytest.raises(OutputError, match="--resume"):
        dataset.files(folder)
    partial = rows(folder, partial=True)
    assert same(partial, whole.slice(0, partial.num_rows))
    count = _Counting()
    dataset.write_dataset(sweep()._plan, folder, runner=count, resume=True, part_points=PART_POINTS)
    assert count.written == list(range(2, dataset.status(folder).parts))
    assert same(rows(folder), whole)


class _Counting:
    """A runner that notes which parts it was asked for."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def __call__(self, plan, table, todo, folder, options):  # type: ignore[no-untyped-def]
        for part in todo:
            self.written.append(part.number)
            yield dataset.write_part(plan, table, part, folder, options)


def _resumed(folder: Path) -> list[int]:
    count = _Counting()
    dataset.write_dataset(sweep()._plan, folder, runner=count, resume=True, part_points=PART_POINTS)
    return count.written


def _a_part(folder: Path) -> tuple[int, Path]:
    numbered = [(int(f.stem.split("-")[1]), f) for f in dataset.files(folder)]
    return numbered[1]


def test_truncation_is_found_and_one_part_redone(done: Path, whole: pa.Table) -> None:
    number, file = _a_part(done)
    data = file.read_bytes()
    for cut in [0, *range(1, len(data), max(1, len(data) // 60))]:
        file.write_bytes(data[:cut])
        assert dataset.status(done).damaged == (file.name,)
        with pytest.raises(OutputError, match=file.name):
            dataset.files(done)
    assert _resumed(done) == [number]
    assert same(rows(done), whole)


def test_every_flipped_bit_is_found(done: Path) -> None:
    _, file = _a_part(done)
    data = file.read_bytes()
    for position in np.random.default_rng(0).integers(0, len(data) * 8, 300):
        broken = bytearray(data)
        broken[position // 8] ^= 1 << position % 8
        file.write_bytes(broken)
        assert dataset.status(done, hashes=True).damaged == (file.name,)
    number, _ = _a_part_of(data, file, done)
    assert _resumed(done) == []
    file.write_bytes(bytes(broken))
    assert _resumed(done) == [number]


def _a_part_of(data: bytes, file: Path, folder: Path) -> tuple[int, Path]:
    file.write_bytes(data)
    return _a_part(folder)


def test_a_missing_part_is_named(done: Path) -> None:
    number, file = _a_part(done)
    file.unlink()
    assert dataset.status(done).damaged == (file.name,)
    with pytest.raises(OutputError, match=file.name):
        dataset.files(done)
    assert _resumed(done) == [number]


@pytest.mark.parametrize("name", ["copy.parquet", "_tmp-5.parquet", "part-7.parquet.tmp"])
def test_strangers_are_reported_and_not_read(done: Path, whole: pa.Table, name: str) -> None:
    shutil.copy(_a_part(done)[1], done / "data" / name)
    assert dataset.status(done).strangers == (name,)
    assert same(rows(done), whole)


def test_a_linked_part_is_not_followed(done: Path, tmp_path: Path) -> None:
    _, file = _a_part(done)
    elsewhere = tmp_path / "elsewhere.parquet"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert dataset.status(done).damaged == (file.name,)


CHANGES = [
    ({"batch_tokens": 4e6}, "inputs.batch_tokens: 2000000.0 -> 4000000.0"),
    ({"workload": "Llama3-70B"}, "inputs.parameters"),
    ({"optimizer_bytes_per_param": 8}, "inputs.optimizer_bytes_per_param: 12.0 -> 8.0"),
]


@pytest.mark.parametrize(("inputs", "named"), CHANGES)
def test_another_question_is_refused_field_by_field(
    done: Path, inputs: dict[str, object], named: str
) -> None:
    with pytest.raises(OutputError, match="another question") as caught:
        write(done, sweep(**inputs), resume=True)
    assert named in str(caught.value)


def test_other_changes_are_refused(done: Path) -> None:
    plan = sweep()._plan
    base = dataset.question(plan, PART_POINTS, None)
    for other, named in (
        (sweep().variant(axes={"dp": {"range": [1, 41]}}), "inputs.dp"),
        (sweep().variant(feasible={"where": "efficiency > 0.6"}), "rules"),
        (sweep().variant(columns=["step_time"]), "columns"),
    ):
        changed = dataset.difference(base, dataset.question(other._plan, PART_POINTS, None))
        assert any(line.startswith(named) for line in changed)
    newer = dataset.difference(base, {**base, "version": "9.9"})
    assert newer == [f"version: {base['version']} -> 9.9"]


def test_cosmetic_changes_resume(done: Path) -> None:
    reordered = ms.Sweep(
        name="another name",
        inputs={
            **dict(reversed(INPUTS.items())),
            "link_bandwidth": "50 GB/s",
            "batch_tokens": 2000000,
        },
        axes=AXES,
        feasible={"where": ["efficiency>0.5"]},
    )
    write(done, reordered, resume=True)


def test_one_writer_at_a_time(done: Path, tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            textwrap.dedent(
                """
            import sys, time
            from pathlib import Path
            from mlsysim_sweep import dataset, place
            with place.locked(Path(sys.argv[1])):
                print("held", flush=True)
                time.sleep(600)
            """
            ),
            str(done),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(OutputError, match=rf"is being written by process {holder.pid} on .* since"):
        write(done, resume=True)
    holder.kill()
    holder.communicate()
    write(done, resume=True)


CHILD = """
    import os, signal, sys
    from pathlib import Path
    sys.path[:0] = {path!r}
    from tests.test_dataset import sweep, write
    left = int(sys.argv[2])
    folder = os.path.abspath(sys.argv[1])

    def step(*_):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, args):
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            if any(isinstance(a, (str, os.PathLike)) and str(a).startswith(folder) for a in args):
                step()

    real = os.fsync
    def fsync(descriptor):
        step()
        real(descriptor)
    os.fsync = fsync
    made = sweep()
    made._plan
    sys.addaudithook(hook)
    write(Path(folder), made, resume=os.path.exists(folder))
"""


def _killed_at(folder: Path, operation: int) -> int:
    script = textwrap.dedent(CHILD.format(path=[str(Path(__file__).parents[1])]))
    command = [sys.executable, "-P", "-c", script, str(folder), str(operation)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def _check_journaled(folder: Path) -> None:
    """Whatever the crash, what the journal lists is there, whole and unchanged."""
    if (folder / "journal.jsonl").exists() and (folder / "journal.jsonl").stat().st_size:
        assert dataset.status(folder, hashes=True).damaged == ()


@pytest.mark.faults
def test_killed_at_every_file_operation(tmp_path: Path, whole: pa.Table) -> None:
    """A fresh run killed at its n-th operation, for each n until it finishes; each is resumed."""
    operation, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        operation += 1
        folder = tmp_path / f"out{operation}"
        code = _killed_at(folder, operation)
        if folder.exists():
            _check_journaled(folder)
            write(folder, resume=True)
            assert same(rows(folder), whole)
            shutil.rmtree(folder)
    assert code == 0
    assert operation > 30


def test_killed_again_and_again_makes_progress(tmp_path: Path, whole: pa.Table) -> None:
    """One folder, each run killed a little later; the last one finishes."""
    folder = tmp_path / "out"
    for operation in (3, 9, 14, 20, 10_000):
        _killed_at(folder, operation)
        _check_journaled(folder)
    assert same(rows(folder), whole)


def test_partitions_by_a_text_axis(tmp_path: Path, whole: pa.Table) -> None:
    import duckdb

    folder = tmp_path / "out"
    write(folder, partition="accelerator")
    query = f"from read_parquet('{folder}/data/*/*.parquet', hive_partitioning = true)"
    found = duckdb.sql(
        f"select accelerator, count(*), sum(step_time) {query} group by 1"
    ).fetchall()
    frame = whole.to_pandas().groupby("accelerator", observed=True).step_time
    wanted = {name: (len(group), group.sum()) for name, group in frame}
    assert {n: (c, pytest.approx(s)) for n, c, s in found} == wanted
    with pytest.raises(Mistake, match="not a text axis"):
        write(tmp_path / "no", partition="tp")


def test_the_best_of_a_partition_know_where_they_are(tmp_path: Path) -> None:
    named = {"parameters": "7 Gparam", "layers": 32}
    made = ms.Sweep(
        inputs={n: v for n, v in INPUTS.items() if n != "workload"},
        axes={**AXES, "workload": ["GPT3", "7B é/v=2"]},
        workload={"7B é/v=2": named},
    )
    flat = made.to_parquet(tmp_path / "flat")
    for axis in ("accelerator", "workload"):
        found = made.to_parquet(tmp_path / axis, partition=axis)
        assert found.best == flat.best
    assert {row["workload"] for row in flat.best} == {"7B é/v=2"}


def test_nothing_feasible_still_has_a_schema(tmp_path: Path) -> None:
    made = sweep().variant(feasible={"where": "step_time < 1 ms"})
    write(tmp_path / "out", made)
    (file,) = dataset.files(tmp_path / "out")
    assert pq.read_schema(file).names == list(made.columns)
    assert pq.read_metadata(file).num_rows == 0


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OutputError, match="exists already"):
        write(tmp_path / "empty")
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(OutputError, match="not a dataset"):
            dataset.status(folder)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        write(file)


def test_every_part_has_one_schema(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(folder, sweep().variant(feasible={"where": "dp > 20 and tp == 8"}))
    schemas = {pq.read_schema(file).remove_metadata().to_string() for file in dataset.files(folder)}
    assert len(schemas) == 1


def test_journal_holds_plain_lines(done: Path) -> None:
    lines = (done / "journal.jsonl").read_bytes().splitlines()
    assert all(json.loads(line.rpartition(b"\t")[0]) for line in lines)


@pytest.mark.skipif(os.name != "posix", reason="resource limits are POSIX")
def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, whole: pa.Table) -> None:
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        sys.path[:0] = [sys.argv[2]]
        from mlsysim_sweep.errors import OutputError
        from tests.test_dataset import sweep, write
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
        try:
            write(Path(sys.argv[1]), sweep())
        except OutputError as error:
            print(error)
        """
    )
    folder = tmp_path / "out"
    command = [sys.executable, "-P", "-c", script, str(folder), str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "no room to write" in done.stdout
    assert "bytes free" in done.stdout
    write(folder, resume=True)
    assert same(rows(folder), whole)
