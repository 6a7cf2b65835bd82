"""Python interface of kvsim, a simulator of KV-cache compression on a GPU and of its effect on attention.

    import kvsim
    result = kvsim.run({"model": "llama-3.1-8b", "gpu": "A100-80GB-SXM", "stack": "hf-sdpa", "batch": [4, 8],
                        "prompt_tokens": 32768, "output_tokens": 1024, "method": ["full", "snapkv"]})
    result.column("throughput_tok_s")          # NumPy array, one number per point
    result.timeline(0)["held_bytes"]           # likewise, one number per sample

Documents are identical to the output of the command line (docs/results.md). User documentation: docs/python.md.
"""

import csv
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np

from . import _core
from ._core import InputError

__version__ = _core.version
__all__ = ["InputError", "PlanResult", "ReplayResult", "RunResult", "SweepResult", "__version__", "compare", "fit",
           "from_command", "from_log", "gpus", "launch", "manifest", "methods", "models", "plan", "quality", "replay",
           "requests_info", "run", "stacks", "sweep"]


# ---- Input ----------------------------------------------------------------------------------------------------------


def _plain(value):
    """Converts a value that json does not support."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, type):
        return _class_name(value)
    raise InputError(f"expected numbers, texts, lists and dicts, got {type(value).__name__}")


def _class_name(kind):
    """Returns FILE.py:CLASS of a scorer. Another process imports the file again, so it must not be the running script."""
    try:
        file = inspect.getsourcefile(kind)
    except (OSError, TypeError):
        file = None
    if file is None or not file.endswith(".py") or kind.__module__ == "__main__" or "." in kind.__qualname__:
        raise InputError(f"{kind.__qualname__}: expected a class at the top of a module's file, got one of {kind.__module__}")
    return f"{os.path.abspath(file)}:{kind.__name__}"


def _json(value):
    try:
        text = json.dumps(value, allow_nan=False, default=_plain)
        if ".py:" in text and sys.executable:
            os.environ.setdefault("KVSIM_PYTHON", sys.executable)  # the user's classes run with this interpreter's packages
        return text
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"expected finite numbers, got one that is not ({error})") from None


def _pointer(key):
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _source(scenario, name, changes, keys):
    overrides = [(_pointer(key), _json(value)) for key, value in keys.items()]
    overrides += [(pointer, _json(value)) for pointer, value in (changes or {}).items()]
    if isinstance(scenario, dict):
        return _core.Source(_json(scenario), name or "scenario", overrides)
    if isinstance(scenario, (str, os.PathLike)):
        if name is not None:
            raise InputError("name: is for scenarios that are dicts; a file has its own")
        return _core.Source(None, os.fspath(scenario), overrides)
    raise InputError(f"scenario: expected a dict or the path of a file, got {type(scenario).__name__}")


# ---- The program ----------------------------------------------------------------------------------------------------


def _program():
    """Returns the program in this module's wheel, build folder or installation, or else the one in PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in ("bin/kvsim", "../../kvsim", "../../../../bin/kvsim"):
        found = os.path.join(here, *path.split("/"))
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return os.path.normpath(found)
    found = shutil.which("kvsim")
    if found is None:
        raise InputError("the program kvsim: expected it next to the module or in PATH, got none")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if not version.startswith(f"kvsim {__version__}"):
        raise InputError(f"{found}: expected version {__version__}, got {version.splitlines()[0] if version else 'none'}")
    return found


def _option_words(options):
    """Returns --name=value for each option that is set; a list produces one option per value."""
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                words.append(option)
            elif one is not None and one is not False:
                words.append(f"{option}={one}")
    return words


def _joined(values):
    """Joins a list with commas ("1000,4000"); returns other values unchanged."""
    return ",".join(map(str, values)) if isinstance(values, (list, tuple)) else values


def _printed(*words, good=(0,)):
    """Runs a command of the program and returns its output. Notes become warnings, and error messages become InputError."""
    done = subprocess.run([_program(), *words], capture_output=True, text=True, check=False)
    said = [line[len("kvsim: "):] if line.startswith("kvsim: ") else line for line in done.stderr.splitlines()]
    if done.returncode == 2:
        raise InputError("\n".join(said))
    if done.returncode not in good:
        raise RuntimeError(f"kvsim {words[0]}: status {done.returncode}: " + "\n".join(said))
    for line in said:
        warnings.warn(line, stacklevel=3)
    return json.loads(done.stdout)


