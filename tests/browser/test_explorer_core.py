"""Compares the explorer's core in Node.js with the command line for each scenario.

    test_explorer_core.py PROGRAM NODE CORE.wasm.gz SOURCE_DIR SCRATCH_DIR

The core must reproduce every document of `kvsim run --json`: the same keys and texts, and every number within a relative
error of 1e-6. It must also reproduce the longest context of `kvsim plan`, the output of `--print-command`,
`calibrate --from-log` and `compare` with a benchmark, and the error messages for invalid scenarios.
"""

import json
import math
import pathlib
import subprocess
import sys

PROGRAM, NODE, CORE, SOURCE, SCRATCH = sys.argv[1:4] + [pathlib.Path(p) for p in sys.argv[4:6]]
TOLERANCE = 1e-6


def scenario(model, gpu, stack, method, **keys):
    return {"model": model, "gpu": gpu, "stack": stack, "method": method, "prompt_tokens": 4096,
            "output_tokens": 128, **keys}


CASES = {
    "gqa, full": scenario("llama-3.1-8b", "H100-80GB-SXM", "hf-sdpa", "full"),
    "mha, zeromerge": scenario("llama-2-7b", "A800-80GB-SXM", "hf-sdpa", {"name": "zeromerge", "budget": 1024}, batch=4),
    "h2o, eager": scenario("llama-2-7b", "A100-80GB-SXM", "hf-eager", {"name": "h2o", "budget": 0.2}),
    "morphkv": scenario("mistral-7b-v0.2", "H100-80GB-SXM", "hf-sdpa", {"name": "morphkv", "budget": 600}),
    "kivi": scenario("llama-2-13b", "A100-80GB-SXM", "hf-flash", "kivi-2", batch=8),
    "minicache": scenario("llama-3-8b", "A100-40GB-PCIe", "hf-sdpa", "minicache", batch=2),
    "snapkv, long": scenario("llama-3.1-8b", "H200-141GB-SXM", "hf-flash", {"name": "snapkv", "budget": 0.1}, prompt_tokens=131072),
    "streaming-llm": scenario("phi-3-mini-4k", "L40S", "hf-sdpa", {"name": "streaming-llm", "budget": 1028}),
    "pyramidkv": scenario("qwen2.5-7b", "A40", "hf-sdpa", {"name": "pyramidkv", "budget": 0.25}),
    "quest": scenario("llama-3.1-8b", "A100-80GB-SXM", "hf-flash", {"name": "quest", "budget": 0.25}),
    "gear": scenario("llama-2-7b", "A6000", "hf-sdpa", "gear"),
    "think": scenario("llama-3-8b", "RTX-4090", "hf-flash", "think"),
    "vllm": scenario("llama-3.1-8b", "H100-80GB-SXM", "vllm", "full", batch=16),
    "vllm, fp8": scenario("llama-3.1-70b", "H100-80GB-SXM", "vllm", "full", gpu_count=4, dtype="fp8_e4m3"),
    "vllm-v0": scenario("llama-2-70b", "A100-80GB-SXM", "vllm-v0", "full", gpu_count=8),
    "sglang": scenario("qwen3-32b", "H200-141GB-SXM", "sglang", "full", batch=8),
    "trtllm": scenario("mixtral-8x7b", "H100-80GB-SXM", "trtllm", "full", gpu_count=2),
    "lmdeploy": scenario("qwen2.5-14b", "A100-80GB-SXM", "lmdeploy", "full", kv_dtype="int8"),
    "static cache": scenario("llama-3.2-3b", "A100-40GB-SXM", "torch-static", "full"),
    "gpt-fast, int4": scenario("llama-2-7b", "A100-80GB-SXM", "gpt-fast", "full", dtype="int4-g32"),
    "mla": scenario("deepseek-v2-lite", "H100-80GB-SXM", "vllm", "full"),
    "mla, many GPUs": scenario("deepseek-v3", "H200-141GB-SXM", "vllm", "full", gpu_count=8),
    "moe": scenario("qwen3-30b-a3b", "H100-80GB-SXM", "vllm", "full", batch=32),
    "mxfp4": scenario("gpt-oss-20b", "H100-80GB-SXM", "vllm", "full"),
    "sliding windows": scenario("gemma-3-12b", "A100-80GB-SXM", "hf-sdpa", "full", prompt_tokens=32768),
    "sliding windows, h2o": scenario("gemma-2-9b", "L40S", "hf-sdpa", {"name": "h2o", "budget": 0.5}),
    "awq": scenario("llama-3.1-70b", "A100-80GB-SXM", "vllm", "full", dtype="awq-int4"),
    "ideal": scenario("opt-30b", "H20", "ideal", "full", batch=64),
    "t4": scenario("gpt2", "T4", "hf-legacy", "full", prompt_tokens=512),
    "prefill alone": scenario("llama-3.1-8b", "B200", "hf-flash", "full", output_tokens=0, prompt_tokens=65536),
    "nominal": scenario("llama-3.1-8b", "GH200-96GB", "hf-sdpa", "full", calibration="nominal"),
    "no room at prefill": scenario("llama-2-13b", "A100-40GB-PCIe", "hf-eager", {"name": "h2o", "budget": 0.1}, prompt_tokens=65536),
    "no room while decoding": scenario("llama-2-7b", "A800-80GB-SXM", "hf-sdpa", "full", dtype="fp32", prompt_tokens=20000, output_tokens=40000),
    "no room for weights": scenario("llama-3.1-405b", "A100-80GB-SXM", "hf-sdpa", "full"),
    "lists": scenario("llama-3-8b", "H100-80GB-SXM", "hf-sdpa", ["full", {"name": "snapkv", "budget": [512, 1024]}], batch=[1, 4]),
    "unknown GPU": scenario("llama-3-8b", "H100-80GB-SMX", "hf-sdpa", "full"),
    "batch of none": scenario("llama-3-8b", "H100-80GB-SXM", "hf-sdpa", "full", batch=0),
    "unknown parameter": scenario("llama-3-8b", "H100-80GB-SXM", "hf-sdpa", {"name": "h2o", "budget": 0.5, "sink": 4}),
    "heads that do not divide": scenario("llama-3-8b", "H100-80GB-SXM", "hf-sdpa", "full", gpu_count=7),
    "budget above all": scenario("llama-3-8b", "H100-80GB-SXM", "hf-sdpa", {"name": "h2o", "budget": -1}),
    "data decide": scenario("llama-3-8b", "H100-80GB-SXM", "hf-sdpa", "kvmerger"),
}
failures = []
compared = 0


