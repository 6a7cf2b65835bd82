"""Tests of `import kvsim`: numbers equal the program's, stubs match the module, and errors state the expected value.

Run by ctest: test_kvsim.py PROGRAM SCRATCH SOURCES MODULES CMAKE. MODULES is the folder that contains the package.
"""

import ast
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
import warnings

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
PROGRAM, SCRATCH, SOURCES, MODULES, CMAKE = sys.argv[1:6]
sys.path.insert(0, MODULES)

import kvsim  # noqa: E402
import safetensors_reader  # noqa: E402
from kvsim import _core  # noqa: E402

SAMPLE = os.path.join(SOURCES, "traces", "samples", "books-treasure-512.safetensors")
SMALL = {"model": "llama-3.1-8b", "gpu": "A100-80GB-SXM", "stack": "hf-sdpa", "batch": [2, 4], "prompt_tokens": 8192,
         "output_tokens": 64, "method": ["full", {"name": "zeromerge", "budget": 0.2}]}


def printed(*words):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def scenario_file(name, document):
    path = os.path.join(SCRATCH, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)
    return path


def without_clock(document):
    return {key: value for key, value in document.items() if key != "run"}


class Run(unittest.TestCase):
    def test_numbers_are_those_of_the_program(self):
        for path in ("zeromerge-a800", "kv-sizes"):
            path = os.path.join(SOURCES, "scenarios", path + ".json")
            self.assertEqual(kvsim.run(path).document, printed("run", path, "--json"))
        path = scenario_file("scenario.json", SMALL)
        self.assertEqual(kvsim.run(path).document, kvsim.run(SMALL).document)
        self.assertEqual(kvsim.run(SMALL).document, printed("run", path, "--json"))

    def test_intervals_are_those_of_the_result_file(self):
        path = scenario_file("intervals.json", SMALL)
        out = os.path.join(SCRATCH, "intervals")
        printed("run", path, "--json", "-o", out, "--no-figures")
        with open(os.path.join(out, "result.json"), encoding="utf-8") as file:
            points = json.load(file)["points"]
        result = kvsim.run(SMALL)
        ends = [key for key in points[0] if key.endswith(("_low", "_high"))]
        self.assertGreater(len(ends), 8)
        for key in ends:
            expected = np.array([point[key] for point in points], dtype=float)  # NaN for missing values
            np.testing.assert_array_equal(result.column(key), expected, key)

    def test_keys_and_pointers_are_overrides(self):
        path = scenario_file("scenario.json", SMALL)
        wanted = printed("run", path, "--json", "--set", "/batch=1", "--set", "/memory/hbm=40 GiB")
        got = kvsim.run(SMALL, batch=1, set={"/memory/hbm": "40 GiB"})
        self.assertEqual(got.document, wanted)
        self.assertEqual(kvsim.run(path, batch=np.int64(1), set={"/memory/hbm": "40 GiB"}).document, wanted)

    def test_a_service(self):
        document = {"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm",
                    "requests": {"arrivals": {"kind": "poisson", "rate": 2}, "count": 40, "prompt_tokens": 512,
                                 "output_tokens": 32}}
        result = kvsim.run(document)
        self.assertEqual(without_clock(result.document),
                         without_clock(printed("run", scenario_file("scenario.json", document), "--json")))
        self.assertGreater(len(result.timeline()["time_s"]), 2)
        self.assertGreater(result.column("ttft_s/p90")[0], 0)

    def test_columns_and_timelines(self):
        result = kvsim.run(SMALL)
        self.assertEqual((len(result), len(result.labels), len(result.oom)), (4, 4, 4))
        rates = result.column("throughput_tok_s")
        self.assertEqual(rates.tolist(), [point["throughput_tok_s"] for point in result.points])
        for i, point in enumerate(result.points):
            timeline = result.timeline(i)
            self.assertTrue(np.all(np.diff(timeline["step"]) > 0))
            self.assertTrue(np.all(timeline["peak_bytes"] >= timeline["held_bytes"]))
            self.assertTrue(np.all(timeline["held_bytes"] >= timeline["kv_bytes"]))
            self.assertEqual(timeline["peak_bytes"].max(), point["peak_hbm_bytes"])
            self.assertEqual(timeline["kv_bytes"][-1], point["kv_bytes"])
        # A larger batch holds more; a fifth of the budget holds less.
        kv = dict(zip(result.labels, result.column("kv_bytes")))
        self.assertLess(min(kv.values()) * 1.9, max(kv.values()))

    def test_out_of_memory_is_a_result(self):
        result = kvsim.run(SMALL, batch=512, method="full")
        self.assertGreater(result.oom[0]["requested"], result.oom[0]["free"])
        self.assertIsNone(kvsim.run(SMALL, batch=1, method="full").oom[0])

    def test_threads_change_nothing(self):
        self.assertEqual(kvsim.run(SMALL, threads=1).document, kvsim.run(SMALL, threads=3).document)

    def test_a_dict_extends_a_file(self):
        scenario_file("base.json", SMALL)
        base = os.path.relpath(os.path.join(SCRATCH, "base.json"))
        extended = kvsim.run({"extends": base, "batch": 1})
        self.assertEqual(extended.points, kvsim.run(SMALL, batch=1).points)