def _files(files):
    return [os.fspath(file) for file in (files if isinstance(files, (list, tuple)) else [files])]


# ---- Output ---------------------------------------------------------------------------------------------------------


def _numbers(values):
    """Returns a float array with NaN for missing values, or an array of strings if the values are strings."""
    if any(isinstance(value, str) for value in values):
        return np.array(["" if value is None else str(value) for value in values])
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _columns(rows):
    return {key: _numbers([row.get(key) for row in rows]) for key in (rows[0] if rows else ())}


def _at(row, path):
    for key in path.split("/"):
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _column(rows, path, what):
    values = [_at(row, path) for row in rows]
    if rows and all(value is None for value in values) and not any(path.split("/")[0] in row for row in rows):
        raise KeyError(f"no {what} has a key {path!r}")
    if any(isinstance(value, (dict, list)) for value in values):
        raise KeyError(f"{path!r} is no number: a/b names what lies in an object")
    return _numbers(values)


class RunResult:
    """The result of `kvsim run` for a scenario. `document` is the JSON result (kvsim.run/1)."""

    def __init__(self, document, timeline):
        self.document = document
        self._timeline = timeline

    @property
    def points(self):
        """Points in the scenario's order, one dict per point."""
        return self.document["points"]

    @property
    def labels(self):
        return [point["label"] for point in self.points]

    @property
    def oom(self):
        """Per point, where it ran out of memory (`step`, `tokens`, `requested`, `free`, …), or None."""
        return [point.get("oom") for point in self.points]

    @property
    def replay(self):
        """The result of the scenario's replay, or None if the scenario has no replay."""
        document = self.document.get("replay")
        return None if document is None else ReplayResult(document, None)

    def column(self, key):
        """Returns a metric of all points as an array, with NaN for missing values; "ttft_s/p90" names a metric within an object."""
        return _column(self.points, key, "point")

    def timeline(self, point=0):
        """Returns samples over the steps of a point, or over the time of a service, as arrays named as the columns of timeline.csv."""
        count = len(self.points)
        if not -count <= point < count:
            raise IndexError(f"point {point} of {count}")
        wanted = str(point % count)
        rows = [row for row in csv.DictReader(io.StringIO(self._timeline)) if row["point"] == wanted]
        names = [name for name in (rows[0] if rows else ()) if name not in ("point", "label")]
        return {name: np.array([float(row[name]) if row[name] else np.nan for row in rows]) for name in names}

    def __len__(self):
        return len(self.points)

    def __repr__(self):
        return f"<kvsim.RunResult {self.document['scenario']['name']}: {len(self)} points>"


class ReplayResult:
    """A trace replayed through methods. `document` is the JSON result (kvsim.replay/1)."""

    def __init__(self, document, kept):
        self.document = document
        self._kept = kept

    @property
    def methods(self):
        """Methods that ran, one dict per method with sizes, traffic and errors."""
        return self.document["methods"]

    @property
    def skipped(self):
        """Methods that need data missing from this trace: `name` and `reason`."""
        return self.document["skipped"]

    def column(self, key):
        """Returns a metric of all methods as an array, with NaN for missing values."""
        return _column(self.methods, key, "method")

    def _index(self, method):
        if isinstance(method, str):
            found = [i for i, one in enumerate(self.methods) if one["name"] == method]
            if len(found) != 1:
                names = ", ".join(one["name"] for one in self.methods)
                raise KeyError(f"{len(found)} methods are called {method!r}: a number from 0 chooses ({names})")
            return found[0]
        count = len(self.methods)
        if not -count <= method < count:
            raise IndexError(f"method {method} of {count}")
        return method % count

    def series(self, method=0):
        """Returns series over decode steps as a dict of arrays: `tokens`, `bytes_held`, `rel_error`, …"""
        return _columns(self.methods[self._index(method)]["per_step"])

    def layer_series(self, method=0):
        """Returns the same series per layer, as arrays [layers, steps]."""
        layers = self.methods[self._index(method)].get("per_step_layers")
        if layers is None:
            raise KeyError("series by layer are of kvsim.replay(), not of a run's replay")
        each = [_columns(layer["per_step"]) for layer in layers]
        return {name: np.stack([one[name] for one in each]) for name in each[0]}

    def kept(self, method=0):
        """Returns the token positions held at the end: [layer][KV head] of int32 arrays, ascending. Includes all members of
        merged entries; use `kept_entries` to tell them apart."""
        return [[np.array(sorted(t for entry in head for t in (entry if isinstance(entry, list) else [entry])), np.int32)
                 for head in layer] for layer in self.kept_entries(method)]

    def kept_entries(self, method=0):
        """Returns the entries held at the end: [layer][KV head] of lists. An entry is a position or a list of merged positions."""
        index = self._index(method)
        if self._kept is None:
            raise KeyError("kept positions are of kvsim.replay(), not of a run's replay")
        return self._kept[index]["kept"]

    def __len__(self):
        return len(self.methods)

    def __repr__(self):
        return f"<kvsim.ReplayResult {self.document['trace']}: {len(self)} methods>"


