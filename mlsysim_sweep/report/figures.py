"""The report's pictures as PNG or SVG; matplotlib draws them, an extra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlsysim_sweep.errors import Mistake
from mlsysim_sweep.report.content import Content

_COLORS = ("#1f77b4", "#e07b00", "#2e9e44", "#c93c3c", "#8a63c9", "#8c564b", "#d35fae", "#7f7f7f")


def draw(content: Content, figure: str, path: Path) -> None:
    """Draw one picture of a report: ``front``, ``heat``, ``parallel`` or ``funnel``.

    Raises
    ------
    Mistake
        If there is no such picture here, the name ends otherwise than in .png or .svg, or
        matplotlib is not installed.
    """
    if figure not in FIGURES:
        raise Mistake("figure", f"{figure!r} given", f"one of {', '.join(FIGURES)}")
    if path.suffix not in (".png", ".svg"):
        raise Mistake("-o", f"{path.name} given", "a name that ends in .png or .svg")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Mistake(
            "plot", "matplotlib is missing", "pip install 'mlsysim-sweep[plot]'"
        ) from None
    made = Figure(figsize=(9, 5.5), layout="constrained")
    FIGURES[figure](made.subplots(), content)
    made.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _plain(text: str) -> str:
    """Text as it stands: matplotlib takes what is between dollar signs for mathematics."""
    return text.replace("$", r"\$")


def _ticks(axis: Any, scale: Mapping[str, Any]) -> None:
    axis.set_ticks(scale["ticks"], [_plain(label) for label in scale["labels"]])
    axis.set_label_text(_plain(scale["name"]))


def _front(axes: Any, content: Content) -> None:
    scatter, colors = content.pictures["scatter"], content.pictures["color"]["values"] or [""]
    counts = np.zeros(scatter["bins"])
    for i, j, count in scatter["cells"]:
        counts[i, j] = count
    shade = np.ma.masked_equal(np.log1p(counts.T), 0)
    axes.imshow(shade, origin="lower", extent=(0, 1, 0, 1), aspect="auto", cmap="Blues", alpha=0.6)
    for k, name in enumerate(colors):
        points = [(x, y) for x, y, color in scatter["points"] if color == k and x is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=14, color=_COLORS[k % len(_COLORS)], label=_plain(name))
    _ticks(axes.xaxis, scatter["x"])
    _ticks(axes.yaxis, scatter["y"])
    if any(colors):
        axes.legend(frameon=False)
    axes.set_title(_plain(f"{content.title}: {content.front_size:,} layouts on the front"))


def _heat(axes: Any, content: Content) -> None:
    heat = content.pictures["heat"]
    if heat is None:
        raise Mistake("figure", "tp and pp are no columns here", "another figure")
    places = np.array(heat["places"], float)
    axes.imshow(np.ma.masked_invalid(places), cmap="Blues", vmin=0, vmax=1.5, aspect="auto")
    for i, row in enumerate(heat["texts"]):
        for j, text in enumerate(row):
            axes.text(j, i, _plain(text), ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(heat["pp"])), heat["pp"])
    axes.set_yticks(range(len(heat["tp"])), heat["tp"])
    axes.set_xlabel("pp")
    axes.set_ylabel("tp")
    axes.set_title(_plain(f"{content.title}: best {heat['objective']}"))


def _parallel(axes: Any, content: Content) -> None:
    parallel = content.pictures["parallel"]
    names = [_plain(axis["name"]) for axis in parallel["axes"]]
    for line, color in zip(parallel["lines"], parallel["colors"], strict=True):
        values = [np.nan if value is None else value for value in line]
        axes.plot(values, color=_COLORS[color % len(_COLORS)], alpha=0.25, linewidth=0.8)
    for k, axis in enumerate(parallel["axes"]):
        for end, text in zip((-0.05, 1.03), axis["ends"], strict=True):
            axes.text(k, end, _plain(text), ha="center", fontsize=7)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks([])
    axes.set_ylim(-0.1, 1.1)
    axes.grid(axis="x", alpha=0.4)
    axes.set_title(_plain(f"{content.title}: a sample of {content.rows:,} layouts"), pad=16)


def _funnel(axes: Any, content: Content) -> None:
    if not content.funnel:
        raise Mistake("figure", "these rows have no funnel", "rows that a sweep wrote, or a spec")
    rules = [_plain(rule) for rule, *_ in content.funnel][::-1]
    left = [int(count.replace(",", "")) for _, _, count, _ in content.funnel][::-1]
    bars = axes.barh(rules, left, color=_COLORS[0])
    axes.set_xscale("symlog", linthresh=1)
    axes.bar_label(bars, [f"{count:,}" for count in left], padding=4)
    axes.margins(x=0.2)
    axes.set_title(_plain(f"{content.title}: layouts left after each rule"))


FIGURES: Mapping[str, Callable[[Any, Content], None]] = {
    "front": _front,
    "heat": _heat,
    "parallel": _parallel,
    "funnel": _funnel,
}