class Replay(unittest.TestCase):
    METHODS = ["full", {"name": "h2o", "budget": [0.1, 0.5]}, {"name": "zeromerge", "budget": 0.2}]

    def arrays(self):
        """Returns the sample's vectors, laid out by head."""
        metadata, tensors = safetensors_reader.read(SAMPLE)
        stacked = [np.stack([tensors[f"layers.{i}.{x}"].transpose(1, 0, 2) for i in range(int(metadata["num_layers"]))])
                   for x in "qkv"]
        return metadata, dict(zip("qkv", stacked))

    def test_numbers_are_those_of_the_program(self):
        result = kvsim.replay(SAMPLE, ["full", "h2o"], budget=0.2)
        wanted = printed("replay", "--trace", SAMPLE, "--method", "full,h2o", "--budget", "0.2", "--json", "--per-step")
        self.assertEqual(result.document, wanted)

    def test_a_scorer_is_a_class_or_its_file(self):
        sys.path.insert(0, os.path.join(SOURCES, "examples", "own_method"))
        from my_press import MyPress
        of_class = kvsim.replay(SAMPLE, ["knorm", MyPress, {"name": MyPress, "recent": 4}], budget=0.2)
        path = inspect.getsourcefile(MyPress) + ":MyPress"
        self.assertEqual(of_class.methods[1]["name"], "my_press.py:MyPress")
        self.assertEqual(of_class.methods[2]["params"]["recent"], 4)
        wanted = printed("replay", "--trace", SAMPLE, "--method", "knorm," + path, "--budget", "0.2", "--json", "--per-step")
        self.assertEqual(of_class.methods[:2], wanted["methods"])
        self.assertEqual(kvsim.replay(SAMPLE, path, budget=0.2).methods, [wanted["methods"][1]])

        class Local:
            def score(self, keys):
                return keys[:, :, 0]
        with self.assertRaisesRegex(kvsim.InputError, "expected a class at the top of a module's file, got one of __main__"):
            kvsim.replay(SAMPLE, Local, budget=0.2)

    def test_arrays_give_the_result_of_the_file(self):
        metadata, arrays = self.arrays()
        of_file = kvsim.replay(SAMPLE, self.METHODS)
        of_arrays = kvsim.replay(**arrays, methods=self.METHODS, prompt_tokens=int(metadata["prompt_len"]))
        self.assertEqual(arrays["q"].dtype, np.float16)
        for a, b in zip(of_arrays.methods, of_file.methods):
            for key in ("name", "budget", "bytes_held_final", "rel_error_mean", "cosine_mean", "bytes_read_total"):
                self.assertEqual(a[key], b[key])
        self.assertEqual(of_arrays.kept_entries(1), of_file.kept_entries(1))
        # The same vectors take twice the bytes in 32 bits.
        wide = kvsim.replay(**{x: a.astype(np.float32) for x, a in arrays.items()}, prompt_tokens=384)
        self.assertEqual(wide.methods[0]["bytes_held_final"], 2 * of_file.methods[0]["bytes_held_final"])

    def test_series_and_kept_positions(self):
        result = kvsim.replay(SAMPLE, self.METHODS)
        self.assertEqual(result.column("budget")[1:].tolist(), [0.1, 0.5, 0.2])
        self.assertTrue(np.isnan(result.column("budget")[0]))
        for i, method in enumerate(result.methods):
            series, layers = result.series(i), result.layer_series(i)
            self.assertEqual(len(series["step"]), method["steps"])
            self.assertEqual(series["bytes_held"][-1], method["bytes_held_final"])
            self.assertEqual(layers["entries_held"].shape, (6, method["steps"]))
            np.testing.assert_array_equal(layers["entries_held"].sum(0), series["entries_held"])
            self.assertEqual(sum(len(head) for layer in result.kept_entries(i) for head in layer),
                             method["entries_held_final"])
            for layer in result.kept(i):
                for head in layer:
                    self.assertTrue(np.all(np.diff(head) > 0) and head[-1] < 512 and head.dtype == np.int32)
        self.assertEqual([len(head) for layer in result.kept("full") for head in layer], [512] * 12)
        # More entries retain more attention mass.
        mass = result.column("retained_mass_mean")
        self.assertTrue(mass[1] < mass[2] < mass[0] + 1e-12)

    def test_a_sample_of_layers_heads_and_steps(self):
        result = kvsim.replay(SAMPLE, ["full", "h2o"], budget=0.2, layers=4, heads=1, steps=32, seed=2)
        wanted = printed("replay", "--trace", SAMPLE, "--method", "full,h2o", "--budget", "0.2", "--json", "--per-step",
                         "--layers", "4", "--heads", "1", "--steps", "32", "--seed", "2")
        self.assertEqual(result.methods, wanted["methods"])
        self.assertGreater(result.methods[1]["standard_errors"]["rel_error_mean"], 0)
        for sample, words in (({"layers": 0}, "replay: /layers: expected an integer in [1, 1000000], got 0"),
                              ({"heads": 3}, "a sample of KV heads: expected at most 2, got 3"),
                              ({"steps": "all"}, "replay: /steps: expected an integer in [1, 1000000], got \"all\"")):
            with self.assertRaises(kvsim.InputError) as caught:
                kvsim.replay(SAMPLE, "full", **sample)
            self.assertIn(words, str(caught.exception))

    def test_a_method_is_refused_under_a_second_spelling(self):
        for methods in (["h2o", "H2O"], ["snapkv", {"name": "snapkv", "budget": "20 %"}]):
            with self.assertRaises(kvsim.InputError) as caught:
                kvsim.replay(SAMPLE, methods, budget=0.2)
            self.assertEqual(str(caught.exception), "methods: /1: an object is given twice; /0 means the same")

    def test_shapes_are_checked(self):
        _, a = self.arrays()
        good = dict(a, prompt_tokens=384)
        cases = [(dict(good, q=None), "q is missing"), (dict(good, q=a["q"][0]), "[6, 512, 32]"),
                 (dict(good, v=a["v"][:, :, :511]), "v: expected shape [6, 2, 512, 32], got [6, 2, 511, 32]"),
                 (dict(good, k=a["k"].astype(np.float32)), "float16, float32"),
                 (dict(good, k=a["k"][:, [0, 1, 0, 1]], v=a["v"][:, [0, 1, 0, 1]]), "divisor of 6"),
                 (dict(a), "prompt_tokens"), (dict(good, prompt_tokens=513), "prompt_len"),
                 (dict(good, wo=np.zeros((6, 192, 191), np.float16)), "wo: expected shape [6, 192, 192]")]
        for arguments, words in cases:
            with self.assertRaises(kvsim.InputError) as caught:
                kvsim.replay(**arguments)
            self.assertIn(words, str(caught.exception))
        with self.assertRaises(kvsim.InputError):
            kvsim.replay(SAMPLE, q=a["q"])
        nan = dict(good, k=np.where(np.arange(32) == 3, np.nan, a["k"]).astype(np.float16))
        with self.assertRaisesRegex(kvsim.InputError, "NaN"):
            kvsim.replay(**nan)