class SweepResult:
    """A scenario run at many values of its keys. `document` is the JSON result (kvsim.scenario-sweep/1)."""

    def __init__(self, document):
        self.document = document

    @property
    def points(self):
        """Points, each with `values` and `results`, or with the reason in `skipped` if it is impossible."""
        return self.document["points"]

    def column(self, key):
        """Returns a metric of all points' results as an array, with NaN for missing values."""
        return _column([point.get("results") or {} for point in self.points], key, "point")

    def values(self, axis):
        """Returns the value of an axis (a JSON pointer such as "/batch") at every point."""
        axes = [one["key"] for one in self.document["scenario"]["echo"]["sweep"]["axes"]]
        if axis not in axes:
            raise KeyError(f"no axis is called {axis!r} ({', '.join(axes)})")
        return [point["values"][axis] for point in self.points]

    def __len__(self):
        return len(self.points)

    def __repr__(self):
        return f"<kvsim.SweepResult {self.document['scenario']['name']}: {len(self)} points>"


class PlanResult:
    """The answers of a plan. `document` is the JSON result (kvsim.plan/1)."""

    def __init__(self, document):
        self.document = document

    @property
    def answers(self):
        """Per question and group: `question`, `answer`, `range`, `unit`, `best` and `candidates`.

        An `answer` is the prediction unless the plan has a `confidence`; `range` is a string such as "8 to 24". Each candidate
        has the numbers `predicted`, `safe` and `optimistic`, which are None if that end does not exist.
        """
        return self.document["answers"]

    @property
    def impossible(self):
        """Whether any question has no answer."""
        return self.document["impossible"]

    def __len__(self):
        return len(self.answers)

    def __repr__(self):
        return f"<kvsim.PlanResult {self.document['scenario']['name']}: {len(self)} answers>"

    def __str__(self):
        """Returns one line per answer: "fewest_gpus of ...: 12 GPUs, range 8 to 24 (full)"."""
        lines = []
        for one in self.answers:
            text = "impossible"
            if one["answer"] is not None:
                text = f"{one['answer']:g} {one['unit']}" if one["answer"] % 1 else f"{int(one['answer']):,} {one['unit']}"
                text += f", range {one['range']}" if one["range"] else ""
                text += f" ({one['best']})"
            lines.append(f"{one['question']} of {one['of']}: {text}")
        return "\n".join(lines)


# ---- Functions ------------------------------------------------------------------------------------------------------


def run(scenario, *, set=None, name=None, threads=0, **keys):
    """Simulates a scenario like `kvsim run`.

    scenario  a dict with the keys of docs/scenarios.md, or the path of a file
    set       {"/memory/hbm": "80 GiB"}: keys by JSON pointer, as with --set
    name      name of the results if `scenario` is a dict; its paths are relative to the working directory
    threads   0 uses all threads of the machine; results do not depend on it
    keys      top-level keys that replace those of the scenario: batch=8, gpu=["A100-80GB-SXM", "H200-141GB-SXM"]
    Errors: InputError. Running out of memory is a result (`oom`).
    """
    out = _core.run(_source(scenario, name, set, keys), threads)
    return RunResult(json.loads(out["document"]), out["timeline"])


