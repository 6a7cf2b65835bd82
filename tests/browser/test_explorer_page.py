"""Opens the explorer in headless Chromium, changes its controls and reads its answers.

    test_explorer_page.py PROGRAM SCRATCH_DIR [SCREENSHOT_DIR]

Prints KVSIM-SKIPPED and the reason without Chromium. With SCREENSHOT_DIR the page is also drawn
at 390 and 1280 pixels, light and dark.
"""

import json
import pathlib
import subprocess
import sys
import time

from chromium import Chromium, find_chromium

PROGRAM, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2])
SHOTS = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
WAIT_S = 60.0
failures = []


def check(what, holds, detail=""):
    if not holds:
        failures.append(f"{what}: {detail}" if detail != "" else what)


def text(page, element):
    return page.evaluate(f"document.getElementById({json.dumps(element)}).textContent")


def answered(page):
    """Waits until the current controls are answered or refused. Errors: TimeoutError."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        # Before the core has started there is no state.
        if page.evaluate("document.getElementById('answers')?.dataset.state ?? 'waiting'") != "waiting":
            page.settle()
            return
        time.sleep(0.02)
    raise TimeoutError(f"no answer; status: {text(page, 'status')}")


def set_knob(page, knob, value):
    """Sets a control as a user does."""
    page.evaluate(f"""(() => {{
      const control = document.getElementById({json.dumps('knob-' + knob)});
      control.value = {json.dumps(value)};
      control.dispatchEvent(new Event(control.tagName === 'SELECT' ? 'change' : 'input', {{bubbles: true}}));
    }})()""")


def turn(page, knob, value):
    """Sets a control and waits for the answer."""
    set_knob(page, knob, value)
    answered(page)


def give(page, control, name, content):
    """Chooses a file in a control as a user does."""
    page.evaluate(f"""(() => {{
      const data = new DataTransfer();
      data.items.add(new File([{json.dumps(content)}], {json.dumps(name)}));
      const input = document.getElementById({json.dumps(control)});
      input.files = data.files;
      input.dispatchEvent(new Event('change', {{bubbles: true}}));
    }})()""")


def marks(page):
    """Returns, for every chart, the number of its marks and whether it fits its container."""
    return page.evaluate("""kvsimCards.all().map(card => {
      const svg = card.plot.querySelector('svg');
      return {id: card.options.id, marks: svg ? svg.querySelectorAll('path, rect, circle').length : 0,
              wide: svg ? svg.getBoundingClientRect().width <= card.node.getBoundingClientRect().width : false};
    })""")


def use(browser, address):
    page = browser.open(address, width=1280, height=900)
    answered(page)
    first = text(page, "longest")
    check("the longest context comes first", first.startswith("Longest context that fits: "), first)
    check("with its likely range", "(likely " in first, first)
    check("the verdict follows", " fits. At its peak" in text(page, "verdict"), text(page, "verdict"))
    charts = marks(page)
    check("four charts", len(charts) == 4, charts)
    for chart in charts:
        check(f"{chart['id']} has marks", chart["marks"] > 20, chart)
        check(f"{chart['id']} fits its card", chart["wide"], chart)
    check("every control has a label", page.evaluate(
        "[...document.querySelectorAll('#knobs input, #knobs select')].every(c => c.labels.length > 0 || c.getAttribute('aria-label'))"))

    # The page shows the same answers as the command line for its scenario.
    (SCRATCH / "explorer.json").write_text(text(page, "scenario"))
    done = subprocess.run([PROGRAM, "run", "explorer.json", "--json"], cwd=SCRATCH, capture_output=True, text=True, check=True)
    point = json.loads(done.stdout)["points"][0]
    shown = page.evaluate("kvsimExplorer.answers().run.points[0]")
    for key in ("peak_hbm_bytes", "prefill_s", "decode_tok_s", "largest_batch", "fewest_gpus"):
        check(f"{key} equals the command line's", abs(shown[key] - point[key]) <= 1e-6 * abs(point[key]), (shown[key], point[key]))

    # One sequence reaches the model's positions with any method; memory limits a large batch.
    turn(page, "batch", 32)
    first = text(page, "longest")
    turn(page, "method", "full")
    check("the full cache has a shorter context", text(page, "longest") != first, first)
    check("one line for one method", page.evaluate("kvsimCards.all()[0].spec.series.length") == 1)
    full = text(page, "longest")
    turn(page, "gpu", "H200-141GB-SXM")
    check("a larger GPU changes the answer", text(page, "longest") != full, full)
    turn(page, "prompt_tokens", "4000000")
    check("a point that does not fit is reported", "does not fit. Memory runs out" in text(page, "verdict"), text(page, "verdict"))
    check("the breakdown shows the failed request", page.evaluate(
        "kvsimCards.all().find(c => c.options.id === 'chart-breakdown').spec.series.some(s => s.name === 'requested')"))
    turn(page, "prompt_tokens", "16384")
    turn(page, "method", "snapkv")
    check("a method adds its controls", page.evaluate("document.querySelectorAll('[id^=knob-param-]:is(input, select)').length") > 2)
    turn(page, "stack", "vllm")
    check("an engine starts", "fits" in text(page, "verdict"), text(page, "verdict"))

    # The command that starts the engine, and platform files; a stack that is not a server has neither.
    def starts():
        deadline = time.monotonic() + WAIT_S
        before = text(page, "start-about")
        page.evaluate("document.getElementById('start').open = true")
        while text(page, "start-about") in ("…", before) and time.monotonic() < deadline:
            time.sleep(0.02)
        return text(page, "start-about"), text(page, "start-text")
    turn(page, "method", "full")
    about, command = starts()
    check("the engine has a command", command.startswith("vllm serve ") and about.startswith("vLLM "), (about, command))
    kinds = page.evaluate("[...document.getElementById('start-as').options].map(o => o.value)")
    check("and files of platforms", "command" in kinds and "compose" in kinds and "kubernetes" in kinds, kinds)
    page.evaluate("(() => { const as = document.getElementById('start-as'); as.value = 'compose'; as.onchange(); })()")
    check("a file is shown", "services:" in text(page, "start-text"), text(page, "start-text"))
    turn(page, "stack", "hf-sdpa")
    wait(page, "document.getElementById('start-about').textContent.startsWith('None: ')")
    check("no server, no command", "not a server" in text(page, "start-about"), text(page, "start-about"))
    page.evaluate("document.getElementById('start').open = false")

    # The log of a start replaces predictions. The URL stores the log, and the user can remove it.
    turn(page, "stack", "vllm")
    before = text(page, "verdict")
    def give_log(pool):
        give(page, "log", "start.log", f"Model loading took 14.99 GiB and 3 seconds\nAvailable KV cache memory: {pool} GiB\n")
    give_log("40.10")  # from another GPU
    wait(page, "document.getElementById('log-said').classList.contains('wrong')")
    check("a log of another start is refused", "differs from the log's" in text(page, "log-said"), text(page, "log-said"))
    check("and changes nothing", text(page, "verdict") == before and "start=" not in page.evaluate("location.href"))
    give_log("105.10")
    wait(page, "document.getElementById('log-said').textContent.startsWith('start.log: the pool has ')")
    answered(page)
    check("the scenario has the log's values", page.evaluate("JSON.parse(document.getElementById('scenario').textContent).engine.weights.endsWith(' B')"))
    check("the address has them", "start=" in page.evaluate("location.href"))
    check("the answers change", text(page, "verdict") != before, before)
    turn(page, "gpu", "H100-80GB-SXM")
    check("the log of another GPU is dropped", "start=" not in page.evaluate("location.href") and "dropped" in text(page, "log-said"), text(page, "log-said"))
    turn(page, "gpu", "H200-141GB-SXM")
    give_log("105.10")
    wait(page, "document.getElementById('log-said').textContent.startsWith('start.log: the pool has ')")
    answered(page)
    page.evaluate("document.getElementById('forget-log').click()")
    answered(page)
    check("forgotten, the answers are those of before", text(page, "verdict") == before, text(page, "verdict"))
    turn(page, "method", "snapkv")

    # An invalid value: the message is next to the control, the answers remain, and a valid value removes the message.
    turn(page, "batch", "0")
    check("a message next to the control", page.evaluate("!document.getElementById('knob-batch-wrong').hidden"))
    check("the message is the core's", "expected an integer" in text(page, "knob-batch-wrong"), text(page, "knob-batch-wrong"))
    check("the answers stay", text(page, "longest") != "")
    dim = "document.getElementById('answers').classList.contains('stale')"
    check("but dimmed, because they belong to former values", page.evaluate(dim))
    turn(page, "batch", "2")
    check("answers to valid values are not dimmed", not page.evaluate(dim))
    check("the message disappears", page.evaluate("document.getElementById('knob-batch-wrong').hidden && document.getElementById('status').hidden"))

    # The URL stores the state: the page shows the same answers when opened again.
    here, said = page.evaluate("location.href"), text(page, "longest")
    check("the address has the state", "method=snapkv" in here and "batch=2" in here, here)
    again = browser.open(here, width=390, height=800, dark=True)
    answered(again)
    check("a link reproduces the page", text(again, "longest") == said, text(again, "longest"))
    check("no horizontal scrolling on a phone", again.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))
    again.press("Tab")
    check("the keyboard starts at the skip link", again.evaluate("document.activeElement.classList.contains('skip')"))
    took = page.evaluate("Number(document.getElementById('answers').dataset.took)")
    for one in (page, again):
        check("nothing on the console", one.messages == [], one.messages)
        check("nothing fetched", all(r.startswith(("file:", "blob:", "data:")) for r in one.requests), one.requests)
        one.close()
    return took


SERVICE = {"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm", "figures": False, "slo": {"ttft": "1 s"},
           "requests": {"arrivals": {"kind": "poisson", "rate": [1, 4]}, "count": 40, "prompt_tokens": 500, "output_tokens": 50}}


def bench(rate, ttft_ms):
    return json.dumps({"request_rate": rate, "duration": 10, "completed": 40, "total_input_tokens": 20000, "total_output_tokens": 2000,
                       "median_ttft_ms": ttft_ms, "mean_tpot_ms": 7, "request_throughput": 4})


def compare(browser, uri):
    """Compares a benchmark with the prediction of a service on a phone."""
    (SCRATCH / "explorer.json").write_text(json.dumps(SERVICE))
    result = subprocess.run([PROGRAM, "run", "explorer.json", "--json"], cwd=SCRATCH, capture_output=True, text=True, check=True).stdout
    measured = bench(4, 40) + "\n" + bench(9, 40) + "\n"
    (SCRATCH / "result").write_text(result)
    (SCRATCH / "benchmark").write_text(measured)
    done = subprocess.run([PROGRAM, "compare", "result", "benchmark", "--json"], cwd=SCRATCH, capture_output=True, text=True, check=True)
    run, = json.loads(done.stdout)["runs"]
    inside = [value["low"] is not None and value["low"] <= value["measured"] <= value["high"] for value in run["values"]]

    page = browser.open(uri, width=390, height=800)
    answered(page)
    page.evaluate("document.getElementById('compare').open = true")
    check("both files have labels", page.evaluate("['predicted', 'measured'].every(id => document.getElementById(id).labels.length === 1)"))
    give(page, "measured", "bench.json", measured)
    page.settle()
    check("one file is not compared", text(page, "compared") == "" and text(page, "compare-said") == "", text(page, "compare-said"))
    give(page, "predicted", "result.json", result)
    set_knob(page, "batch", "2")  # a comparison does not depend on the knobs
    wait(page, "document.querySelector('#compared table') !== null")
    answered(page)
    cells = page.evaluate("[...document.querySelectorAll('#compared tr')].map(row => [...row.cells].map(cell => cell.textContent))")
    check("the table's columns", cells[0] == ["load", "metric", "measured", "predicted", "error %", "90 % interval", "in it"], cells[0])
    check("a row per value", len(cells) == 1 + len(run["values"]) and len(cells) == 4, cells)
    for row, value, is_inside in zip(cells[1:], run["values"], inside):
        check(f"{row[1]}: error", row[4] == f"{100 * value['error']:+.1f}", (row, value))
        check(f"{row[1]}: in its interval", row[6] == ("yes" if is_inside else "no" if value["low"] is not None else "–"), (row, value))
        check(f"{row[1]}: interval", (" to " in row[5]) == (value["low"] is not None), (row, value))
    check("values with units", cells[1][:3] == ["4 req/s", "p50 TTFT", "40 ms"], cells[1])
    said = text(page, "compare-said")
    known = sum(value["low"] is not None for value in run["values"])
    check("the count of values in their intervals", said == f"Measured by vllm bench serve. {sum(inside)} of {known} values are in their intervals.", said)
    check("notes follow", "no point at 9 req/s" in text(page, "compare-notes"), text(page, "compare-notes"))
    check("no horizontal scrolling with the table", page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))
    if SHOTS:
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.evaluate("document.getElementById('compare').scrollIntoView()")
        page.screenshot(SHOTS / "explorer-compare-390.png")

    for control, content, complaint in (("measured", "{}", "benchmark: expected a result of vllm bench serve"),
                                        ("measured", bench(9, 40), "result: expected a point at a load of the benchmark, got none at 9 req/s"),
                                        ("predicted", "no JSON", "result: not valid JSON"),
                                        ("predicted", json.dumps({"schema": "kvsim.run/1", "kind": "static"}), "result: expected the result of a service")):
        give(page, control, "wrong.json", content)
        wait(page, f"document.getElementById('compare-said').textContent.startsWith({json.dumps(complaint)})")
        check("an error is marked as one", page.evaluate("document.getElementById('compare-said').classList.contains('wrong')"))
        check("and has no table", text(page, "compared") == "" and text(page, "compare-notes") == "")
    give(page, "measured", "bench.json", bench(1, 30))
    give(page, "predicted", "result.json", result)
    wait(page, "document.querySelector('#compared tbody th')?.textContent === '1 req/s'")
    check("the newest files are compared", not page.evaluate("document.getElementById('compare-said').classList.contains('wrong')"))
    check("compare: nothing on the console", page.messages == [], page.messages)
    page.close()


# A layer between page and worker that records queries and keeps answers in `held` while `hold` is set.
BETWEEN = """
window.between = {hold: false, held: [], queries: []};
window.Worker = class extends Worker {
  postMessage(message, ...more) {
    if (message.id) between.queries.push(message);
    super.postMessage(message, ...more);
  }
  set onmessage(take) {
    super.onmessage = event => {
      if (between.hold && event.data.id) between.held.push(event);
      else take(event);
    };
    between.deliver = () => between.held.splice(0).forEach(take);
  }
};
"""


def wait(page, condition):
    deadline = time.monotonic() + WAIT_S
    while not page.evaluate(condition):
        if time.monotonic() > deadline:
            raise TimeoutError(condition)
        time.sleep(0.02)


def stale(browser, uri):
    """Checks that an answer is dropped if a newer query was sent or a control has changed."""
    page = browser.open(uri, before=BETWEEN)
    answered(page)
    shown = "document.getElementById('longest').textContent + document.getElementById('verdict').textContent"
    first = page.evaluate(shown)

    # The control changes again before the answer, which therefore belongs to older values.
    page.evaluate("between.queries = []; between.hold = true")
    set_knob(page, "batch", "3")
    wait(page, "between.held.length === 2")
    page.evaluate("between.hold = false")
    set_knob(page, "batch", "4")
    page.evaluate("between.deliver()")
    check("an answer to former values is not shown", page.evaluate(shown) == first)
    check("and does not undim the answers", page.evaluate("document.getElementById('answers').dataset.state") == "waiting")
    answered(page)
    four = page.evaluate(shown)
    check("the newest values are answered", "in each of 4 sequences" in four, four)

    # Both queries are sent; the older one's answers arrive last.
    page.evaluate("between.hold = true")
    set_knob(page, "batch", "5")
    wait(page, "between.held.length === 2")
    set_knob(page, "batch", "6")
    wait(page, "between.held.length === 4")
    page.evaluate("between.held.sort((a, b) => b.data.id - a.data.id); between.hold = false; between.deliver()")
    page.settle()
    six = page.evaluate(shown)
    check("an older answer does not replace a newer", "in each of 6 sequences" in six, six)
    check("and the shown scenario has the newest values", page.evaluate("JSON.parse(document.getElementById('scenario').textContent).batch") == 6)
    ids = page.evaluate("between.queries.map(q => q.id)")
    check("queries have ascending ids", ids == sorted(ids) and len(set(ids)) == len(ids), ids)

    # The worker skips obsolete queries: it computes only the newest query of each kind.
    page.evaluate("""(() => {
      const core = 'async function kvsimCore() { return {run: s => s, reach: s => s}; }';
      const source = [core, document.getElementById('worker-js').textContent];
      window.answers = [];
      const alone = new Worker(URL.createObjectURL(new Blob(source, {type: 'text/javascript'})));
      alone.onmessage = ({data}) => answers.push(data);
      alone.postMessage({bytes: new ArrayBuffer(1)});
      for (let id = 1; id <= 6; ++id) alone.postMessage({id, what: id % 2 ? 'run' : 'reach', scenario: `${id}`});
    })()""")
    wait(page, "answers.some(a => a.id === 6) && answers.some(a => a.id === 5)")
    kept = page.evaluate("answers.filter(a => a.id).map(a => a.id)")
    check("the worker answers the newest of each kind last", kept[-2:] == [5, 6], kept)
    check("and skips obsolete queries", len(kept) < 6, kept)
    check("stale: nothing on the console", page.messages == [], page.messages)
    page.close()


def main():
    if find_chromium() is None:
        print("KVSIM-SKIPPED: no Chromium is installed: KVSIM_CHROMIUM names one")
        return 0
    SCRATCH.mkdir(parents=True, exist_ok=True)
    file = SCRATCH / "explorer.html"
    subprocess.run([PROGRAM, "explorer", "-o", str(file)], check=True, stdout=subprocess.DEVNULL)
    with Chromium() as browser:
        took = use(browser, file.as_uri())
        compare(browser, file.as_uri())
        stale(browser, file.as_uri())
        if SHOTS:
            SHOTS.mkdir(parents=True, exist_ok=True)
            for width in (390, 1280):
                for dark in (False, True):
                    page = browser.open(file.as_uri(), width=width, height=900, dark=dark)
                    answered(page)
                    page.screenshot(SHOTS / f"explorer-{width}-{'dark' if dark else 'light'}.png")
                    page.close()
    for failure in failures:
        print(failure)
    print(f"an answer took {took:.0f} ms, {len(failures)} failures")
    return 1 if failures else 0


sys.exit(main())
