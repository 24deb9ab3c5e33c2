"""The report in a browser: what it says, that it asks nobody, that hostile names are inert."""

import json
import re
import shutil
import time
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mlsysim_sweep as ms
from mlsysim_sweep.report import gather, html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = [
    "<script>window.broken=1</script>",
    '"onerror="window.broken=1',
    "</script><script>window.broken=1</script>",
    "<img src=x onerror=window.broken=1>",
    "javascript:window.broken=1",
    "=1+1",
    "a'b&amp;\u2028",
]


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here: on Debian, apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page; returns it, what its console said, and what it asked for."""

    def open_page(text, width=1200, height=900, **options):
        path = tmp_path / "report.html"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page, said, [url for url in asked if url != path.as_uri()]

    return open_page


@pytest.fixture(scope="module")
def content():
    return gather(ms.Sweep.load("gpt3-million"))


def hostile_rows(count=40):
    rng = np.random.default_rng(0)
    names = [HOSTILE[i % len(HOSTILE)] for i in range(count)]
    return pa.table(
        {
            "accelerator": names,
            "tp": rng.integers(1, 9, count),
            "pp": rng.integers(1, 9, count),
            HOSTILE[0]: rng.random(count),
            "step_time": rng.random(count),
            "n_devices": rng.integers(1, 100, count),
        }
    )


def test_what_it_says_is_so(content):
    sweep = ms.Sweep.load("gpt3-million")
    table = sweep.table()
    assert content.rows == len(table)
    front = sweep.pareto(minimize=["step_time", "n_devices"], by="accelerator")
    assert content.front_size == len(front)
    assert sum(count for _, _, count in content.pictures["scatter"]["cells"]) == len(table)
    best = table.groupby(["tp", "pp"])["step_time"].min()
    heat = content.pictures["heat"]
    cells = [text for row in heat["texts"] for text in row]
    assert sum(bool(text) for text in cells) == len(best)
    least = min(p for row in heat["places"] for p in row if p is not None)
    assert least == pytest.approx(0, abs=1e-3)
    assert content.funnel[0][2] == f"{sweep.points:,}"
    assert content.funnel[-1][2] == f"{len(table):,}"


def test_a_file_says_the_same_as_its_sweep(content, tmp_path):
    sweep = ms.Sweep.load("gpt3-million")
    sweep.to_parquet(tmp_path / "rows.parquet")
    found = gather(tmp_path / "rows.parquet")
    assert (found.rows, found.front_size) == (content.rows, content.front_size)
    assert found.question == content.question and found.notes == content.notes
    assert found.pictures["scatter"] == content.pictures["scatter"]


def test_it_opens_without_a_word_or_a_request(opened, content):
    page, said, asked = opened(html(content))
    assert said == [] and asked == []
    assert page.evaluate("scatter.points.length") == len(content.front)
    assert page.locator("#front tbody tr").count() == len(content.front)
    assert f"{content.front_size:,} of them" in page.locator("header").inner_text()


def test_hover_shows_the_layout_and_click_pins_it(opened, content):
    page, _, _ = opened(html(content))
    box = page.locator("#scatter").bounding_box()
    x, y = page.evaluate("at(scatter.points[7])")
    page.mouse.move(box["x"] + x, box["y"] + y)
    tip = page.locator("#scatter-tip")
    shown = page.evaluate("hovered")
    words = page.evaluate(f"scatter.texts[{shown}]")
    assert tip.is_visible() and all(word in tip.inner_text() for word in words)
    page.mouse.click(box["x"] + x, box["y"] + y)
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    assert tip.is_visible()
    assert page.locator("tr.pinned").count() == 1
    page.mouse.click(box["x"] + 5, box["y"] + 5)
    assert page.locator("tr.pinned").count() == 0 and not tip.is_visible()


def test_the_table_sorts_and_copies(opened, content):
    page, _, _ = opened(html(content))
    names = list(content.front_columns)
    column = names.index("n_devices")
    button = page.locator(f'#front button[data-column="{column}"]')

    def values():
        cells = page.locator(f"#front tbody td:nth-child({column + 1})").all_inner_texts()
        return [int(text.replace(",", "")) for text in cells]

    button.click()
    assert values() == sorted(content.front["n_devices"].tolist())
    button.click()
    assert values() == sorted(content.front["n_devices"].tolist(), reverse=True)
    head, *rows = page.evaluate("csv()").splitlines()
    assert head.split(",")[names.index("step_time")] == "step_time [s]"
    assert len(rows) == len(content.front)
    at = names.index("step_time")
    copied = sorted(float(row.split(",")[at]) for row in rows)
    assert copied == sorted(content.front["step_time"].tolist())


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, *sorted(name for name, _ in attrs)))


def test_hostile_names_add_no_element_or_attribute(tmp_path):
    """Fault 49."""
    rows = hostile_rows()
    tame = rows.rename_columns([f"name{i}" if n == HOSTILE[0] else n
                                for i, n in enumerate(rows.column_names)])  # fmt: skip
    tame = tame.set_column(0, "accelerator", pa.array([
        f"name{HOSTILE.index(n)}" for n in rows["accelerator"].to_pylist()]))  # fmt: skip
    found = []
    for table in (rows, tame):
        parser = _Tags()
        parser.feed(html(gather(table)))
        found.append(sorted(parser.found))
    assert found[0] == found[1]


def test_hostile_names_are_inert_in_the_browser(opened, tmp_path):
    rows = hostile_rows()
    pq.write_table(rows, tmp_path / "<b>rows&.parquet")
    page, said, asked = opened(html(gather(tmp_path / "<b>rows&.parquet", by="accelerator")))
    assert said == [] and asked == []
    assert page.evaluate("window.broken") is None
    legend = page.locator("#scatter-legend span").all_inner_texts()
    shown = set(rows["accelerator"].to_pylist())
    assert {text.replace("\u2028", " ") for text in legend} <= {
        re.sub("\u2028", " ", name) for name in shown
    } | shown
    assert page.locator("h1").inner_text() == "<b>rows&.parquet"
    copied = page.evaluate("csv()")
    assert "\n=1+1" not in copied


def test_a_foreign_script_is_refused_by_the_page_itself(opened, content):
    text = html(content).replace("</main>", "<script>window.broken=1</script></main>")
    page, said, _ = opened(text)
    assert page.evaluate("window.broken") is None
    assert any("Content Security Policy" in line for line in said)


def test_a_million_rows_open_at_once(opened, tmp_path):
    rng = np.random.default_rng(0)
    count = 10**6
    table = pa.table(
        {
            "accelerator": pa.array(["H100", "B200"]).take(pa.array(rng.integers(0, 2, count))),
            "tp": rng.integers(1, 65, count),
            "pp": rng.integers(1, 97, count),
            "step_time": rng.lognormal(size=count),
            "n_devices": rng.integers(1, 10**5, count),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    text = html(gather(tmp_path / "rows.parquet"))
    assert len(text.encode()) < 10 * 10**6
    start = time.monotonic()
    page, said, _ = opened(text)
    assert page.evaluate("frame !== null") and said == []
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_screen(opened, content, scheme, width):
    page, said, _ = opened(html(content), width=width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []


def test_numbers_that_do_not_exist_leave_valid_json():
    """Fault 52."""
    table = pa.table({"tp": [1, 2, 4], "pp": [1, 1, 2], "step_time": [1.0, np.inf, np.nan],
                      "n_devices": [3, 2, 1], "bubble": [np.nan] * 3})  # fmt: skip
    text = html(gather(table))
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]

    def refused(constant):
        raise ValueError(constant)

    json.loads(data, parse_constant=refused)


def test_nothing_feasible_is_said():
    with pytest.raises(ms.Mistake, match="no feasible row"):
        gather(ms.Sweep.load("gpt3-1k-h100").variant(feasible={"where": ["step_time < 1e-9 s"]}))
    with pytest.raises(ms.Mistake, match="no objective given"):
        gather(pa.table({"x": [1]}))


def test_one_objective_and_one_point():
    one = ms.Sweep.load("gpt3-1k-h100").variant(
        inputs={"accelerator": "H100", "tp": 8, "pp": 4, "dp": 32, "microbatches": 32}
    )
    assert "<html" in html(gather(one, maximize=["efficiency"]))
