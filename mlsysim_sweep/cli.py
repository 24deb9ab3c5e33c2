"""The command line: parse, call, print. The payload goes to stdout, all else to stderr.

Exit codes: 0 done; 2 a mistake in what was asked; 3 the output exists or cannot be written;
4 nothing feasible; 130 and 143 on SIGINT and SIGTERM; 1 anything else.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mlsysim_sweep import units
from mlsysim_sweep.errors import Mistake, NothingFeasible, OutputError, printable, shown

if TYPE_CHECKING:
    from rich.table import Table

    from mlsysim_sweep.constraints import Funnel, Miss
    from mlsysim_sweep.declare import Model
    from mlsysim_sweep.sweep import Saved, Sweep

MISTAKE, OUTPUT, NOTHING, INTERRUPTED, TERMINATED = 2, 3, 4, 130, 143

app = typer.Typer(
    name="mlsysim-sweep",
    help="Price every training layout of a cluster at once: TP x PP x DP, filtered and saved.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SpecArgument = Annotated[str, typer.Argument(metavar="SPEC", help="A bundled name or a TOML file.")]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Fix an input, or a key such as feasible.memory.",
    ),
]
AxisOption = Annotated[
    list[str], typer.Option("--axis", metavar="KEY=A,B,C", help="Replace or add an axis.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, in base units.")]


SourceArgument = Annotated[
    str,
    typer.Argument(metavar="SPEC|PARQUET", help="A bundled name, TOML file, or Parquet of rows."),
]
MinimizeOption = Annotated[
    list[str], typer.Option("--minimize", metavar="COLUMN", help="An objective; several allowed.")
]
MaximizeOption = Annotated[
    list[str], typer.Option("--maximize", metavar="COLUMN", help="An objective; several allowed.")
]
OneMinimizeOption = Annotated[
    str | None, typer.Option("--minimize", metavar="COLUMN", help="What the best has least of.")
]
OneMaximizeOption = Annotated[
    str | None, typer.Option("--maximize", metavar="COLUMN", help="What the best has most of.")
]
RowsOption = Annotated[
    str | None, typer.Option("-o", "--output", metavar="OUT", help="rows.parquet or rows.csv.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV, in base units.")]
RawOption = Annotated[
    bool, typer.Option("--raw-text", help="In CSV, leave text that a spreadsheet would compute.")
]


_KINDS = "accelerators, workloads, links, grids, quantities, inputs"


FolderArgument = Annotated[
    str, typer.Argument(metavar="FOLDER", help="A folder or URL that `run -o FOLDER/` writes.")
]


class Terminated(BaseException):
    """SIGTERM, as an exception, so that what is half written is cleared away."""


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _signalled)
    app()
    raise SystemExit(0)


def _signalled(number: int, _: object) -> NoReturn:
    """Unwind, so that what is half written is cleared away; a second signal ends us at once."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda again, _: os._exit(128 + again))
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


@contextlib.contextmanager
def _exits() -> Iterator[None]:
    """Turn our errors and signals into a message and an exit code."""
    try:
        with _flushed():
            yield
    except NothingFeasible as error:
        _stop(NOTHING, f"error: {error}")
    except Mistake as error:
        _stop(MISTAKE, f"error: {error}")
    except OutputError as error:
        _stop(OUTPUT, f"error: {error}")
    except KeyboardInterrupt:
        _stop(INTERRUPTED, "interrupted: nothing was written")
    except Terminated:
        _stop(TERMINATED, "terminated: nothing was written")


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Have stdout take all that was printed: a reader who has seen enough is no error."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        _mute()
    except OSError as error:
        _mute()
        raise OutputError("standard output", f"cannot be written: {error.strerror}") from None


