"""Tests validation/torch/allocator.py without a GPU: its sequences, the traces it writes, and whether
it distinguishes an allocator that the model predicts to the byte from other allocators.

    python3 torch_allocator_test.py KVSIM SCRATCH
"""

import json
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "validation", "torch"))
sys.dont_write_bytecode = True
import allocator  # noqa: E402

KVSIM, SCRATCH = sys.argv[1:3]
MIB = 1 << 20


class FakeBackend:
    """A minimal reference of PyTorch's rules: multiples of 512 B, two pools per stream, best fit,
    splits, and merging of free neighbours. The large pool splits if more than `smallest_rest` remains."""

    def __init__(self, smallest_rest=MIB):
        self.smallest_rest = smallest_rest
        self.next_address = 1 << 40
        self.start()

    def start(self):
        self.blocks = []  # [address, size, free, segment, pool], sorted by address
        self.sizes = {}   # segment -> size
        self.homes = {}   # number -> address

    def name(self):
        return "a fake"

    def header(self):
        return {"device_bytes": 80 << 30, "outside_bytes": 0, "alloc_conf": ""}

    def alloc(self, number, size, stream):
        size = -(-size // 512) * 512
        pool = (size <= MIB, stream)
        fits = [b for b in self.blocks if b[2] and b[4] == pool and b[1] >= size]
        if not fits:
            taken = 2 * MIB if pool[0] else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            block = [self.next_address, taken, True, self.next_address, pool]
            self.sizes[self.next_address] = taken
            self.next_address += taken
            self.blocks.append(block)
            fits = [block]
        block = min(fits, key=lambda b: (b[1], b[0]))
        rest = block[1] - size
        if rest >= 512 if pool[0] else rest > self.smallest_rest:
            self.blocks.append([block[0] + size, rest, True, block[3], pool])
            block[1] = size
        block[2] = False
        self.blocks.sort()
        self.homes[number] = block[0]
        return True

    def free(self, number):
        at = next(i for i, b in enumerate(self.blocks) if b[0] == self.homes[number])
        del self.homes[number]
        self.blocks[at][2] = True
        for left in (at, at - 1):
            if left < 0 or left + 1 >= len(self.blocks):
                continue
            a, b = self.blocks[left], self.blocks[left + 1]
            if a[2] and b[2] and a[3] == b[3]:
                a[1] += b[1]
                del self.blocks[left + 1]

    def empty_cache(self):
        for block in [b for b in self.blocks if b[2] and b[1] == self.sizes[b[3]]]:
            self.blocks.remove(block)
            del self.sizes[block[3]]

    def totals(self):
        return {"reserved": sum(self.sizes.values()),
                "allocated": sum(b[1] for b in self.blocks if not b[2]),
                "segments": len(self.sizes)}

    def segments(self):
        return dict(self.sizes)


class Sequences(unittest.TestCase):
    def draw(self, seed, **changed):
        sizes = {"events": 1500, "most_bytes": 512 * MIB, "streams": 3, **changed}
        return allocator.draw_sequence(seed, **sizes)

    def test_a_seed_is_a_sequence(self):
        self.assertEqual(self.draw(7), self.draw(7))
        self.assertNotEqual(self.draw(7), self.draw(8))

    def test_frees_are_of_live_blocks_and_the_bound_holds(self):
        for seed in range(5):
            alive, most, seen = {}, 0, set()
            sequence = self.draw(seed)
            self.assertEqual(len(sequence), 1500)
            for event in sequence:
                seen.add(event[0])
                if event[0] == "alloc":
                    _, number, size, stream = event
                    self.assertNotIn(number, alive)
                    self.assertGreaterEqual(size, 1)
                    self.assertIn(stream, range(3))
                    alive[number] = size
                elif event[0] == "free":
                    del alive[event[1]]
                most = max(most, sum(alive.values()))
            self.assertLessEqual(most, 512 * MIB)
            self.assertGreater(most, 256 * MIB)  # the bound is actually approached
            self.assertEqual(seen, {"alloc", "free", "empty_cache"})

    def test_every_rule_of_sizes_is_drawn(self):
        sizes = [e[2] for e in self.draw(1, most_bytes=1 << 40) if e[0] == "alloc"]
        for low, high in ((1, MIB), (MIB + 1, 10 * MIB), (10 * MIB + 1, 64 * MIB),
                          (64 * MIB + 1, 200 * MIB)):
            self.assertGreater(sum(low <= size <= high for size in sizes), 10)
        self.assertTrue(any(size % 512 for size in sizes))


class Traces(unittest.TestCase):
    def test_a_trace_solved_by_hand(self):
        text = allocator.record(FakeBackend(), [("alloc", 0, 3 * MIB, 1), ("free", 0),
                                                ("empty_cache",)], "by hand")
        lines = [json.loads(line) for line in text.splitlines()]
        address = 1 << 40
        held = {"reserved": 20 * MIB, "segments": 1}
        self.assertEqual(lines, [
            {"format": "kvsim.allocator-trace/1", "source": "by hand", "device_bytes": 80 << 30,
             "outside_bytes": 0, "alloc_conf": ""},
            {"op": "segment_alloc", "size": 20 * MIB, "address": address},
            {"op": "alloc", "id": 0, "size": 3 * MIB, "stream": 1, **held, "allocated": 3 * MIB},
            {"op": "free", "id": 0, **held, "allocated": 0},
            {"op": "segment_free", "size": 20 * MIB, "address": address},
            {"op": "empty_cache", "reserved": 0, "allocated": 0, "segments": 0}])

    def test_a_refusal_and_a_dirty_start_are_errors(self):
        fake = FakeBackend()
        fake.alloc = lambda *_: False
        with self.assertRaises(allocator.Bad):
            allocator.record(fake, [("alloc", 0, 1, 0)], "")
        dirty = FakeBackend()
        dirty.alloc(0, 1, 0)
        with self.assertRaises(allocator.Bad):
            allocator.record(dirty, [], "")


class AgainstTheModel(unittest.TestCase):
    def main(self, name, backend, *words):
        out = os.path.join(SCRATCH, name)
        status = allocator.main(["--kvsim", KVSIM, "-o", out, "--events", "800", "--sequences", "2",
                                 *words], backend)
        with open(os.path.join(out, "allocator.json"), encoding="utf-8") as file:
            return status, json.load(file)

    def test_the_model_gives_the_rules_to_the_byte(self):
        status, document = self.main("exact", FakeBackend, "--most-bytes", str(1 << 30))
        self.assertEqual(status, 0)
        self.assertTrue(document["exact"])
        for run in document["runs"]:
            for quantity in run["quantities"].values():
                self.assertEqual(quantity["compared"], 800)
                self.assertEqual(quantity["exact"], 800)

    def test_another_rule_is_detected(self):
        status, document = self.main("other", lambda: FakeBackend(smallest_rest=4 * MIB))
        self.assertEqual(status, 1)
        self.assertFalse(document["exact"])

    def test_bad_input_and_no_device(self):
        with self.assertRaises(SystemExit) as refused:
            allocator.main(["--kvsim", KVSIM, "-o", SCRATCH, "--events", "0"], FakeBackend)
        self.assertEqual(refused.exception.code, 2)

        def unavailable():
            raise allocator.Unavailable("no such thing")

        out = os.path.join(SCRATCH, "none")
        shutil.rmtree(out, ignore_errors=True)  # left by an earlier run of the last line below
        self.assertEqual(allocator.main(["--kvsim", KVSIM, "-o", out], unavailable),
                         allocator.SKIPPED)
        self.assertFalse(os.path.exists(out))
        self.assertEqual(allocator.main(["--kvsim", "/bin/false", "-o", out], FakeBackend), 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