def plan(scenario, *, set=None, name=None, threads=0, **keys):
    """Answers the scenario's `plan` (docs/plan.md), like `kvsim plan`. Errors: InputError."""
    return PlanResult(json.loads(_core.plan(_source(scenario, name, set, keys), threads)))


def fit(scenario, question, *, confidence=0.0, set=None, name=None, threads=0, **keys):
    """Returns the limit of each method and GPU of a scenario: {label: answer}; None if not even the smallest run fits.

    question  "longest_context" (tokens, prompt and output, at most the model's positions unless `set`
              contains "/plan/beyond_positions": True), "largest_batch" (sequences); for a service "highest_rate"
              (requests/s) and "fewest_gpus"
    Runs a plan with this question only; the other keys of the scenario's `plan` (quality, prices, bounds) apply. Errors: InputError.
    """
    changes = dict(set or {})
    changes["/plan/questions"] = [question]
    changes["/plan/confidence"] = confidence
    found = plan(scenario, set=changes, name=name, threads=threads, **keys)
    out = {}
    for group in found.answers:
        for one in group["candidates"]:
            label = one["label"] if len(found) == 1 else f"{group['of']}: {one['label']}"
            answer = one["answer"]
            out[label] = int(answer) if answer is not None and question != "highest_rate" else answer
    return out


def sweep(scenario, vary=None, *, samples=None, seed=None, skip_impossible=False, set=None, name=None, threads=0, **keys):
    """Runs a scenario at every combination of values, like `kvsim sweep`.

    vary             {"/batch": [1, 2, 4], "/method": ["full", "h2o"]}, in addition to the axes of the scenario
    samples, seed    number of random combinations to run instead, and their seed
    skip_impossible  list impossible points with the reason instead of raising
    Errors: InputError.
    """
    axes = []
    for pointer, values in (vary or {}).items():
        values = _plain(values) if isinstance(values, np.ndarray) else values
        if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
            raise InputError(f"vary {pointer}: expected a list of values, got {type(values).__name__}")
        axes.append(f"{pointer}=" + ",".join(_json(value) for value in values))
    source = _source(scenario, name, set, keys)
    return SweepResult(json.loads(_core.sweep(source, axes, samples, seed, skip_impossible, threads)))


def launch(scenario, *, set=None, name=None, threads=0, **keys):
    """Returns the commands that start the engines, as printed by `kvsim run` and `kvsim plan --print-command --json`.

    For a scenario with a `plan`, these are the commands of the best candidate of each answer; otherwise those of each point
    that starts different engines. Returns a list of dicts (kvsim.launch/1): `of`, `engine`, `version`, `roles` with `command` and `argv`, `notes`.
    Errors: InputError, also if no engine has a flag for a method, a format or a stack.
    """
    return json.loads(_core.launch(_source(scenario, name, set, keys), None, threads))["launches"]


def manifest(scenario, kind, *, set=None, name=None, threads=0, **keys):
    """Returns the only deployment of launch() as text of kind "compose", "kubernetes", "llm-d" or "dynamo". Errors: see launch()."""
    return _core.launch(_source(scenario, name, set, keys), str(kind), threads)


def from_command(command, **options):
    """Returns the scenario of an engine's command as a dict, as `kvsim run --from-command COMMAND --print-scenario` prints it.

    command  "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 …", or a command of SGLang or TensorRT-LLM
    options  command-line options by name: gpu="h100", rate=5, isl=2000, osl=300
    Flags that are not simulated cause warnings. Errors: InputError. Runs the program.
    """
    return _printed("run", f"--from-command={command}", "--print-scenario", *_option_words(options))


def from_log(file, scenario=None, *, set=None, name=None, **keys):
    """Reads an engine's start from its log or its metric vllm:cache_config_info, like `kvsim calibrate --from-log --json`.

    file      the path of a start-up log of vLLM, or of saved metrics
    scenario  the scenario of that start; provides values that the log does not contain
    Returns kvsim.calibrate-log/1: `overrides` contains keys for scenarios ({**scenario, **overrides}), `predicted` and
    `with_overrides` describe the start without and with them, and `log_tokens` is the pool stated in the log. Errors: InputError.
    """
    source = None if scenario is None else _source(scenario, name, set, keys)
    return json.loads(_core.from_log(os.fspath(file), source))