def _mute() -> None:
    """Send what is still in stdout's buffer nowhere, so that the exit is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(code: int, message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(code)


# --- commands ------------------------------------------------------------------------------------


@app.command()
def run(
    spec: SpecArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="out.parquet, or a folder out/ or URL that can be resumed.",
        ),
    ] = None,
    settings: SetOption = [],  # noqa: B006 -- typer copies it
    axes: AxisOption = [],  # noqa: B006
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT once the new one is complete.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with a folder: write what is missing or damaged."),
    ] = False,
    partition: Annotated[
        str | None, typer.Option(metavar="AXIS", help="Hive-partition a folder by a text axis.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Threads, or Dask workers; default: all.")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="local|ADDRESS", help="Write a folder on a Dask cluster.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory to stay within, such as 2 GB.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Go on with a grid beyond max_points, or a disk too small."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a sweep and save the feasible layouts to Parquet."""
    with _exits():
        sweep = _sweep(spec, settings, axes, _COUNTABLE if force else None)
        if dry_run:
            _print_plan(sweep, as_json)
            return
        if output is None:
            raise Mistake("-o", "no output file given", "a path", "-o layouts.parquet")
        again = _resume_command(output)
        with (
            _on_signal(again),
            _cluster(dask, workers) as client,
            _progress(sweep.points) as progress,
        ):
            saved = sweep.to_parquet(
                output,
                overwrite=overwrite,
                resume=resume,
                partition=partition,
                workers=workers,
                client=client,
                memory=memory,
                force=force,
                progress=progress,
            )
        funnel = saved.funnel if saved.rows else sweep.funnel()
        _print_saved(sweep, saved, funnel, as_json)
        if not saved.rows:
            _stop(NOTHING, _nothing_feasible(funnel))


def _resume_command(output: str) -> str:
    """The command that goes on with a folder; empty for a single file, of which nothing is left."""
    from mlsysim_sweep.sweep import is_folder

    if not is_folder(output):
        return ""
    kept = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    return shlex.join(["mlsysim-sweep", *kept, "--resume"])


@contextlib.contextmanager
def _on_signal(again: str) -> Iterator[None]:
    """Say on a signal what is left, and how to go on."""
    left = f"finished parts are kept; go on with: {again}" if again else "nothing was written"
    try:
        yield
    except KeyboardInterrupt:
        _stop(INTERRUPTED, f"interrupted: {left}")
    except Terminated:
        _stop(TERMINATED, f"terminated: {left}")


@contextlib.contextmanager
def _cluster(address: str | None, workers: int | None) -> Iterator[Any]:
    if address is None:
        yield None
        return
    from mlsysim_sweep.cluster import connected

    with connected(address, workers) as client:
        yield client


@app.command()
def status(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Say how far a folder of parts is."""
    with _exits():
        _print_status(folder, as_json, hashes=False)


@app.command()
def verify(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Read every part of a folder and compare it with its hash."""
    with _exits():
        _print_status(folder, as_json, hashes=True)


@app.command()
def explain(
    spec: SpecArgument,
    settings: SetOption = [],  # noqa: B006
    axes: AxisOption = [],  # noqa: B006
    as_json: JsonOption = False,
) -> None:
    """Show what each rule drops, alone and in order, and how near the nearest miss is."""
    with _exits():
        sweep = _sweep(spec, settings, axes)
        funnel = sweep.funnel()
        if as_json:
            _print_json({"sweep": sweep.name, **funnel.as_dict(), "notes": list(sweep.notes)})
        else:
            _print_funnel(funnel, full=True, sweep=sweep)
            _print_notes(sweep)
        if not funnel.feasible:
            _stop(NOTHING, _nothing_feasible(funnel))


@app.command()
def pareto(
    source: SourceArgument,
    minimize: MinimizeOption = [],  # noqa: B006
    maximize: MaximizeOption = [],  # noqa: B006
    by: Annotated[
        list[str], typer.Option("--by", metavar="COLUMN", help="A front for each of its values.")
    ] = [],  # noqa: B006
    rank: Annotated[int, typer.Option(help="How many successive fronts.")] = 1,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Of equal rows keep only the first.")
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Thin the front: rows that differ by less than this share are one."),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the first two objectives in the terminal too.")
    ] = False,
    settings: SetOption = [],  # noqa: B006
    axes: AxisOption = [],  # noqa: B006
    output: RowsOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    raw: RawOption = False,
) -> None:
    """Show the layouts that no other layout beats in every objective."""
    from mlsysim_sweep.answers import pareto_front

    with _exits():
        rows = _rows_of(source, settings, axes)
        found = pareto_front(
            rows,
            minimize=minimize,
            maximize=maximize,
            by=by,
            rank=rank,
            distinct=distinct,
            epsilon=epsilon,
        )
        first = [*by, *(["rank"] if rank > 1 else []), *minimize, *maximize]
        if plot and len(found):
            _print_scatter(found, [*minimize, *maximize], by)
        _answer(rows, found, first, _Form(output, overwrite, as_json, as_csv, raw))


