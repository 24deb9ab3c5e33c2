"""The page: one file, no request to anywhere, every word from outside escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from mlsysim_sweep import tables
from mlsysim_sweep.report.content import Content


def html(content: Content) -> str:
    """A report as one HTML page that needs nothing else.

    Words are escaped where they stand; what the script reads is JSON in which no tag can end. The
    page's own policy allows its one style and one script, by their hashes, and no request at all.
    """
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    title = escape(content.title)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{title}</title><style>{style}</style></head><body>",
            f"<header><h1>{title}</h1><p>{_lead(content)}</p></header><main>",
            *_sections(content),
            f"</main><footer>mlsysim-sweep {escape(content.version)}</footer>",
            f'<script type="application/json" id="data">{_embedded(content.pictures)}</script>',
            f"<script>{script}</script></body></html>\n",
        ]
    )


def _asset(name: str) -> str:
    return (files("mlsysim_sweep.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(data: Any) -> str:
    """JSON that no browser takes for markup: a tag cannot begin in it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _lead(content: Content) -> str:
    goals = " and ".join(f"{way} {name}" for name, way in content.objectives)
    rows = f"{content.rows:,} feasible layouts"
    front = f"{content.front_size:,} of them on the front of {escape(goals)}"
    return f"{rows}, <strong>{front}</strong>."


def _sections(content: Content) -> Iterable[str]:
    yield _section("front", "Front", _scatter_note(content), _canvas("scatter", "Front"))
    yield _section("rows", "Layouts on the front", _thin_note(content), _front_table(content))
    if content.pictures["heat"]:
        about = (
            f"Best {content.pictures['heat']['objective']} for each tp and pp over all the rest."
        )
        yield _section("heat", "tp x pp", escape(about), '<div id="heat" class="wide"></div>')
    about = "A line is a feasible layout; a sample of them. Point at a line to see it alone."
    yield _section("parallel", "All quantities", about, _canvas("lines", "Parallel coordinates"))
    if content.funnel:
        table = _table(("rule", "dropped", "left", "nearest miss"), content.funnel, bars=2)
        yield _section("funnel", "What was dropped", "", table)
    if content.question:
        rules = "".join(f"<li><code>{escape(rule)}</code></li>" for rule in content.rules)
        more = f"<p>Rules:</p><ul>{rules}</ul>" if rules else ""
        yield _section(
            "question", "The question", "", _table(("input", "value"), content.question) + more
        )
    if content.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in content.notes)
        yield _section("notes", "What the model leaves out", "", f"<ul>{notes}</ul>")
    if content.columns:
        heads = ("quantity", "unit", "meaning", "source")
        rows = [
            (name, told.get("unit", ""), told.get("description", ""), told.get("source", ""))
            for name, told in content.columns.items()
        ]
        yield _section("quantities", "Quantities", "", _folded(_table(heads, rows)))
    if content.facts:
        table = _table(("fact", "read from"), content.facts)
        yield _section("sources", "Sources", "", _folded(table))


def _section(name: str, title: str, about: str, body: str) -> str:
    words = f"<p>{about}</p>" if about else ""
    return f'<section id="{name}-section"><h2>{escape(title)}</h2>{words}{body}</section>'


def _folded(body: str) -> str:
    return f"<details><summary>Show</summary>{body}</details>"


def _canvas(name: str, label: str) -> str:
    legend = f'<div id="{name}-legend" class="legend"></div>'
    box = f'<canvas id="{name}" role="img" aria-label="{escape(label)}"></canvas>'
    return f'{legend}<div class="picture">{box}<div id="{name}-tip" class="tip" hidden></div></div>'


def _scatter_note(content: Content) -> str:
    color = content.pictures["color"]["name"]
    by = f", one for each {escape(color)}" if color else ""
    return (
        f"Dots are the front{by}; the shade behind is how many feasible layouts lie there. "
        "Point at a dot for its layout, click to pin it."
    )


def _thin_note(content: Content) -> str:
    if content.thinned is None:
        return ""
    share = f"{100 * content.thinned:g} %"
    return (
        f"Thinned to {len(content.front):,}: a layout left out differs from one shown by less than "
        f"{share} in every objective."
    )


def _front_table(content: Content) -> str:
    names = content.front_columns
    plain = tables.records(content.front[list(names)])
    cells = tables.shown_cells(content.front, names)
    head = "".join(
        f'<th><button type="button" data-column="{i}">{escape(name)}</button></th>'
        for i, name in enumerate(names)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td data-value="{escape(_attribute(record[name]))}">{escape(text)}</td>'
            for name, text in zip(names, texts, strict=True)
        )
        + "</tr>"
        for record, texts in zip(plain, cells, strict=True)
    )
    heads = escape(tables.csv_text(content.front[list(names)]).splitlines()[0])
    copy = '<button type="button" id="copy">Copy as CSV</button>'
    return (
        f'<p>{copy}</p><div class="wide"><table id="front" data-heads="{heads}">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _attribute(value: Any) -> str:
    """A value as the script sorts and copies it; text that a spreadsheet computes is quoted."""
    return "" if value is None else str(tables.csv_cell(value))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], bars: int | None = None) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' data-bar' if i == bars else ''}>{escape(cell)}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="{"wide" if len(heads) > 2 else "pairs"}">{table}</div>'