def requests_info(files, *, capacity_blocks=None, tiers=None, **options):
    """Returns the load of a request trace as a dict, as printed by `kvsim requests info --json` (kvsim.requests-info/2).

    files            the file or files of one trace
    capacity_blocks  list of prefix-cache capacities, in blocks
    tiers            ["hbm=40GiB", "host=256GiB@25GB/s"], with model="llama-3.1-8b" and optionally gpu="h100"
    options          command-line options by name: format="mooncake", skip_bad=10, stagger=60
    Errors: InputError. Runs the program.
    """
    words = _option_words({"capacity_blocks": _joined(capacity_blocks), "tiers": _joined(tiers), **options})
    return _printed("requests", "info", *words, "--json", "--", *_files(files))


def quality(files, *, max_loss=None, model=None, method=None, task=None, context=None, replay=None, held_out=None):
    """Returns measured task scores under compression as a dict, as printed by `kvsim quality --json` (kvsim.quality/1).

    files                score tables or kvpress results folders
    max_loss             largest loss allowed for `answer`: 0.01 or "1%"
    model, method, task  keep only rows with these values; models and methods may be lists
    context              context length in tokens; the nearest measured context is used
    replay, held_out     replay results to rank by; rows to predict
    Errors: InputError. Runs the program.
    """
    words = _option_words({"max_loss": max_loss, "model": model, "method": method, "task": task, "context": context,
                           "replay": replay, "held_out": held_out})
    return _printed("quality", *words, "--json", "--", *_files(files))


def compare(result, *others, tolerance=None):
    """Compares a result with others, or with benchmark files, like `kvsim compare --json`.

    result     the path of a results folder, or of its result.json, plan.json or sweep.json
    others     paths of the same kinds, or files of vllm bench serve, SGLang, AIPerf, GuideLLM or inference-perf
    tolerance  relative difference that is ignored, as a fraction of the larger number
    Returns kvsim.compare/1 or kvsim.compare-bench/1. Errors: InputError. Runs the program.
    """
    words = _option_words({"tolerance": tolerance})
    return _printed("compare", *words, "--json", "--", *_files([result, *others]), good=(0, 1))


def replay(trace=None, methods="full", *, q=None, k=None, v=None, prompt_tokens=None, softmax_scale=None, hidden=None,
           wo=None, budget=None, split="recorded", layers=None, heads=None, steps=None, per_head=False, block_sizes=(), seed=0,
           threads=0):
    """Replays a recorded trace, or arrays, through compression methods, like `kvsim replay`.

    trace          the path of a trace (safetensors); or arrays, all float32 or all float16:
    q              [layers, query heads, tokens, d], after rotary embedding
    k, v           [layers, KV heads, tokens, d]; query head h reads KV head h // (query heads / KV heads)
    prompt_tokens  number of leading tokens that form the prompt
    softmax_scale  default 1 / sqrt(d)
    hidden, wo     [layers, tokens, D] and [layers, D, query heads * d], for methods that need them
    methods        a name, {"name": "zeromerge", "budget": 0.1, "alpha": 0.5}, or a list of these; a name may also be
                   "my_press.py:MyPress" or a class of another module with score() (docs/howto/own-method.md)
    split          end of the prompt: "recorded", "question-aware" (at the trace's answer_start), "question-agnostic"
    layers, heads  numbers of randomly sampled layers, and of KV heads per layer, drawn with `seed`; adds `standard_errors`
    steps          maximum number of decode steps sampled for errors, drawn with `seed`; sizes cover all steps
    budget         for methods that need a budget and do not set one: a share of the prompt's cache (0.2, "20 %"),
                   entries per head (256, "64 entries"), or a list of these
    Errors: InputError with the expected and the actual value. Arrays are passed through a temporary file.
    """
    chosen = _json(_with_budget(methods, budget))
    sample = _json({"layers": layers, "heads": heads, "steps": steps})
    if trace is not None:
        if any(x is not None for x in (q, k, v, prompt_tokens, softmax_scale, hidden, wo)):
            raise InputError("replay: a trace has its own q, k, v and sizes; give the one or the others")
        return _replayed(os.fspath(trace), chosen, per_head, block_sizes, seed, threads, split, sample)
    tensors, metadata, dtype = _trace_of(q, k, v, prompt_tokens, softmax_scale, hidden, wo)
    with tempfile.TemporaryDirectory(prefix="kvsim-") as folder:
        path = os.path.join(folder, "arrays.safetensors")
        _core.write_trace(path, tensors, metadata, dtype)
        return _replayed(path, chosen, per_head, block_sizes, seed, threads, split, sample)