class PlansAndSweeps(unittest.TestCase):
    def test_a_plan_is_that_of_the_program(self):
        document = dict(SMALL, batch=1, plan={"questions": ["longest_context"], "confidence": 0.5})
        self.assertEqual(kvsim.plan(document).document,
                         printed("plan", scenario_file("scenario.json", document), "--json"))

    def test_a_plan_of_a_service_has_a_range(self):
        document = {"kind": "serve", "model": "llama-3.1-8b", "gpu": "A100-80GB-SXM", "stack": "vllm",
                    "requests": {"arrivals": {"kind": "poisson", "rate": 60}, "count": 300, "prompt_tokens": 600,
                                 "output_tokens": 60},
                    "slo": {"ttft": "500 ms", "tpot": "50 ms"}, "plan": {"questions": ["fewest_gpus"], "most_gpus": 4}}
        plan = kvsim.plan(document)
        self.assertEqual(plan.document, printed("plan", scenario_file("scenario.json", document), "--json"))
        answer, = plan.answers
        one, = answer["candidates"]
        self.assertEqual((answer["answer"], answer["range"]), (one["predicted"], one["range"]))
        self.assertIsNone(one["safe"])
        self.assertEqual(answer["range"], f"{one['optimistic']:g} to more than 4")
        self.assertIn(f": {one['predicted']:g} GPUs, range {answer['range']} (full)", str(plan))

    def test_the_largest_batch_fits_and_one_more_does_not(self):
        scenario = dict(SMALL, method="full")
        del scenario["batch"]
        answers = kvsim.fit(scenario, "largest_batch")
        self.assertEqual(len(answers), 1)
        batch = list(answers.values())[0]
        self.assertEqual(kvsim.run(scenario, batch=[batch, batch + 1]).oom[0], None)
        self.assertIsNotNone(kvsim.run(scenario, batch=[batch, batch + 1]).oom[1])
        context = kvsim.fit(dict(scenario, batch=1), "longest_context")
        self.assertGreater(list(context.values())[0], 8192)

    def test_a_sweep_is_that_of_the_program(self):
        path = scenario_file("scenario.json", SMALL)
        result = kvsim.sweep(SMALL, {"/prompt_tokens": [1024, 4096]})
        wanted = printed("sweep", path, "--vary", "/prompt_tokens=1024,4096", "--json")
        self.assertEqual(result.document, wanted)
        self.assertEqual((len(result), len(result.column("latency_s"))), (8, 8))
        self.assertEqual(result.values("/prompt_tokens"), [1024, 4096] * 4)
        one = kvsim.run(SMALL, batch=2, method="full", prompt_tokens=1024)
        self.assertEqual(result.column("kv_bytes")[0], one.column("kv_bytes")[0])
        with self.assertRaises(kvsim.InputError):
            kvsim.sweep(SMALL, {"/prompt_tokens": 1024})