@app.command()
def top(
    source: SourceArgument,
    by: Annotated[str, typer.Option(metavar="COLUMN", help="What to rank by.")],
    count: Annotated[int, typer.Option("-n", "--count", help="How many, in each group.")] = 5,
    per: Annotated[
        list[str], typer.Option("--per", metavar="COLUMN", help="Rank each of its values apart.")
    ] = [],  # noqa: B006
    largest: Annotated[bool, typer.Option("--largest", help="The largest are the best.")] = False,
    settings: SetOption = [],  # noqa: B006
    axes: AxisOption = [],  # noqa: B006
    output: RowsOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    raw: RawOption = False,
) -> None:
    """Show the best few layouts by a column, the smallest first."""
    from mlsysim_sweep import answers

    with _exits():
        rows = _rows_of(source, settings, axes)
        found = answers.top(rows, count, by=by, per=per, largest=largest)
        _answer(rows, found, [*per, by], _Form(output, overwrite, as_json, as_csv, raw))


@app.command()
def regimes(
    spec: SpecArgument,
    over: Annotated[
        list[str], typer.Option("--over", metavar="AXIS", help="An axis of the sweep; two allowed.")
    ],
    minimize: OneMinimizeOption = None,
    maximize: OneMaximizeOption = None,
    settings: SetOption = [],  # noqa: B006
    axes: AxisOption = [],  # noqa: B006
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show the best layout along an axis, and at which values another becomes the best."""
    from mlsysim_sweep import whatif

    with _exits():
        sweep = _sweep(spec, settings, axes)
        found = whatif.regimes(sweep, over, minimize=minimize, maximize=maximize)
        _print_parts(vars(found), as_json, as_csv, {"best": [*over, *_words(minimize, maximize)]})
        _print_notes(sweep)


@app.command()
def robust(
    spec: SpecArgument,
    uncertain: Annotated[
        list[str],
        typer.Option("--uncertain", metavar="KEY=A,B,C", help="A fixed input, and its values."),
    ],
    minimize: OneMinimizeOption = None,
    maximize: OneMaximizeOption = None,
    count: Annotated[int, typer.Option("-n", "--count", help="How many of the best.")] = 5,
    settings: SetOption = [],  # noqa: B006
    axes: AxisOption = [],  # noqa: B006
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show how the best layouts fare when inputs come out otherwise: worst case, regret."""
    from mlsysim_sweep import whatif

    with _exits():
        sweep = _sweep(spec, settings, axes)
        varied = dict(_axis(text, "--uncertain") for text in uncertain)
        found = whatif.robust(sweep, varied, minimize=minimize, maximize=maximize, k=count)
        _print_parts(vars(found), as_json, as_csv)
        _print_notes(sweep)


@app.command()
def invert(
    spec: SpecArgument,
    name: Annotated[str, typer.Argument(metavar="INPUT", help="An input held fixed.")],
    where: Annotated[
        list[str], typer.Option("--where", metavar="TARGET", help='Such as "step_time < 2 s".')
    ],
    between: Annotated[str, typer.Option(metavar="LOW,HIGH", help='Such as "10 Gbps,10 Tbps".')],
    settings: SetOption = [],  # noqa: B006
    axes: AxisOption = [],  # noqa: B006
    output: RowsOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    raw: RawOption = False,
) -> None:
    """Show the smallest value of an input at which each layout meets a target."""
    from mlsysim_sweep import whatif

    with _exits():
        sweep = _sweep(spec, settings, axes)
        low, comma, high = between.partition(",")
        if not comma:
            raise Mistake("--between", f"{shown(between)} given", "LOW,HIGH", "10 Gbps,10 Tbps")
        ends = (_value(low.strip()), _value(high.strip()))
        found = whatif.invert(sweep, name, where, ends)
        _answer(sweep, found, [name], _Form(output, overwrite, as_json, as_csv, raw))


@app.command()
def diff(
    a: SourceArgument,
    b: SourceArgument,
    by: Annotated[str, typer.Option(metavar="COLUMN", help="What winners are judged by.")] = (
        "step_time"
    ),
    per: Annotated[
        list[str], typer.Option("--per", metavar="COLUMN", help="A winner for each of its values.")
    ] = [],  # noqa: B006
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Fix an input of B alone."),
    ] = [],  # noqa: B006
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show what moved between two sweeps or their rows, by how much, and which winners changed."""
    from mlsysim_sweep import whatif

    with _exits():
        rows = [_rows_of(a, [], []), _rows_of(b, settings, [])]
        found = whatif.diff(*rows, by=by, per=per)
        parts = {"columns": found.columns, "winners": found.winners}
        if as_json:
            parts = {"rows": found.rows, **parts}
        _print_parts(parts, as_json, as_csv)
        counts = f"{len(found.rows):,} layouts in both, {found.only_a:,} only in A"
        print(f"{counts}, {found.only_b:,} only in B", file=sys.stderr)


@app.command()
def report(
    source: SourceArgument,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="OUT", help="One HTML file.")
    ] = "report.html",
    minimize: MinimizeOption = [],  # noqa: B006
    maximize: MaximizeOption = [],  # noqa: B006
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What colours it; default: accelerator.")
    ] = None,
    settings: SetOption = [],  # noqa: B006
    axes: AxisOption = [],  # noqa: B006
    overwrite: OverwriteOption = False,
) -> None:
    """Write a page that answers the question: front, funnel, pictures, sources."""
    from mlsysim_sweep import store
    from mlsysim_sweep.report import gather, html

    with _exits(), store.staged(Path(output), overwrite=overwrite) as staging:
        content = gather(_rows_of(source, settings, axes), minimize, maximize, by)
        staging.write_text(html(content), encoding="utf-8")
        said = f"{content.front_size:,} layouts on the front; see {output}"
        print(printable(said), file=sys.stderr)


@app.command()
def plot(
    source: SourceArgument,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="OUT", help="A .png or .svg file.")
    ],
    figure: Annotated[str, typer.Option(help="front, heat, parallel or funnel.")] = "front",
    minimize: MinimizeOption = [],  # noqa: B006
    maximize: MaximizeOption = [],  # noqa: B006
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What colours it; default: accelerator.")
    ] = None,
    settings: SetOption = [],  # noqa: B006
    axes: AxisOption = [],  # noqa: B006
    overwrite: OverwriteOption = False,
) -> None:
    """Draw one picture of the report as PNG or SVG."""
    from mlsysim_sweep import store
    from mlsysim_sweep.report import gather
    from mlsysim_sweep.report.figures import draw

    with _exits(), store.staged(Path(output), overwrite=overwrite) as staging:
        content = gather(_rows_of(source, settings, axes), minimize, maximize, by)
        drawn = staging.with_suffix(Path(output).suffix)
        try:
            draw(content, figure, drawn)
            drawn.replace(staging)
        finally:
            drawn.unlink(missing_ok=True)


@app.command()
def point(
    spec: SpecArgument,
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")],
    as_json: JsonOption = False,
) -> None:
    """Show every quantity of one layout, and what each rule says of it."""
    with _exits():
        sweep = _sweep(spec, values, [])
        layout = sweep.point()
        model = sweep.grid.model
        if as_json:
            _print_json(_layout_dict(layout, model))
            return
        _print_layout(layout, model)
        _print_notes(sweep)


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of: {_KINDS}.")],
    as_json: JsonOption = False,
) -> None:
    """List what a spec can name."""
    with _exits():
        if kind not in _LISTINGS:
            raise Mistake("list", f"unknown {shown(kind)}", f"one of {', '.join(_LISTINGS)}")
        rows, columns = _LISTINGS[kind]()
        if as_json:
            _print_json(rows)
            return
        table = _table(*columns)
        for found in rows:
            table.add_row(*(columns[column](found) for column in columns))
        _print_table(table)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from mlsysim_sweep.grids.schema import json_schema

    with _exits():
        _print_json(json_schema())


def _show_version(asked: bool) -> None:
    if asked:
        print(version("mlsysim-sweep"))
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show it.")
    ] = False,
) -> None:
    pass


# --- reading arguments ---------------------------------------------------------------------------


_COUNTABLE = 2**63 - 1
"""Points that positions can count: the most that --force allows."""


def _sweep(
    spec: str, settings: Sequence[str], axes: Sequence[str], max_points: int | None = None
) -> Sweep:
    from mlsysim_sweep.grids.spec import FEASIBLE_KEYS
    from mlsysim_sweep.sweep import Sweep
    from mlsysim_sweep.vocabulary import VOCABULARY

    inputs: dict[str, Any] = {}
    feasible: dict[str, Any] = {}
    for key, value in (_pair(text, "--set") for text in settings):
        section, _, name = key.rpartition(".")
        if section not in ("", "inputs", "feasible"):
            raise Mistake("--set", f"unknown section {shown(section)}", "inputs or feasible")
        chosen = feasible if section == "feasible" else inputs
        if name in chosen:
            raise Mistake("--set", f"{name} is given twice", "each once")
        if section == "" and name in FEASIBLE_KEYS and name not in VOCABULARY:
            raise Mistake("--set", f"unknown input {shown(name)}", f"feasible.{name}={value}")
        chosen[name] = value
    changed = dict(_axis(text) for text in axes)
    return Sweep.load(spec, inputs=inputs, axes=changed, feasible=feasible, max_points=max_points)


def _pair(text: str, option: str) -> tuple[str, Any]:
    """``key=value``; a value is a TOML value where it can be read as one, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Mistake(option, f"{shown(text)} given", "KEY=VALUE", "tp=8")
    return key.strip(), _value(value.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError, KeyError):
        return text


def _words(*given: str | None) -> list[str]:
    return [word for word in given if word is not None]


def _axis(text: str, option: str = "--axis") -> tuple[str, Any]:
    """``key=1,2,4``, or a form as in a spec: ``dp={range=[1,64]}``."""
    key, value = _pair(text, option)
    if isinstance(value, str):
        value = [_value(part.strip()) for part in value.split(",")]
    return key, value if isinstance(value, list | Mapping) else [value]


def _rows_of(source: str, settings: Sequence[str], axes: Sequence[str]) -> Any:
    """A sweep to be evaluated, or the path of rows that were."""
    from mlsysim_sweep.remote import is_url

    if not (is_url(source) or source.endswith(".parquet") or os.path.isdir(source)):
        return _sweep(source, settings, axes)
    if settings or axes:
        given = "--set" if settings else "--axis"
        raise Mistake(given, "given for rows that are evaluated already", "a spec to change")
    return source


# --- printing ------------------------------------------------------------------------------------


def _print_json(payload: Any) -> None:
    print(json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False))


