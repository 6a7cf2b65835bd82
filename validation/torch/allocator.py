#!/usr/bin/env python3
"""Random allocations on torch.cuda, replayed through kvsim's model of the caching allocator.

    python3 validation/torch/allocator.py --kvsim build/release/kvsim -o results/allocator

Random sequences of allocations, frees and empty_cache() calls, drawn from a seed, run on the first CUDA
device. torch.cuda.memory_stats after each event is written as an allocation trace
(kvsim.allocator-trace/1, docs/allocator.md). `kvsim validate allocator` reports how many totals its
model predicts to the byte.

Writes sequence-SEED.jsonl (the traces) and allocator.json (schema kvsim.torch-allocator/1) to OUT.
Exit status: 0 if every total is exact, 1 if one is not, 2 for bad input, 77 if skipped, with the reason.
"""

import argparse
import json
import os
import random
import subprocess
import sys

KIB, MIB = 1 << 10, 1 << 20
SKIPPED = 77
# Share of draws, and smallest and largest size in bytes. The allocator's rules change at these bounds:
# the small pool serves requests up to 1 MiB, and segments of 20 MiB serve requests below 10 MiB.
SIZES = ((0.45, 1, MIB), (0.25, MIB + 1, 10 * MIB), (0.25, 10 * MIB + 1, 64 * MIB),
         (0.05, 64 * MIB + 1, 200 * MIB))


class Bad(Exception):
    """Invalid input, or an invalid result of another program."""


class Unavailable(Exception):
    """The reason why no device is available."""


