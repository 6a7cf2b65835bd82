#!/usr/bin/env python3
"""Compares kvsim's decode attention with torch's scaled_dot_product_attention on the same tensors.

    cmake --build build/release --target kvsim_decode
    python3 validation/torch/sdpa.py --library build/release/libkvsim_decode.so -o results/sdpa.json

Both attend over the same random cache of each shape, and their outputs are compared. On a GPU both
are timed with CUDA events, and the L2 cache is flushed before each sample. Times are the median and
the spread (half the interquartile range divided by the median). Grouped heads are passed with
enable_gqa if torch supports it; otherwise keys and values are repeated, which the output states.

With --device cpu the library is the simulator's (libkvsim_decode_sim.so), shapes are small and
nothing is timed. OUT is JSON, schema kvsim.torch-sdpa/1. Exit status: 0 if outputs agree, 1 if some
do not, 2 for bad input, 77 if skipped, with the reason.
"""

import argparse
import ctypes
import json
import math
import os
import statistics
import sys

SKIPPED = 77
# batch, query heads, KV heads, head size, entries
GPU_SHAPES = ((1, 32, 8, 128, 4096), (1, 32, 8, 128, 32768), (1, 32, 32, 128, 8192),
              (8, 32, 8, 128, 8192), (64, 32, 8, 128, 2048), (1, 64, 8, 128, 16384))
SMALL_SHAPES = ((1, 4, 2, 64, 31), (2, 4, 1, 64, 257), (1, 2, 2, 128, 1))
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
# Allowed error relative to the largest output: a few roundings of the dtype, to which torch's kernels round probabilities.
ALLOWED = {"float32": 1e-5, "float16": 4 * 2.0**-11, "bfloat16": 4 * 2.0**-8}
ENTRIES_PER_SPLIT = 512
WARM_UP, SAMPLES = 3, 25


class Bad(Exception):
    """Invalid input."""


class Unavailable(Exception):
    """The reason why nothing can be run."""


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in
                ("batch", "n_heads", "n_kv_heads", "head_dim", "entries", "entries_per_split")]


class Kernel:
    """Calls decode_c.cu with tensors."""

    def __init__(self, torch, path):
        try:
            library = ctypes.CDLL(os.path.abspath(path))
        except OSError as error:
            raise Bad(f"--library: {error}")
        self.torch = torch
        self.scratch = library.kvsim_decode_scratch
        self.scratch.restype = ctypes.c_int64
        self.scratch.argtypes = [ctypes.POINTER(Shape)]
        self.attend = library.kvsim_decode_attention
        self.attend.restype = ctypes.c_int
        pointer = ctypes.c_void_p
        self.attend.argtypes = [ctypes.POINTER(Shape), ctypes.c_int, ctypes.c_float, pointer,
                                pointer, pointer, pointer, pointer, pointer, ctypes.c_char_p,
                                ctypes.c_size_t]

    def prepare(self, q, keys, values):
        """Returns a call that can be timed, with all memory allocated beforehand, and its output tensor."""
        shape = Shape(q.shape[0], q.shape[1], keys.shape[1], q.shape[2], keys.shape[2],
                      ENTRIES_PER_SPLIT)
        out = self.torch.zeros_like(q)
        partial = self.torch.zeros(self.scratch(shape), device=q.device)
        dtype = DTYPES[str(q.dtype).rpartition(".")[2]]
        scale = 1 / math.sqrt(q.shape[2])
        stream = self.torch.cuda.current_stream().cuda_stream if q.is_cuda else None
        problem = ctypes.create_string_buffer(400)

        def call():
            if self.attend(shape, dtype, scale, q.data_ptr(), keys.data_ptr(), values.data_ptr(),
                           out.data_ptr(), partial.data_ptr(), stream, problem, len(problem)):
                raise Bad(f"kvsim_decode_attention: {problem.value.decode()}")

        return call, out


class Sdpa:
    """torch's attention on the same tensors."""

    def __init__(self, torch):
        self.torch = torch
        self.function = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
        self.name = "scaled_dot_product_attention" if self.function else (
            f"softmax in fp32: torch {torch.__version__} has no scaled_dot_product_attention")

    def prepare(self, q, keys, values):
        """Returns a call and how grouped heads are passed: "none", "as they are" or "repeated"."""
        q = q.unsqueeze(2)
        group = q.shape[1] // keys.shape[1]
        if self.function is None:
            keys, values = (x.float().repeat_interleave(group, 1) for x in (keys, values))

            def in_steps():
                logits = q.float() @ keys.transpose(2, 3) / math.sqrt(q.shape[3])
                return (logits.softmax(-1) @ values).squeeze(2)

            return in_steps, "repeated" if group > 1 else "none"
        if group == 1:
            return lambda: self.function(q, keys, values).squeeze(2), "none"
        try:
            self.function(q, keys, values, enable_gqa=True)
        except (TypeError, RuntimeError):
            keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
            return lambda: self.function(q, keys, values).squeeze(2), "repeated"
        return lambda: self.function(q, keys, values, enable_gqa=True).squeeze(2), "as they are"


