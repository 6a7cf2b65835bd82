"""Opens report.html of several kinds of runs in headless Chromium and uses it.

    test_report_page.py PROGRAM SOURCE_DIR SCRATCH_DIR [SCREENSHOT_DIR]

Prints KVSIM-SKIPPED and the reason without Chromium. With SCREENSHOT_DIR each page is also
drawn at 390 and 1280 pixels, light and dark, and as PDF.
"""

import json
import os
import pathlib
import subprocess
import sys

from chromium import Chromium, find_chromium

PROGRAM, SOURCE, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
SHOTS = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else None

TRACE = SOURCE / "traces/samples/books-treasure-512.safetensors"
OTHER = SCRATCH / "other.safetensors"  # generated; the second trace, in addition to TRACE, for means over traces
# Per page: the command that generates it, its kind, and its minimum number of charts.
PAGES = {
    "static": (["run", "scenarios/zeromerge-a800.json"], "static", 6),
    "serve": (["run", "scenarios/serve-azure-code.json"], "serve", 8),
    "plan": (["plan", "scenarios/plan-h100-longcontext.json"], "plan", 2),
    "sweep": (["sweep", "scenarios/sweep-methods.json"], "scenario-sweep", 1),
    "replay": (["replay", "--trace", str(TRACE), "--method", "full,h2o,snapkv", "--budget", "0.1,0.2"], "replay", 4),
    "aggregate": (["replay", "--trace", str(TRACE), "--trace", str(OTHER), "--method", "full,h2o,snapkv", "--budget", "0.1,0.2"],
                  "aggregate", 1),
}

failures = []


def check(what, holds, detail=""):
    if not holds:
        failures.append(f"{what}: {detail}" if detail != "" else what)


def make(name):
    words, _, _ = PAGES[name]
    folder = SCRATCH / name
    # Without gnuplot, because its figures are not tested here.
    run = lambda words: subprocess.run([PROGRAM, *words], cwd=SOURCE, check=True, env={"PATH": ""}, stdout=subprocess.DEVNULL)
    if str(OTHER) in words:
        run(["trace", "generate", str(OTHER), "--layers", "2", "--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--tokens", "256"])
    run([*words, "-o", str(folder), "-q"])
    # Means over traces are shown next to the results of each trace.
    return (folder / ("aggregate" if name == "aggregate" else "") / "report.html").as_uri()


# For every chart: id, kind of renderer, marks, and position.
CARDS = """
kvsimCards.all().map(card => {
  const svg = card.plot.querySelector('svg');
  const box = card.plot.getBoundingClientRect();
  return {id: card.options.id, kind: card.spec.kind, paths: svg ? svg.querySelectorAll('path, rect, circle, polygon').length : 0,
          width: box.width, svgWidth: svg ? svg.getBoundingClientRect().width : 0,
          title: card.node.querySelector('h3').textContent, named: Boolean(card.plot.getAttribute('aria-labelledby'))};
})
"""


def tip_at(page, card, fx, fy):
    place = page.evaluate(f"""(() => {{
      const card = kvsimCards.all().find(c => c.options.id === {json.dumps(card)});
      card.plot.scrollIntoView({{block: 'center', behavior: 'instant'}});
      const box = card.plot.getBoundingClientRect();
      return [box.x + box.width * {fx}, box.y + box.height * {fy}];
    }})()""")
    page.hover(*place)
    return page.evaluate(f"""(() => {{
      const card = kvsimCards.all().find(c => c.options.id === {json.dumps(card)});
      const tip = card.plot.querySelector('.tip');
      return tip && getComputedStyle(tip.parentElement).visibility !== 'hidden' ? tip.innerText : '';
    }})()""")


def mark_place(card):
    """Returns a position inside the first mark of a line, as fractions of the chart; hovering there shows a tip."""
    return f"""(() => {{
      const card = kvsimCards.all().find(c => c.options.id === {json.dumps(card)});
      const series = card.option.series.findIndex(s => String(s.id).startsWith('line:') && s.data.length > 0);
      const data = card.option.series[series].data;
      const item = data[Math.floor(data.length / 2)];
      let at;
      if (card.spec.kind === 'heat') at = card.chart.convertToPixel({{seriesIndex: series}}, [item[0], item[1]]);
      else if (card.spec.kind === 'bars') {{
        const k = data.findIndex(v => v > 0);
        at = card.chart.convertToPixel({{seriesIndex: series}}, [data[k] / 2, k]);
      }} else at = card.chart.convertToPixel({{seriesIndex: series}}, item.value || item);
      const box = card.plot.getBoundingClientRect();
      return [at[0] / box.width, at[1] / box.height];
    }})()"""