SERVICE = {"kind": "serve", "model": "llama-3.1-8b", "gpu": "A100-80GB-SXM", "stack": "vllm",
           "requests": {"arrivals": {"kind": "poisson", "rate": 20}, "count": 100, "prompt_tokens": 600, "output_tokens": 60},
           "slo": {"ttft": "500 ms", "tpot": "50 ms"}}


class Deployments(unittest.TestCase):
    def test_a_layout_search_and_its_launch_are_those_of_the_program(self):
        document = dict(SERVICE, plan={"questions": ["fewest_gpus"], "layouts": 2})
        path = scenario_file("layouts.json", document)
        plan = kvsim.plan(path)
        self.assertEqual(plan.document, printed("plan", path, "--json"))
        self.assertGreater(len(plan.answers[0]["candidates"]), 2)
        self.assertEqual(kvsim.launch(path), printed("plan", path, "--print-command", "--json")["launches"])
        made = subprocess.run([PROGRAM, "plan", path, "--manifest", "compose"], capture_output=True, text=True, check=True)
        self.assertEqual(kvsim.manifest(path, "compose"), made.stdout)

    def test_a_run_is_launched_without_being_run(self):
        one, = kvsim.launch(SERVICE)
        role, = one["roles"]
        self.assertEqual((one["engine"], role["argv"][:2], role["gpu_count"]), ("vLLM", ["vllm", "serve"], 1))
        self.assertEqual(len(kvsim.launch(SERVICE, engine={"max_model_len": 4096}, gpu=["A100-80GB-SXM", "H100-80GB-SXM"])), 2)
        for call, words in ((lambda: kvsim.launch(SERVICE, method={"name": "snapkv", "budget": 0.2}), "snapkv"),
                            (lambda: kvsim.manifest(SERVICE, "heroku"), "compose")):
            with self.assertRaisesRegex(kvsim.InputError, words):
                call()

    def test_a_command_reads_back(self):
        command, = kvsim.launch(SERVICE)[0]["roles"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = kvsim.from_command(command["command"], gpu="A100-80GB-SXM", rate=20, isl=600, osl=60, requests=100)
        self.assertEqual((document["kind"], document["model"]), ("serve", "llama-3.1-8b"))
        again, = kvsim.launch(document)[0]["roles"]
        self.assertEqual(again["argv"], command["argv"])
        with self.assertWarnsRegex(UserWarning, "from-command"):
            kvsim.from_command("vllm serve meta-llama/Llama-3.1-8B-Instruct --uvicorn-log-level error", gpu="h100", rate=1)
        self.assertRaises(kvsim.InputError, kvsim.from_command, "nginx -g off", gpu="h100")


    def test_a_log_replaces_predictions(self):
        log = os.path.join(SCRATCH, "start.log")
        with open(log, "w", encoding="utf-8") as file:
            file.write("Model loading took 14.99 GiB and 3.1 seconds\nAvailable KV cache memory: 40.10 GiB\n")
        scenario = {"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm@0.11", "prompt_tokens": 1000, "output_tokens": 2}
        found = kvsim.from_log(log, scenario)
        path = scenario_file("logged.json", scenario)
        self.assertEqual(kvsim.from_log(log, path), printed("calibrate", "--from-log", log, path, "--json"))
        self.assertEqual(found["overrides"], kvsim.from_log(log, path)["overrides"])
        start = kvsim.run({**scenario, **found["overrides"]}).points[0]["startup"]
        self.assertEqual(start["tokens"], found["with_overrides"]["tokens"])
        self.assertAlmostEqual(start["kv_cache_bytes"] / 2**30, 40.10, places=2)
        self.assertRaises(kvsim.InputError, kvsim.from_log, SAMPLE, scenario)


class Documents(unittest.TestCase):
    """Functions for which the module runs the program."""

    def test_they_are_those_of_the_program(self):
        samples = os.path.join(SOURCES, "scenarios", "samples")
        trace = os.path.join(samples, "long-mooncake.jsonl")
        self.assertEqual(kvsim.requests_info(trace), printed("requests", "info", trace, "--json"))
        found = kvsim.requests_info([trace], capacity_blocks=[100, 400], limit=20, model="llama-3.1-8b",
                                    tiers=["hbm=1GiB", "host=8GiB@25GB/s"])
        self.assertEqual(found, printed("requests", "info", trace, "--capacity-blocks", "100,400", "--limit", "20", "--model",
                                        "llama-3.1-8b", "--tiers", "hbm=1GiB,host=8GiB@25GB/s", "--json"))
        self.assertEqual([one["capacity_blocks"] for one in found["reuse"]["lru"]], [100, 400])
        table = os.path.join(samples, "quality-made.csv")
        self.assertEqual(kvsim.quality(table, max_loss="5%"), printed("quality", table, "--max-loss", "5%", "--json"))
        models = sorted({group["model"] for group in kvsim.quality(table)["groups"]})
        self.assertEqual({group["model"] for group in kvsim.quality([table], model=models[:1])["groups"]}, set(models[:1]))

    def test_results_compare(self):
        paths = []
        for batch in (2, 3):
            path = os.path.join(SCRATCH, f"compared-{batch}.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(kvsim.run(SMALL, batch=batch, method="full").document, file)
            paths.append(path)
        found = kvsim.compare(*paths, tolerance=0.01)
        self.assertTrue(found["moved"])
        self.assertFalse(kvsim.compare(paths[0], paths[0])["moved"])
        self.assertEqual(kvsim.compare(*paths), printed("compare", *paths, "--json"))

    def test_errors_are_those_of_the_program(self):
        for call, words in ((lambda: kvsim.requests_info("nowhere.jsonl"), "nowhere.jsonl"),
                            (lambda: kvsim.requests_info("--version"), "--version"),
                            (lambda: kvsim.quality(SAMPLE), "safetensors"),
                            (lambda: kvsim.compare(SAMPLE, SAMPLE), "safetensors"),
                            (lambda: kvsim.requests_info("x", no_such_option=1), "no-such-option")):
            with self.assertRaisesRegex(kvsim.InputError, words):
                call()


class Catalogues(unittest.TestCase):
    def test_they_are_those_of_the_program(self):
        for kind in ("methods", "models", "gpus", "stacks"):
            self.assertEqual(getattr(kvsim, kind)(), printed("list", kind, "--json")["entries"])
        self.assertEqual(kvsim.__version__, printed("run", scenario_file("v.json", SMALL), "--json")["kvsim"]["version"])


class Errors(unittest.TestCase):
    def test_they_are_value_errors_with_the_expected_value(self):
        cases = [(dict(SMALL, batch=0), ["scenario: /batch", "expected an integer", "got 0"]),
                 (dict(SMALL, bach=1), ["bach", 'did you mean "batch"']),
                 (dict(SMALL, gpu="A100-80GB-SX"), ["A100-80GB-SXM"]),
                 (dict(SMALL, batch=float("nan")), ["finite"]), (dict(SMALL, batch=object()), ["object"]),
                 ("nowhere.json", ["nowhere.json"]), (7, ["int"])]
        for scenario, words in cases:
            with self.assertRaises(ValueError) as caught:
                kvsim.run(scenario)
            self.assertIsInstance(caught.exception, kvsim.InputError)
            for word in words:
                self.assertIn(word, str(caught.exception))
        for call in (lambda: kvsim.plan(SMALL), lambda: kvsim.run(SMALL, set={"batch": 1}),
                     lambda: kvsim.replay(SAMPLE, "h20", budget=0.1), lambda: kvsim.replay("nowhere", "full"),
                     lambda: kvsim.run("x.json", name="y"),
                     lambda: kvsim.run(dict(SMALL, plan={"questions": ["largest_batch"]})),
                     lambda: kvsim.run(dict(SMALL, sweep={"axes": [{"key": "/batch", "values": [1, 2]}]}))):
            self.assertRaises(kvsim.InputError, call)
        result = kvsim.run(SMALL)
        self.assertRaises(KeyError, result.column, "no_such_key")
        self.assertRaises(KeyError, result.column, "peak_owners")
        self.assertRaises(IndexError, result.timeline, 4)

    def test_messages_are_those_of_the_program(self):
        path = scenario_file("wrong.json", dict(SMALL, prompt_tokens=-1))
        done = subprocess.run([PROGRAM, "run", path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        with self.assertRaises(kvsim.InputError) as caught:
            kvsim.run(path)
        self.assertEqual(done.stderr, f"kvsim: {caught.exception}\n")

    def test_an_interrupt_ends_a_long_run(self):
        begun = time.monotonic()
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            for _ in range(1000):
                kvsim.sweep(SMALL, {"/prompt_tokens": list(range(1000, 3000)), "/output_tokens": [64, 65]}, threads=1)
        timer.join()
        self.assertLess(time.monotonic() - begun, 60)

    def test_other_threads_run_meanwhile(self):
        ticks = []
        done = threading.Event()

        def tick():
            while not done.wait(0.002):
                ticks.append(time.monotonic())

        thread = threading.Thread(target=tick)
        thread.start()
        begun = time.monotonic()
        kvsim.sweep(SMALL, {"/prompt_tokens": list(range(1000, 1400))}, threads=1)
        ended = time.monotonic()
        done.set()
        thread.join()
        self.assertGreater(sum(begun < t < ended for t in ticks), 3)


class Stubs(unittest.TestCase):
    """The .pyi files declare the modules' names with the same parameters and defaults."""

    def tree(self, name):
        with open(os.path.join(os.path.dirname(kvsim.__file__), name), encoding="utf-8") as file:
            return ast.parse(file.read())

    @staticmethod
    def parameters_of_stub(function):
        a = function.args
        names = [x.arg for x in a.args] + ([f"*{a.vararg.arg}"] if a.vararg else []) + [f"={x.arg}" for x in a.kwonlyargs]
        defaults = [ast.literal_eval(x) for x in [*a.defaults, *(x for x in a.kw_defaults if x is not None)]]
        return names + ([f"**{a.kwarg.arg}"] if a.kwarg else []), defaults

    @staticmethod
    def parameters_of(function):
        names, defaults = [], []
        for x in inspect.signature(function).parameters.values():
            mark = {x.VAR_POSITIONAL: "*", x.VAR_KEYWORD: "**", x.KEYWORD_ONLY: "="}.get(x.kind, "")
            names.append(mark + x.name)
            if x.default is not x.empty:
                defaults.append(x.default)
        return names, defaults

    def compare(self, stub, owner, where):
        self.assertEqual(self.parameters_of_stub(stub), self.parameters_of(owner), where)

    def test_of_the_package(self):
        named = set()
        for node in self.tree("__init__.pyi").body:
            if isinstance(node, ast.FunctionDef):
                named.add(node.name)
                self.compare(node, getattr(kvsim, node.name), node.name)
            elif isinstance(node, ast.ClassDef):
                named.add(node.name)
                own = getattr(kvsim, node.name)
                methods = {n for n, x in vars(own).items() if callable(x) or isinstance(x, property)}
                public = {n for n in methods if not n.startswith("_") or n in ("__init__", "__len__", "__repr__")}
                stubs = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
                self.assertEqual(stubs.keys(), public, node.name)
                for name, stub in stubs.items():
                    if not isinstance(vars(own)[name], property):
                        self.compare(stub, vars(own)[name], f"{node.name}.{name}")
        self.assertEqual(named | {"InputError", "__version__"}, set(kvsim.__all__))

    def test_of_the_core(self):
        named = {}
        for node in self.tree("_core.pyi").body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                named[node.name] = node
            elif isinstance(node, ast.AnnAssign):
                named[node.target.id] = None
        self.assertEqual(named.keys(), {name for name in dir(_core) if not name.startswith("_")})
        for name, node in named.items():
            if isinstance(node, ast.FunctionDef):  # pybind11 puts the signature in the first line of the docstring
                first = getattr(_core, name).__doc__.splitlines()[0]
                names = [part.split(":")[0].strip() for part in first[first.index("(") + 1:first.rindex(")")].split(", ")
                         if ":" in part]
                for parameter in self.parameters_of_stub(node)[0]:
                    self.assertIn(parameter, names, name)

    def test_the_package_is_marked_as_typed(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(kvsim.__file__), "py.typed")))


class Installed(unittest.TestCase):
    def test_the_folder_works_at_any_path(self):
        prefix, moved = os.path.join(SCRATCH, "prefix"), os.path.join(SCRATCH, "moved")
        for folder in (prefix, moved):
            shutil.rmtree(folder, ignore_errors=True)
        script = os.path.join(MODULES, "..", "sim", "python", "cmake_install.cmake")
        subprocess.run([CMAKE, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", script], check=True, capture_output=True)
        site = os.path.join(prefix, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
        shutil.move(site, moved)
        done = subprocess.run([sys.executable, "-c", "import kvsim; print(kvsim.__file__, kvsim.__version__)"], text=True,
                              capture_output=True, cwd=SCRATCH, env={**os.environ, "PYTHONPATH": moved})
        self.assertEqual(done.stdout.split(), [os.path.join(moved, "kvsim", "__init__.py"), kvsim.__version__], done.stderr)
        # The program is next to the module (a wheel), in the same prefix, or in PATH with the same version; otherwise it is an error.
        asks = ["-c", "import kvsim; print(kvsim._program())"]
        package = os.path.join(moved, "kvsim")
        fake = os.path.join(SCRATCH, "other", "kvsim")
        os.makedirs(os.path.dirname(fake), exist_ok=True)
        with open(fake, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho kvsim 0.0.1\n")
        os.chmod(fake, 0o755)
        for path, wanted in ((os.path.dirname(PROGRAM), PROGRAM), (os.path.dirname(fake), "expected version"), ("/", "got none")):
            done = subprocess.run([sys.executable, *asks], text=True, capture_output=True, cwd=SCRATCH,
                                  env={**os.environ, "PYTHONPATH": moved, "PATH": path})
            self.assertIn(wanted, done.stdout + done.stderr)
        os.makedirs(os.path.join(package, "bin"))
        os.symlink(PROGRAM, os.path.join(package, "bin", "kvsim"))
        done = subprocess.run([sys.executable, *asks], text=True, capture_output=True, cwd=SCRATCH,
                              env={**os.environ, "PYTHONPATH": moved, "PATH": "/"})
        self.assertEqual(done.stdout.strip(), os.path.join(package, "bin", "kvsim"), done.stderr)

    def test_under_usr_it_is_on_the_interpreters_path(self):
        prefix = os.path.join(SCRATCH, "root", "usr")
        shutil.rmtree(prefix, ignore_errors=True)
        script = os.path.join(MODULES, "..", "sim", "python", "cmake_install.cmake")
        subprocess.run([CMAKE, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", script], check=True, capture_output=True)
        debian = os.path.exists("/usr/lib/python3/dist-packages")
        site = "python3/dist-packages" if debian else f"python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        self.assertTrue(os.path.exists(os.path.join(prefix, "lib", site, "kvsim", "__init__.py")))
        self.assertEqual(os.listdir(os.path.join(prefix, "lib")), [site.split("/")[0]])


class Notebook(unittest.TestCase):
    def test_its_cells_run_in_order(self):
        with open(os.path.join(SOURCES, "sim", "python", "examples", "quickstart.ipynb"), encoding="utf-8") as file:
            notebook = json.load(file)
        self.assertEqual((notebook["nbformat"], notebook["metadata"]["language_info"]["name"]), (4, "python"))
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.assertGreater(len(cells), 4)
        for cell in notebook["cells"]:
            self.assertEqual(cell.get("outputs", []), [])
        here, scope = os.getcwd(), {"__name__": "__main__"}
        os.chdir(SOURCES)  # the folder required by the first cell
        try:
            for number, cell in enumerate(cells):
                exec(compile(cell, f"quickstart.ipynb, code cell {number}", "exec"), scope)
        finally:
            os.chdir(here)


if __name__ == "__main__":
    os.makedirs(SCRATCH, exist_ok=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]], verbosity=2)