def largest_error(torch, got, expected):
    """Returns the largest error divided by the largest expected magnitude; infinite if an output is not finite."""
    got, expected = got.float(), expected.float()
    if not bool(torch.isfinite(got).all()):
        return math.inf
    return float((got - expected).abs().max() / expected.abs().max())


def timed(torch, call, flush):
    """Returns the median in microseconds, and half the interquartile range divided by the median."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(WARM_UP):
        call()
    us = []
    for _ in range(SAMPLES):
        flush.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        us.append(1e3 * start.elapsed_time(end))
    quarters = statistics.quantiles(us, n=4)
    median = statistics.median(us)
    return {"median_us": median, "spread": (quarters[2] - quarters[0]) / 2 / median}


def compare(torch, kernel, sdpa, shape, dtype, device, flush):
    batch, heads, kv_heads, head_dim, entries = shape
    draw = torch.Generator(device=device)
    draw.manual_seed(1)

    def random(*sizes):
        return torch.randn(*sizes, generator=draw, device=device).to(getattr(torch, dtype))

    q = random(batch, heads, head_dim)
    keys, values = (random(batch, kv_heads, entries, head_dim) for _ in range(2))
    ours, out = kernel.prepare(q, keys, values)
    theirs, grouped = sdpa.prepare(q, keys, values)
    ours()
    expected = theirs()
    error = largest_error(torch, out, expected)
    result = {"batch": batch, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": head_dim,
              "entries": entries, "dtype": dtype, "grouped_heads": grouped,
              "error": error if math.isfinite(error) else None, "error_allowed": ALLOWED[dtype],
              "agrees": error <= ALLOWED[dtype], "kvsim": None, "torch": None}
    if flush is not None:
        result["kvsim"] = timed(torch, ours, flush)
        result["torch"] = timed(torch, theirs, flush)
    return result


def run(torch, args):
    on_gpu = args.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} finds no CUDA device")
    kernel, sdpa = Kernel(torch, args.library), Sdpa(torch)
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda") if on_gpu else None
    results = [compare(torch, kernel, sdpa, shape, dtype, args.device, flush)
               for shape in (GPU_SHAPES if on_gpu else SMALL_SHAPES)
               for dtype in (("float16", "bfloat16") if on_gpu else DTYPES)]
    return {"schema": "kvsim.torch-sdpa/1", "torch": torch.__version__,
            "device": torch.cuda.get_device_name(0) if on_gpu else "the simulator, and torch's CPU",
            "reference": sdpa.name, "agrees": all(r["agrees"] for r in results),
            "results": results}


def text_of(document):
    lines = [f"{document['device']}, torch {document['torch']}; reference: {document['reference']}"]
    for r in document["results"]:
        shape = (f"batch {r['batch']}, heads {r['n_heads']}/{r['n_kv_heads']}x{r['head_dim']}, "
                 f"{r['entries']} entries, {r['dtype']}")
        text = "not finite" if r["error"] is None else f"error {r['error']:.1e}"
        if r["kvsim"]:
            text += (f", kvsim {r['kvsim']['median_us']:.1f} us, torch "
                     f"{r['torch']['median_us']:.1f} us")
        lines.append(f"  {shape}: {text}{'' if r['agrees'] else '  DISAGREES'}")
    return "\n".join(lines)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--library", required=True, help="libkvsim_decode.so, or _sim.so on a CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("-o", "--out", help="JSON to write")
    args = parser.parse_args(words)
    try:
        try:
            import torch
        except ImportError as error:
            raise Unavailable(f"torch cannot be imported: {error}")
        document = run(torch, args)
        if args.out:
            with open(f"{args.out}.partial", "w", encoding="utf-8") as file:
                json.dump(document, file, indent=2)
                file.write("\n")
            os.replace(f"{args.out}.partial", args.out)
    except Unavailable as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    except (Bad, OSError) as error:
        print(f"sdpa.py: {error}", file=sys.stderr)
        return 2
    print(text_of(document))
    return 0 if document["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