def use(page, name):
    _, kind, fewest = PAGES[name]
    check(f"{name}: ready", page.evaluate("document.documentElement.dataset.ready") == "true")
    check(f"{name}: kind", page.evaluate("JSON.parse(document.getElementById('kvsim-report').textContent).kind") == kind)
    cards = page.evaluate(CARDS)
    check(f"{name}: charts", len(cards) >= fewest, len(cards))
    check(f"{name}: ids are unique", len({c["id"] for c in cards}) == len(cards))
    for card in cards:
        where = f"{name}: {card['id']}"
        check(f"{where}: marks", card["paths"] > 8, card["paths"])
        check(f"{where}: a name for screen readers", card["named"])
        check(f"{where}: fits its card", card["svgWidth"] <= card["width"] + 1, (card["svgWidth"], card["width"]))
        x, y = page.evaluate(mark_place(card["id"]))
        text = tip_at(page, card["id"], x, y)
        check(f"{where}: hovering shows a number", any(c.isdigit() for c in text), repr(text))
    repeated = page.evaluate("""(() => {
      const ids = [...document.querySelectorAll('[id]')].map(node => node.id);
      return ids.filter((id, i) => ids.indexOf(id) !== i); })()""")
    check(f"{name}: no id twice on the page", repeated == [], repeated)
    check(f"{name}: links within the page have targets", page.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].every(a => document.getElementById(a.hash.slice(1)))"))
    check(f"{name}: text at the top", page.evaluate("document.querySelectorAll('.verdict li').length") >= 1)
    check(f"{name}: every heading level in order", page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3')].every((h, i, all) => i === 0 || +h.tagName[1] <= +all[i-1].tagName[1] + 1)"))
    check(f"{name}: tables", page.evaluate("""(() => {
      const card = kvsimCards.all()[0];
      card.data.open = true;
      card.fillTable();
      return card.data.querySelectorAll('tbody tr').length; })()""") > 0)
    check(f"{name}: nothing fetched", [r for r in page.requests if not r.startswith("file:")] == [], page.requests)
    check(f"{name}: console", page.messages == [], page.messages)


def intervals(page):
    """Checks that an interval belongs to the point at its x, even if the line has more points than its band."""
    spec = """{kind: 'lines', x: {name: 'length', unit: 'tokens'}, y: {name: 'rate', unit: 'tok/s'}, levels: [],
      series: [{name: 'full', values: [[1, 10], [2, 20], [3, 30]], band: [[1, 5, 15], [3, 25, 35]]}]}"""
    rows = page.evaluate(f"kvsimCardParts.dataOf({spec})[1].map(row => row[3])")
    check("static: the table pairs points and intervals", rows == ["5 tok/s to 15 tok/s", "–", "25 tok/s to 35 tok/s"], rows)
    words = [page.evaluate(f"kvsimCardTips.wordsOf({spec}, 0, {k})") for k in range(3)]
    check("static: intervals as text", words[2].endswith("rate 30 tok/s, 90 % interval 25 tok/s to 35 tok/s"), words[2])
    check("static: and no text without an interval", words[1].endswith("rate 20 tok/s"), words[1])


def nested_marks(page):
    """Checks that marks of several lines at one position are concentric rings and other marks are plain."""
    spec = """{kind: 'KIND', x: {name: 'length', unit: 'tokens'}, y: {name: 'rate', unit: 'tok/s'}, levels: [],
      series: [{name: 'a', values: [[1, 10], [2, 20]]}, {name: 'b', values: [[1, 10], [2, 30]]},
               {name: 'c', values: [[1, 10.01], [2, 40]]}]}"""
    for kind in ("lines", "points"):
        sizes = page.evaluate(f"""kvsimCharts.optionOf({spec.replace('KIND', kind)}, new Set(), 800).option.series
          .filter(s => s.id.startsWith('line:')).map(s => s.data.map(d => (d.symbolSize || s.symbolSize) - s.symbolSize))""")
        check(f"static: marks at one place of {kind} are nested", sizes == [[0, 0], [5, 0], [10, 0]], sizes)


def toggles(page):
    """On the static page, hides and shows a method's line, switches axes, and zooms."""
    card = "kvsimCards.all().find(c => c.options.id === 'chart-memory-vs-length')"
    # Strokes in the colour of the first line, which is unique among the first seven lines.
    lines = f"""(() => {{ const c = {card}; const {{colour}} = kvsimCharts.styleOf(c.spec, 0);
      return [...c.plot.querySelectorAll('svg path')].filter(p => p.getAttribute('stroke') === colour && !p.closest('.tip')).length; }})()"""
    if not page.evaluate(f"Boolean({card})"):
        check("static: memory versus length exists", False)
        return
    text = tip_at(page, "chart-memory-vs-length", 0.5, 0.5)
    check("static: hovering memory shows bytes", "GiB" in text, repr(text))
    check("static: hovering memory shows tokens", "tokens" in text, repr(text))
    before = page.evaluate(lines)
    check("static: a line has marks", before > 0)
    first = page.evaluate(f"{card}.spec.series[0].name")
    page.evaluate("document.querySelector('#chart-memory-vs-length .key button').click()")
    page.settle()
    check("static: a line that is switched off is hidden", page.evaluate(lines) == 0, page.evaluate(lines))
    check("static: its key says so", page.evaluate(
        "document.querySelector('#chart-memory-vs-length .key button').getAttribute('aria-pressed')") == "false")
    text = tip_at(page, "chart-memory-vs-length", 0.5, 0.5)
    check("static: hovering does not show it", f"\n {first}\t" not in text, repr(text))
    page.evaluate("document.querySelector('#chart-memory-vs-length .key button').click()")
    page.settle()
    check("static: and is shown again", page.evaluate(lines) == before, (page.evaluate(lines), before))
    page.evaluate("document.querySelector('#chart-memory-vs-length input[data-log=y]').click()")
    page.settle()
    check("static: the axis is logarithmic", page.evaluate(f"{card}.chart.getOption().yAxis[0].type") == "log")
    page.evaluate("document.querySelector('#chart-memory-vs-length input[data-log=y]').click()")
    page.evaluate(f"{card}.zoom(0.5)")
    zoom = page.evaluate(f"(() => {{ const z = {card}.chart.getOption().dataZoom[0]; return z.end - z.start; }})()")
    check("static: zoom", abs(zoom - 50) < 1, zoom)
    page.evaluate(f"{card}.zoom(0)")
    # A table with the same numbers.
    check("static: memory as a table", page.evaluate(f"""(() => {{ const c = {card}; c.data.open = true; c.fillTable();
      return c.data.innerText; }})()""").count("GiB") > 10)


def keyboard(page):
    """Checks that Tab reaches legend keys and charts, and that arrow keys move along a line and announce its values."""
    page.go(page.evaluate("location.href"))
    reached = set()
    for _ in range(60):
        page.press("Tab")
        reached.add(page.evaluate("document.activeElement.className.split(' ')[0] || document.activeElement.tagName"))
    for what in ("theme", "entry", "plot"):
        check(f"keyboard reaches {what}", what in reached, sorted(reached))
    page.evaluate("kvsimCards.all()[0].plot.focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    said = page.evaluate("kvsimCards.all()[0].live.textContent")
    check("arrows announce a value", any(c.isdigit() for c in said), repr(said))
    page.press("ArrowDown")
    check("down selects another line", page.evaluate("kvsimCards.all()[0].live.textContent") != said)
    marks(page)
    page.evaluate("document.querySelector('.entry').focus()")
    page.press(" ", "Space")
    check("space switches a line", page.evaluate("document.querySelector('.entry').getAttribute('aria-pressed')") == "false")


def means(page):
    """Checks that the table of means over traces equals aggregate.csv, including intervals."""
    rows = page.evaluate("[...document.querySelectorAll('#results table tbody tr')].map(r => [...r.children].map(c => c.innerText))")
    check("aggregate: a row per method and budget", len(rows) == 5, rows)
    check("aggregate: over both traces", all(row[2] == "2" for row in rows), rows)
    document = page.evaluate("JSON.parse(document.getElementById('kvsim-report').textContent).document")
    first = next(r for r in document["aggregate"] if r["name"] == "h2o")
    shown = next((row for row in rows if row[0] == "h2o"), [])
    error = page.evaluate(f"kvsimCharts.number({first['rel_error']['mean']})")
    low = page.evaluate(f"kvsimCharts.number({first['rel_error']['ci95_low']})")
    check("aggregate: the mean error and its interval", any(error in cell and low in cell for cell in shown), (error, low, shown))


def marks(page):
    """Checks that arrow keys stop at open marks and crosses, and that these are announced and shown."""
    card = "kvsimCards.all().find(c => c.options.id === 'chart-memory-vs-length')"
    live = f"{card}.live.textContent"
    # On the first line, the cross is the last stop and the open mark is one of the first stops.
    spec = page.evaluate(f"""(() => {{ const {{series}} = {card}.spec;
      return series.map(s => ({{name: s.name, points: s.values.length,
        ends: (s.ends || []).map(e => e.text), open: (s.open || []).map(e => e.text)}})); }})()""")
    first = spec[0]
    check("keyboard: the first line has a cross and an open mark", first["ends"] and first["open"], first)
    page.evaluate(f"(() => {{ {card}.at = null; {card}.plot.focus(); }})()")
    page.press("End")
    page.settle()
    said = page.evaluate(live)
    check("keyboard: the end of the line is its cross", first["ends"][0] in said and "tokens" in said, repr(said))
    tip = page.evaluate(f"""(() => {{ const tip = {card}.plot.querySelector('.tip');
      return tip && getComputedStyle(tip.parentElement).visibility !== 'hidden' ? tip.innerText : ''; }})()""")
    check("keyboard: the cross has its tip", first["ends"][0] in tip, repr(tip))
    page.press("ArrowLeft")
    check("keyboard: left of it is a point of the line", page.evaluate(live) != said)
    page.press("Home")
    # Each stop occurs once, from left to right; their number is that of points and marks.
    heard = [page.evaluate(live)]
    for _ in range(first["points"] + 4):
        page.press("ArrowRight")
        heard.append(page.evaluate(live))
    places = list(dict.fromkeys(heard))
    wanted = first["points"] + len(first["ends"]) + len(first["open"])
    check("keyboard: every point and mark once", len(places) == wanted, (len(places), wanted))
    check("keyboard: including the open mark", sum(first["open"][0] in one for one in places) == 1, first["open"])
    # A line that ran out of memory before its first step has no points, but its cross is still reached.
    pointless = [s["name"] for s in spec if s["points"] == 0 and s["ends"]]
    check("keyboard: such a line exists", pointless, spec)
    page.press("Home")
    heard = []
    for _ in range(len(spec)):
        heard.append(page.evaluate(live))
        page.press("ArrowDown")
    for name in pointless:
        check(f"keyboard: the cross of {name}", any(one.startswith(f"{name}: ") for one in heard), heard)


def themes(browser, uri):
    colours = {}
    for dark in (False, True):
        page = browser.open(uri, dark=dark)
        colours[dark] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.close()
    check("dark and light have different backgrounds", colours[True] != colours[False], colours)
    page = browser.open(uri)
    page.evaluate("document.getElementById('theme').click()")
    page.evaluate("document.getElementById('theme').click()")
    check("the switch makes it dark", page.evaluate("getComputedStyle(document.body).backgroundColor") == colours[True])
    page.close()


def widths(page, name):
    for width in (1600, 768, 360):
        page.size(width, 900)
        for _ in range(5):
            page.settle()
        wide = page.evaluate("document.documentElement.scrollWidth")
        check(f"{name}: no horizontal scrolling at {width}", wide <= width, wide)
        over = page.evaluate("kvsimCards.all().filter(c => c.plot.querySelector('svg').getBoundingClientRect().width > c.plot.getBoundingClientRect().width + 1).map(c => c.options.id)")
        check(f"{name}: charts resize to {width}", over == [], over)


def tables_fit(page, name):
    """Checks that the result tables need no horizontal scrolling at 1400 pixels."""
    page.size(1400, 900)
    for _ in range(5):
        page.settle()
    wide = page.evaluate("""[...document.querySelectorAll('#results .scroll')].filter(box => box.scrollWidth > box.clientWidth + 1)
      .map(box => [box.scrollWidth, box.clientWidth, box.querySelector('thead').innerText])""")
    check(f"{name}: tables fit 1400 pixels", wide == [], wide)


def percentiles(page):
    """Checks that the table of times has p50, p90, p95 and p99 of every point."""
    head = page.evaluate("[...document.querySelectorAll('#results table')][1].querySelector('thead').innerText.split(/\\s+/)")
    check("serve: percentiles", all(p in head for p in ("p50", "p90", "p95", "p99")), head)
    points = page.evaluate("JSON.parse(document.getElementById('kvsim-report').textContent).document.points")
    rows = page.evaluate("[...document.querySelectorAll('#results table')][1].querySelectorAll('tbody tr').length")
    check("serve: a row per point and time", rows >= 3 * len(points), (rows, len(points)))


# A name in a user's file may contain markup, line ends, direction marks, or joined emoji.
HOSTILE = ("<script>alert(1)</script></script><!--]]>&amp;\"'\n\u2028\u2029\u202e\u2066\u200f\U0001F600"
           "\U0001F469\u200d\U0001F469\u200d\U0001F467 e\u0301%s${x}`" * 20)[:400]


def hostile_page(browser):
    """Opens the page of a service with this name as model and title: it runs no script from the name, and its texts are bounded."""
    folder = SCRATCH / "hostile"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
        "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4, "vocab_size": 1000,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}))
    (folder / "s.json").write_text(json.dumps({
        "kind": "serve", "title": HOSTILE, "model": [{"config": "config.json", "name": HOSTILE}, {"config": "config.json", "name": HOSTILE[::-1]}], "gpu": "H100-80GB-SXM",
        "stack": "vllm", "slo": {"ttft": "2 s"}, "method": ["full", {"name": "streaming-llm", "budget": 256}],
        "requests": {"arrivals": {"kind": "poisson", "rate": 2}, "count": 50, "prompt_tokens": 200, "output_tokens": 50}}))
    subprocess.run([PROGRAM, "run", "s.json", "-o", "out", "-q"], cwd=folder, check=True, env={"PATH": ""}, stdout=subprocess.DEVNULL)
    page = browser.open((folder / "out" / "report.html").as_uri())
    check("hostile: ready", page.evaluate("document.documentElement.dataset.ready") == "true")
    check("hostile: only scripts of the page", page.evaluate("document.querySelectorAll('script:not([type])').length") ==
          page.evaluate("[...document.scripts].filter(s => !s.type && !s.textContent.includes('alert(1)')).length"))
    longest = page.evaluate("""Math.max(...[...document.querySelectorAll('svg text, h1, h3, .entry, option, th')]
      .map(node => [...node.textContent].length))""")
    check("hostile: no text of a chart, heading or table is longer than 200 characters", longest <= 200, longest)
    # Chromium crashes when it announces a text with an emoji that was cut in two.
    halves = page.evaluate("""[...document.querySelectorAll('*')].filter(node => node.children.length === 0 &&
      /[\\uD800-\\uDBFF](?![\\uDC00-\\uDFFF])|(?<![\\uD800-\\uDBFF])[\\uDC00-\\uDFFF]/.test(node.textContent)).length""")
    check("hostile: no split character", halves == 0, halves)
    lines = page.evaluate("[...document.querySelectorAll('h1')].every(h => !/[\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\n]/.test(h.textContent))")
    check("hostile: no direction marks or line ends in the title", lines)
    check("hostile: console", page.messages == [], page.messages)
    for width in (1400, 390):
        page.size(width, 900)
        for _ in range(3):
            page.settle()
        check(f"hostile: no horizontal scrolling at {width}", page.evaluate("document.documentElement.scrollWidth") <= width)
    page.close()


def shots(browser, uri, name):
    SHOTS.mkdir(parents=True, exist_ok=True)
    for width in (390, 1280):
        for dark in (False, True):
            page = browser.open(uri, width=width, dark=dark)
            page.screenshot(SHOTS / f"{name}-{width}-{'dark' if dark else 'light'}.png")
            if width == 1280 and not dark:
                page.pdf(SHOTS / f"{name}.pdf")
            page.close()


def main():
    if find_chromium() is None:
        print("KVSIM-SKIPPED: no Chromium is installed: KVSIM_CHROMIUM names one")
        return 0
    SCRATCH.mkdir(parents=True, exist_ok=True)
    wanted = os.environ.get("KVSIM_PAGES", ",".join(PAGES)).split(",")
    uris = {name: make(name) for name in wanted}
    with Chromium() as browser:
        for name, uri in uris.items():
            page = browser.open(uri)
            use(page, name)
            if name == "static":
                intervals(page)
                nested_marks(page)
                toggles(page)
                keyboard(page)
                check("static: console after use", page.messages == [], page.messages)
            if name == "aggregate":
                means(page)
            if name == "serve":
                percentiles(page)
            tables_fit(page, name)
            widths(page, name)
            page.close()
        themes(browser, next(iter(uris.values())))
        hostile_page(browser)
        if SHOTS:
            for name, uri in uris.items():
                shots(browser, uri, name)
    for failure in failures:
        print("FAILED", failure)
    print(f"{len(uris)} pages, {len(failures)} failures")
    return 1 if failures else 0


sys.exit(main())