def _replayed(path, methods, per_head, block_sizes, seed, threads, split, sample):
    out = _core.replay(path, methods, per_head, list(block_sizes), seed, threads, split, sample)
    return ReplayResult(json.loads(out["document"]), json.loads(out["kept"]))


def _with_budget(chosen, budget):
    items = list(chosen) if isinstance(chosen, (list, tuple)) else [chosen]
    if budget is None:
        return items
    takers = {one["name"] for one in methods() if one["takes_budget"]}
    known = {one["name"] for one in methods()}
    out = []
    for item in items:
        one = {"name": item} if isinstance(item, (str, type)) else item
        if isinstance(one, dict) and "budget" not in one and (one.get("name") in takers or one.get("name") not in known):
            one = {**one, "budget": budget}
        out.append(one)
    return out


def _trace_of(q, k, v, prompt_tokens, softmax_scale, hidden, wo):
    """Returns (tensors, metadata, "F32" or "F16") for arrays laid out by head."""
    given = {name: np.asarray(x) for name, x in (("q", q), ("k", k), ("v", v), ("hidden", hidden), ("wo", wo)) if x is not None}
    for name in ("q", "k", "v"):
        if name not in given:
            raise InputError(f"replay: expected a trace, or q, k and v; {name} is missing")
        if given[name].ndim != 4:
            raise InputError(f"{name}: expected [layers, heads, tokens, d], got shape {list(given[name].shape)}")
    dtypes = {x.dtype for x in given.values()}
    if not dtypes <= {np.dtype(np.float32)} and not dtypes <= {np.dtype(np.float16)}:
        raise InputError(f"arrays: expected all float32 or all float16, got {', '.join(sorted(map(str, dtypes)))}")
    layers, n_heads, tokens, d = given["q"].shape
    n_kv_heads = given["k"].shape[1]
    wanted = {"k": [layers, n_kv_heads, tokens, d], "v": [layers, n_kv_heads, tokens, d]}
    if min(given["q"].shape) < 1 or n_kv_heads < 1 or n_heads % n_kv_heads != 0:
        raise InputError(f"k: expected a divisor of {n_heads} KV heads, got shape {list(given['k'].shape)}")
    if "hidden" in given:
        wanted["hidden"] = [layers, tokens, given["hidden"].shape[-1] if given["hidden"].ndim == 3 else "D"]
    if "wo" in given:
        width = given["hidden"].shape[-1] if "hidden" in given else given["wo"].shape[1] if given["wo"].ndim == 3 else "D"
        wanted["wo"] = [layers, width, n_heads * d]
    for name, shape in wanted.items():
        if list(given[name].shape) != shape:
            raise InputError(f"{name}: expected shape {shape}, got {list(given[name].shape)}")
    if prompt_tokens is None:
        raise InputError(f"prompt_tokens: expected how many of the {tokens} tokens are prompt")
    tensors = []
    for layer in range(layers):
        for name, x in given.items():
            by_head = name in ("q", "k", "v")
            tensors.append((f"layers.{layer}.{name}", x[layer].transpose(1, 0, 2) if by_head else x[layer]))
    metadata = {"format": "kv-attention-trace", "version": "1", "model": "arrays", "num_layers": str(layers),
                "num_q_heads": str(n_heads), "num_kv_heads": str(n_kv_heads), "head_dim": str(d), "num_tokens": str(tokens),
                "prompt_len": str(prompt_tokens)}
    if softmax_scale is not None:
        metadata["softmax_scale"] = repr(float(softmax_scale))
    return tensors, metadata, "F16" if given["q"].dtype == np.float16 else "F32"


def methods():
    """Returns the methods of the catalogue, one dict per method, as printed by `kvsim list methods --json`."""
    return json.loads(_core.methods())


def models():
    """Returns the language models of the catalogue."""
    return json.loads(_core.models())


def gpus():
    """Returns the GPUs of the catalogue."""
    return json.loads(_core.gpus())


def stacks():
    """Returns the software stacks of the catalogue."""
    return json.loads(_core.stacks())