def draw_size(rng):
    at = rng.random()
    for share, low, high in SIZES:
        if at < share:
            break
        at -= share
    # Half of the sizes are round, like those of tensors of equal shapes, so that they can reuse blocks of equal size.
    size = rng.randint(low, high)
    step = rng.choice((1, 512, 64 * KIB, MIB))
    return max(low, size // step * step)


def draw_sequence(seed, events, most_bytes, streams):
    """Returns `events` events: ("alloc", id, size, stream), ("free", id), ("empty_cache",). Allocated bytes
    never exceed `most_bytes`; the same arguments give the same sequence."""
    rng = random.Random(seed)
    alive, held, made = {}, 0, 0
    sequence = []
    for _ in range(events):
        if rng.random() < 0.01:
            sequence.append(("empty_cache",))
            continue
        size = draw_size(rng)
        # The allocated bytes are a random walk that grows and shrinks alternately.
        grows = rng.random() < (0.65 if len(sequence) // 200 % 2 == 0 else 0.4)
        if (grows or not alive) and held + size <= most_bytes:
            sequence.append(("alloc", made, size, rng.randrange(streams)))
            alive[made] = size
            held += size
            made += 1
        elif alive:
            gone = rng.choice(sorted(alive))
            held -= alive.pop(gone)
            sequence.append(("free", gone))
        else:
            sequence.append(("empty_cache",))
    return sequence


def record(backend, sequence, source):
    """Runs the sequence on `backend` and returns the lines of its trace. Segments allocated and freed
    during an event precede the event, with the addresses assigned by the driver."""
    start = backend.totals()
    if start["reserved"] != 0:
        raise Bad(f"{start['reserved']} B are reserved before the first allocation")
    lines = [{"format": "kvsim.allocator-trace/1", "source": source, **backend.header()}]
    before = backend.segments()
    for event in sequence:
        op = event[0]
        entry = {"op": op}
        if op == "alloc":
            _, number, size, stream = event
            entry.update(id=number, size=size, stream=stream)
            if not backend.alloc(number, size, stream):
                raise Bad(f"{size} B were refused: choose a lower --most-bytes")
        elif op == "free":
            entry["id"] = event[1]
            backend.free(event[1])
        else:
            backend.empty_cache()
        after = backend.segments()
        for address in sorted(before.keys() - after.keys()):
            lines.append({"op": "segment_free", "size": before[address], "address": address})
        for address in sorted(after.keys() - before.keys()):
            lines.append({"op": "segment_alloc", "size": after[address], "address": address})
        before = after
        lines.append({**entry, **backend.totals()})
    return "".join(json.dumps(line) + "\n" for line in lines)


class TorchBackend:
    """The caching allocator of torch.cuda on the first device."""

    def __init__(self):
        try:
            import torch
        except ImportError as error:
            raise Unavailable(f"torch cannot be imported: {error}")
        if not torch.cuda.is_available():
            raise Unavailable(f"torch {torch.__version__} finds no CUDA device")
        self.torch = torch
        torch.cuda.init()
        self.start()

    def start(self):
        """Resets to the state at process start: no tensors and no cached memory."""
        torch = self.torch
        self.tensors = {}
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, self.total = torch.cuda.mem_get_info()
        self.outside = self.total - free
        self.streams = {0: torch.cuda.current_stream()}

    def name(self):
        return f"torch {self.torch.__version__}, {self.torch.cuda.get_device_name(0)}"

    def header(self):
        conf = os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
        return {"device_bytes": self.total, "outside_bytes": self.outside, "alloc_conf": conf}

    def alloc(self, number, size, stream):
        torch = self.torch
        if stream not in self.streams:
            self.streams[stream] = torch.cuda.Stream()
        try:
            with torch.cuda.stream(self.streams[stream]):
                self.tensors[number] = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            return False
        return True

    def free(self, number):
        del self.tensors[number]

    def empty_cache(self):
        self.torch.cuda.empty_cache()

    def totals(self):
        stats = self.torch.cuda.memory_stats()
        return {"reserved": stats.get("reserved_bytes.all.current", 0),
                "allocated": stats.get("allocated_bytes.all.current", 0),
                "segments": stats.get("segment.all.current", 0)}

    def segments(self):
        # Expandable segments grow in place, so their mapped bytes appear only in the totals.
        return {segment["address"]: segment["total_size"]
                for segment in self.torch.cuda.memory_snapshot()
                if not segment.get("is_expandable", False)}


def write_whole(path, text):
    """Writes the file atomically."""
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, path)


def compare(kvsim, trace):
    """Returns the results of `kvsim validate allocator` for a trace, and whether every total is exact."""
    run = subprocess.run([kvsim, "validate", "allocator", trace, "--json"], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if run.returncode != 0:
        raise Bad(f"kvsim validate allocator {trace}: exit status {run.returncode}: {run.stderr}")
    score = json.loads(run.stdout)
    quantities = {q["name"]: {key: q[key] for key in ("compared", "exact", "worst_error",
                                                      "worst_line", "recorded_peak",
                                                      "predicted_peak")}
                  for q in score["quantities"]}
    exact = len(quantities) == 3 and all(q["compared"] == score["events"] - taken(score) and
                                         q["exact"] == q["compared"] for q in quantities.values())
    return {"events": score["events"], "exact": exact, "quantities": quantities}


def taken(score):
    """Returns the number of segment events, at which nothing is compared."""
    return score["segment_allocs"]["recorded"] + score["segment_frees"]["recorded"]


def run(backend, args):
    os.makedirs(args.out, exist_ok=True)
    runs = []
    for seed in range(args.seed, args.seed + args.sequences):
        sequence = draw_sequence(seed, args.events, args.most_bytes, args.streams)
        backend.start()
        text = record(backend, sequence, f"{backend.name()}, seed {seed}")
        trace = os.path.join(args.out, f"sequence-{seed}.jsonl")
        write_whole(trace, text)
        runs.append({"seed": seed, "trace": os.path.basename(trace), **compare(args.kvsim, trace)})
    return {"schema": "kvsim.torch-allocator/1", "backend": backend.name(),
            "exact": all(r["exact"] for r in runs), "runs": runs}


def text_of(document):
    lines = [f"{document['backend']}: {len(document['runs'])} sequences"]
    for r in document["runs"]:
        text = ", ".join(f"{name} {q['exact']} of {q['compared']}" +
                         ("" if q["exact"] == q["compared"]
                          else f" (off by {q['worst_error']:g} at line {q['worst_line']})")
                         for name, q in r["quantities"].items())
        lines.append(f"  seed {r['seed']}: {text}")
    lines.append("every total to the byte" if document["exact"] else "NOT every total to the byte")
    return "\n".join(lines)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kvsim", required=True, help="the program")
    parser.add_argument("-o", "--out", required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first sequence (1)")
    parser.add_argument("--sequences", type=int, default=4, help="number of sequences (4)")
    parser.add_argument("--events", type=int, default=2000, help="events per sequence (2000)")
    parser.add_argument("--streams", type=int, default=2, help="streams that allocate in turn (2)")
    parser.add_argument("--most-bytes", type=int, default=2 << 30, help="maximum allocated bytes (2 GiB)")
    args = parser.parse_args(words)
    for name in ("sequences", "events", "streams", "most_bytes"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected at least 1")
    return args


def main(words=None, make_backend=TorchBackend):
    args = arguments(words)
    try:
        document = run(make_backend(), args)
        write_whole(os.path.join(args.out, "allocator.json"), json.dumps(document, indent=2) + "\n")
    except Unavailable as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    except (Bad, OSError) as error:
        print(f"allocator.py: {error}", file=sys.stderr)
        return 2
    print(text_of(document))
    return 0 if document["exact"] else 1


if __name__ == "__main__":
    sys.exit(main())