def _table(*headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _print_table(table: Table) -> None:
    """Print a table whole: nothing is cut to the width of a terminal."""
    from rich.console import Console

    width = Console(width=10_000).measure(table).maximum
    with contextlib.closing(io.StringIO()) as text:
        Console(file=text, width=width, markup=False, highlight=False, emoji=False).print(table)
        print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def _right(table: Table, *columns: int) -> None:
    for column in columns:
        table.columns[column].justify = "right"


@contextlib.contextmanager
def _progress(points: int) -> Iterator[Callable[[int], None]]:
    """A live line on stderr while a grid is walked: points, rate and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown_columns = (
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} points"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    quiet = not console.is_terminal
    with Progress(*shown_columns, console=console, transient=True, disable=quiet) as bars:
        task = bars.add_task("", total=points, rate="")

        def update(visited: int) -> None:
            speed = bars.tasks[0].speed or 0.0
            bars.update(task, completed=visited, rate=f"{units.human(speed, '1')} points/s")

        yield update


def _print_plan(sweep: Sweep, as_json: bool) -> None:
    plan = sweep.plan()
    if as_json:
        _print_json({"sweep": sweep.name, **plan, "notes": list(sweep.notes)})
        return
    print(f"{sweep!r}")
    size = units.human(float(plan["bytes_if_all_feasible"]), "byte")
    print(f"{plan['columns']} columns, {size} before compression if all are feasible")
    print(f"{plan['blocks']:,} blocks of up to {plan['block_points']:,} points")
    memory = units.human(plan["peak_memory_bytes"], "byte")
    print(f"at most {plan['rows_at_most']:,} rows, {memory} of memory\n")
    table = _table("filter, in order", "rank", "axes", "cells", "decided")
    _right(table, 1, 3)
    for f in plan["filters"]:
        axes = " ".join(f["axes"]) or "none"
        table.add_row(f["rule"], str(f["rank"]), axes, f"{f['cells']:,}", f["decided"])
    _print_table(table)
    _print_notes(sweep)


def _print_saved(sweep: Sweep, saved: Saved, funnel: Funnel, as_json: bool) -> None:
    if as_json:
        _print_json(
            {
                "sweep": sweep.name,
                "path": str(saved.path),
                "points": sweep.points,
                "rows": saved.rows,
                "funnel": funnel.as_dict(),
                "ranked_by": saved.ranked_by,
                "best": [_finite(found) for found in saved.best],
                "notes": list(sweep.notes),
            }
        )
        return
    _print_funnel(funnel, full=not saved.rows, sweep=sweep)
    if saved.best:
        print(f"\nbest {len(saved.best)} by {saved.ranked_by}")
        _print_rows(sweep, saved.best)
    _print_notes(sweep)
    print(f"\n{saved.rows:,} layouts saved to {saved.path} ({units.human(saved.bytes, 'byte')})")


def _print_status(folder: str, as_json: bool, *, hashes: bool) -> None:
    from mlsysim_sweep import dataset

    found = dataset.status(folder, hashes=hashes)
    if as_json:
        _print_json(vars(found))
    else:
        state = "complete" if found.complete else "damaged" if found.damaged else "not complete"
        size = units.human(float(found.bytes), "byte")
        parts = f"{found.finished} of {found.parts} parts"
        print(f"{folder}: {state}, {parts}, {found.rows:,} rows, {size}")
        if hashes and not found.damaged:
            print("every part agrees with its hash")
    for name in found.strangers:
        print(f"warning: {name} is not in the journal and is not read", file=sys.stderr)
    for name in found.damaged:
        print(f"damaged or missing: {name}", file=sys.stderr)
    if not found.complete:
        raise typer.Exit(OUTPUT)


@dataclass(frozen=True)
class _Form:
    """How rows are wanted: in a file or printed, for programs or people."""

    output: str | None
    overwrite: bool
    as_json: bool
    as_csv: bool
    raw: bool


_MOST_SHOWN = 50


def _answer(rows: Any, found: Any, first: Sequence[str], form: _Form) -> None:
    """Save what was found in some rows, or print it: all to programs, the first few to people."""
    from mlsysim_sweep import tables

    if form.output is not None:
        tables.save(found, Path(form.output), overwrite=form.overwrite, raw=form.raw)
        print(printable(f"{len(found):,} rows saved to {form.output}"), file=sys.stderr)
    if form.as_json:
        _print_json({"rows": tables.records(found), "units": tables.units_of(found)})
    elif form.as_csv:
        print(tables.csv_text(found, raw=form.raw), end="")
    elif form.output is None:
        _print_frame(found, first)
        _print_notes(rows)
    if not len(found):
        _stop(NOTHING, "no rows: nothing is feasible, or all numbers are missing")


def _print_parts(
    parts: Mapping[str, Any],
    as_json: bool,
    as_csv: bool,
    first: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Several tables with a heading each; as CSV, one after the other with a blank line between."""
    from mlsysim_sweep import tables

    if as_json:
        _print_json({name: tables.records(part) for name, part in parts.items()})
        return
    for i, (name, part) in enumerate(parts.items()):
        print("\n" * bool(i), end="")
        if as_csv:
            print(tables.csv_text(part), end="")
            continue
        print(name)
        if len(part):
            _print_frame(part, (first or {}).get(name) or list(part.columns))
        else:
            print("none")


def _print_scatter(found: Any, objectives: Sequence[str], by: Sequence[str]) -> None:
    """The first two objectives as characters, on stderr: what is read by programs stays whole."""
    from mlsysim_sweep import tables

    if len(objectives) < 2:
        raise Mistake("--plot", "one objective given", "two", "--minimize n_devices")
    up, right = objectives[:2]
    finite = found[[math.isfinite(a) and math.isfinite(b) for a, b in found[[up, right]].values]]
    labels = [" ".join(map(str, key)) for key in finite[list(by)].values.tolist()]
    drawn = tables.scatter_text(finite[right].tolist(), finite[up].tolist(), labels)
    print(f"{up} (up) over {right}\n{drawn}\n", file=sys.stderr)


def _print_frame(found: Any, first: Sequence[str]) -> None:
    from mlsysim_sweep import tables
    from mlsysim_sweep.vocabulary import VOCABULARY

    inputs = [name for name in found.columns if name in VOCABULARY]
    names = list(dict.fromkeys([*first, *inputs, *(n for n in _SUMMARY if n in found.columns)]))
    head = found.head(_MOST_SHOWN)
    table = _table(*names)
    for i, name in enumerate(names):
        is_text = found[name].dtype.kind not in "iufb"
        table.columns[i].justify = "left" if is_text else "right"
    for cells in tables.shown_cells(head, names):
        table.add_row(*cells)
    _print_table(table)
    more = (
        f", of which {len(head)} are shown; all with --csv, --json or -o"
        if len(found) > len(head)
        else ""
    )
    print(f"\n{len(found):,} rows{more}")


_SUMMARY = ("n_devices", "step_time", "efficiency", "bubble", "zero1_state_per_device")


def _print_rows(sweep: Sweep, rows: Iterable[Mapping[str, Any]]) -> None:
    """The axes and a few telling quantities of some rows."""
    grid = sweep.grid
    columns = [*grid.axis_columns, *(name for name in _SUMMARY if name in grid.columns)]
    columns += [name for name in grid.columns[:5] if len(columns) < 6 and name not in columns]
    table = _table(*columns)
    for i, name in enumerate(columns):
        table.columns[i].justify = "left" if isinstance(next(iter(rows))[name], str) else "right"
    for found in rows:
        table.add_row(*(_shown_value(grid.model, name, found[name]) for name in columns))
    _print_table(table)


def _shown_value(model: Model, name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return units.human(value, model.describe(name)[0])


def _print_funnel(funnel: Funnel, *, full: bool, sweep: Sweep | None = None) -> None:
    """The funnel as a table; in full with what was counted rule by rule."""
    more = ["fail it", "fail only it", "short by", "nearest miss"] if full else []
    table = _table("rule", "dropped", "left", *more)
    _right(table, 1, 2, *([3, 4, 5] if full else []))
    table.add_row("all points", "", f"{funnel.points:,}")
    for found in funnel.rows:
        cells = [found.rule, f"{found.rejected:,}", f"{found.left:,}"]
        if full:
            cells += [f"{found.rejects or 0:,}", f"{found.rejected_only or 0:,}"]
            cells += [_short_by(sweep, found.rule, found.nearest), _shown_miss(found.nearest)]
        table.add_row(*cells)
    _print_table(table)


def _short_by(sweep: Sweep | None, rule: str, miss: Miss | None) -> str:
    """How much a layout lacks, in the unit of the rule: gigabytes, devices, seconds."""
    if sweep is None or miss is None:
        return ""
    verdict = next(v for v in sweep.point(**miss.layout).verdicts if v.rule == rule)
    return "" if verdict.margin is None else units.human(-verdict.margin, verdict.unit)


def _shown_miss(miss: Miss | None) -> str:
    from mlsysim_sweep.constraints import miss_text

    if miss is None:
        return ""
    where = " ".join(f"{name}={value}" for name, value in miss.layout.items()) or "the one point"
    how_far = miss_text(miss.shortfall)
    return f"{where} ({how_far})" if how_far else where


def _nothing_feasible(funnel: Funnel) -> str:
    """One line that says which rule ended it and how near the nearest miss was."""
    last = next((row for row in funnel.rows if row.left == 0), None)
    if last is None:
        return "nothing feasible: the grid has no points"
    near = f"; nearest miss: {_shown_miss(last.nearest)}" if last.nearest else ""
    return f"nothing feasible: no layout is left after {last.rule!r}{near}"


def _print_notes(sweep: Any) -> None:
    """What a reader must know of a sweep; rows that were read say nothing of that."""
    for note in getattr(sweep, "notes", ()):
        print(f"note: {note}", file=sys.stderr)


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON holds them: a number that does not exist is null."""
    return {
        name: None if isinstance(value, float) and value != value else value
        for name, value in values.items()
    }


def _layout_dict(layout: Any, model: Model) -> dict[str, Any]:
    quantities = {
        name: {
            "value": value,
            "unit": model.formulas[name].unit,
            "equation": model.formulas[name].equation,
            "description": model.formulas[name].description,
            "source": model.formulas[name].source,
        }
        for name, value in _finite(layout.quantities).items()
    }
    rules = [vars(verdict) for verdict in layout.verdicts]
    inputs = _finite(layout.inputs)
    return {"feasible": layout.feasible, "quantities": quantities, "rules": rules, "inputs": inputs}


def _print_layout(layout: Any, model: Model) -> None:
    failed = [verdict.rule for verdict in layout.verdicts if not verdict.holds]
    print(f"not feasible: fails {', '.join(failed)}" if failed else "feasible: every rule holds")
    print()
    inputs = _table("input", "value")
    for name, value in layout.inputs.items():
        inputs.add_row(name, _shown_value(model, name, value))
    _print_table(inputs)
    print()
    table = _table("quantity", "value", "equation", "source")
    _right(table, 1)
    for name, value in layout.quantities.items():
        formula = model.formulas[name]
        table.add_row(name, _shown_value(model, name, value), formula.equation, formula.source)
    _print_table(table)
    print()
    rules = _table("rule", "holds", "room to spare")
    _right(rules, 2)
    for verdict in layout.verdicts:
        room = "–" if verdict.margin is None else units.human(verdict.margin, verdict.unit)
        rules.add_row(verdict.rule, "yes" if verdict.holds else "NO", room)
    _print_table(rules)


# --- listings ------------------------------------------------------------------------------------

Row = Mapping[str, Any]
Columns = dict[str, Callable[[Row], str]]


def _catalog_rows(table: str) -> list[dict[str, Any]]:
    from mlsysim_sweep.catalog import Catalog

    return [row.as_dict() for row in Catalog().table(table).values()]


def _fact(name: str, unit: str) -> Callable[[Row], str]:
    return lambda row: units.human(float(row[name]), unit) if name in row else ""


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(name, ""))


def _peak(precision: str) -> Callable[[Row], str]:
    def shown_peak(row: Row) -> str:
        peaks = row["peak_flops"]
        return units.human(peaks[precision], "flop/s") if precision in peaks else ""

    return shown_peak


def _accelerators() -> tuple[list[dict[str, Any]], Columns]:
    return _catalog_rows("accelerator"), {
        "name": _text("name"),
        "memory": lambda row: _gib(row.get("device_memory")),
        "bandwidth": _fact("memory_bandwidth", "byte/s"),
        "bf16": _peak("bf16"),
        "fp8": _peak("fp8"),
        "scale-up": _fact("scaleup_bandwidth", "byte/s"),
        "node": _text("devices_per_node"),
        "NIC": _fact("scaleout_bandwidth", "byte/s"),
        "TDP": _fact("tdp", "W"),
    }


def _gib(value: float | None) -> str:
    """Memory as its label has it: whole GiB where it is, else GB."""
    if value is None:
        return ""
    gib = value / 2**30
    return f"{gib:g} GiB" if gib == round(gib) else units.human(value, "byte")


def _workloads() -> tuple[list[dict[str, Any]], Columns]:
    names = ("layers", "hidden", "heads", "kv_heads", "experts", "context_length")
    return _catalog_rows("workload"), {
        "name": _text("name"),
        "parameters": lambda row: f"{row['parameters'] / 1e9:.4g}e9",
        "active": lambda row: f"{row['active_parameters'] / 1e9:.4g}e9",
        **{name: _text(name) for name in names},
    }


def _links() -> tuple[list[dict[str, Any]], Columns]:
    return _catalog_rows("link"), {
        "name": _text("name"),
        "bandwidth": _fact("link_bandwidth", "byte/s"),
        "scope": _text("scope"),
        "title": _text("title"),
    }


def _grids() -> tuple[list[dict[str, Any]], Columns]:
    from mlsysim_sweep.grids.spec import bundled

    rows = [{"name": name, "purpose": purpose} for name, purpose in bundled().items()]
    return rows, {"name": _text("name"), "purpose": _text("purpose")}


def _quantities() -> tuple[list[dict[str, Any]], Columns]:
    from mlsysim_sweep.kernels import MODELS, model

    keys = ("name", "unit", "equation", "description", "source")
    rows = [
        {"model": name, **{key: getattr(found, key) for key in keys}}
        for name in MODELS
        for found in model(name).outputs.values()
    ]
    return rows, {key: _text(key) for key in keys}


def _inputs() -> tuple[list[dict[str, Any]], Columns]:
    from mlsysim_sweep.vocabulary import VOCABULARY

    rows = [
        {
            "name": entry.name,
            "unit": entry.unit,
            "allowed": entry.allowed,
            "default": entry.default,
            "meaning": entry.meaning,
        }
        for entry in VOCABULARY.values()
    ]

    def default(row: Row) -> str:
        return "" if row["default"] is None else str(row["default"])

    return rows, {
        "name": _text("name"),
        "unit": _text("unit"),
        "allowed": _text("allowed"),
        "default": default,
        "meaning": _text("meaning"),
    }


_LISTINGS: Mapping[str, Callable[[], tuple[list[dict[str, Any]], Columns]]] = {
    "accelerators": _accelerators,
    "workloads": _workloads,
    "links": _links,
    "grids": _grids,
    "quantities": _quantities,
    "inputs": _inputs,
}