def differences(ours, theirs, place):
    """Returns the places where two documents differ."""
    global compared
    if isinstance(ours, bool) or isinstance(theirs, bool) or not isinstance(ours, (int, float, dict, list)):
        if ours != theirs:
            yield f"{place}: {ours!r}, not {theirs!r}"
    elif isinstance(ours, (int, float)):
        compared += 1
        if not isinstance(theirs, (int, float)) or not math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=0):
            yield f"{place}: {ours!r}, not {theirs!r}"
    elif isinstance(ours, list):
        if not isinstance(theirs, list) or len(ours) != len(theirs):
            yield f"{place}: lists that differ in length or kind"
        else:
            for i, (a, b) in enumerate(zip(ours, theirs)):
                yield from differences(a, b, f"{place}/{i}")
    elif not isinstance(theirs, dict) or list(ours) != list(theirs):
        yield f"{place}: keys {list(ours)}, not {list(theirs) if isinstance(theirs, dict) else theirs!r}"
    else:
        for key in ours:
            yield from differences(ours[key], theirs[key], f"{place}/{key}")


def ask(questions):
    lines = "\n".join(json.dumps(question) for question in questions)
    done = subprocess.run([NODE, str(SOURCE / "tests/browser/explorer_core.mjs"), CORE,
                           str(SOURCE / "sim/explorer/page/explorer_core.js")],
                          input=lines, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"node: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def command_line(words, case):
    SCRATCH.mkdir(parents=True, exist_ok=True)
    (SCRATCH / "explorer.json").write_text(json.dumps(case))
    return subprocess.run([PROGRAM, *words], cwd=SCRATCH, capture_output=True, text=True, check=False)


names = list(CASES)
answers = ask([{"what": what, "scenario": CASES[name]} for name in names for what in ("run", "reach")])
times = {"run": [], "reach": []}
for k, name in enumerate(names):
    run, reach = answers[2 * k], answers[2 * k + 1]
    done = command_line(["run", "explorer.json", "--json"], CASES[name])
    if done.returncode == 2:
        said = done.stderr.strip().removeprefix("kvsim: ").removeprefix("error: ")
        if run.get("name") != "InputError" or reach.get("name") != "InputError":
            failures.append(f"{name}: the command line refuses it, the core does not")
        elif run["error"] not in done.stderr:
            failures.append(f"{name}: the core says {run['error']!r}, the command line {said!r}")
        continue
    if "document" not in run or "document" not in reach:
        failures.append(f"{name}: {run.get('error') or reach.get('error')}")
        continue
    failures += [f"{name}: {one}" for one in list(differences(run["document"], json.loads(done.stdout), ""))[:5]]
    times["run"].append(run["ms"])
    times["reach"].append(reach["ms"])
    points = reach["document"]["points"]
    if len(points) > 1:
        continue
    found = points[0]["longest_context"]
    for confidence, key in ((0, "tokens"), (0.9, "tokens_low")):
        plan = {"questions": ["longest_context"], "confidence": confidence}
        done = command_line(["plan", "explorer.json", "--json"], {**CASES[name], "plan": plan})
        wanted = json.loads(done.stdout)["answers"][0]["answer"] if done.stdout else None
        # Without an interval, the plan's answer is the prediction at any confidence.
        if found[key] is not None and found[key] != (wanted or 0):
            failures.append(f"{name}: {key} {found[key]}, where kvsim plan answers {wanted}")

# The command that starts each engine, or the reason why there is none.
launched = 0
for name, launch in zip(names, ask([{"what": "launch", "scenario": CASES[name]} for name in names])):
    done = command_line(["run", "explorer.json", "--print-command", "--json"], CASES[name])
    if done.returncode != 0:
        if launch.get("name") != "InputError" or launch["error"] not in done.stderr:
            failures.append(f"{name}: launch: the core says {launch.get('error')!r}, the command line {done.stderr!r}")
        continue
    launched += 1
    manifests = launch["document"].pop("manifests")
    failures += [f"{name}: launch: {one}" for one in differences(launch["document"], json.loads(done.stdout), "")]
    for kind, shown in manifests.items():
        done = command_line(["run", "explorer.json", "--manifest", kind], CASES[name])
        if done.stdout != shown:
            failures.append(f"{name}: another {kind}")
if launched < 5:
    failures.append(f"only {launched} engines have a command")

# The log of an engine's start.
LOG = ("INFO [gpu_model_runner.py:2653] Model loading took 14.99 GiB and 3.1 seconds\n"
       "INFO [gpu_worker.py:298] Available KV cache memory: 50.10 GiB\n"
       "INFO [gpu_model_runner.py:3480] Graph capturing finished in 21 secs, took 0.54 GiB\n"
       "INFO GPU KV cache size: 410,432 tokens\n")
for name, log, refused in (("vllm", LOG, None), ("vllm", "nothing\n", "found none"), ("gqa, full", LOG, "paged cache")):
    said, = ask([{"what": "log", "scenario": {"scenario": CASES[name], "log": log}}])
    command_line([], CASES[name])
    (SCRATCH / "log").write_text(log)
    done = command_line(["calibrate", "--from-log", "log", "explorer.json", "--json"], CASES[name])
    if refused is None:
        failures += [f"log: {one}" for one in differences(said.get("document"), json.loads(done.stdout), "")]
    elif refused not in said.get("error", "") or said["error"] not in done.stderr:
        failures.append(f"log: the core says {said!r}, the command line {done.stderr!r}")

# A benchmark compared with the prediction of a service. These file names give the same places in messages of both programs.
SERVICE = {"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm", "figures": False, "slo": {"ttft": "1 s"},
           "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 40, "prompt_tokens": 500, "output_tokens": 50}}
SERVED = command_line(["run", "explorer.json", "--json"], SERVICE).stdout
STATIC = command_line(["run", "explorer.json", "--json"], CASES["vllm"]).stdout
BENCH = json.dumps({"request_rate": 4, "duration": 10, "completed": 40, "total_input_tokens": 20000, "total_output_tokens": 2000,
                    "median_ttft_ms": 40, "mean_tpot_ms": 7, "output_throughput": 200})
for result, bench, refused in ((SERVED, BENCH, None), (STATIC, BENCH, "the result of a service"), ("{", BENCH, "result"),
                               (SERVED, "{}", "vllm bench serve"), (SERVED, "no JSON", "benchmark")):
    said, = ask([{"what": "compare", "scenario": {"result": result, "bench": bench}}])
    (SCRATCH / "result").write_text(result)
    (SCRATCH / "benchmark").write_text(bench)
    done = command_line(["compare", "result", "benchmark", "--json"], SERVICE)
    if refused is None:
        failures += [f"compare: {one}" for one in differences(said.get("document"), json.loads(done.stdout), "")]
    elif refused not in said.get("error", "") or said["error"] not in done.stderr:
        failures.append(f"compare: the core says {said!r}, the command line {done.stderr!r}")

if compared < 5000:
    failures.append(f"only {compared} numbers were compared")
for failure in failures:
    print(failure)
for what, ms in times.items():
    ms.sort()
    print(f"{what}: median {ms[len(ms) // 2]:.0f} ms, longest {ms[-1]:.0f} ms, of {len(ms)} scenarios")
print(f"{len(names)} scenarios, {compared} numbers compared, {len(failures)} failures")
sys.exit(1 if failures else 0)
