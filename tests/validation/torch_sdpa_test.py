"""Tests validation/torch/sdpa.py on a CPU, which compares the simulator's decode attention with torch's.

    python3 torch_sdpa_test.py LIBRARY SCRATCH
"""

import json
import math
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "validation", "torch"))
sys.dont_write_bytecode = True
import sdpa  # noqa: E402

LIBRARY, SCRATCH = sys.argv[1:3]
try:
    import torch
except ImportError as missing:
    print(f"KVSIM-SKIPPED: torch cannot be imported: {missing}")
    sys.exit(0)


class OnACpu(unittest.TestCase):
    def test_outputs_agree_in_every_dtype(self):
        out = os.path.join(SCRATCH, "sdpa.json")
        self.assertEqual(sdpa.main(["--library", LIBRARY, "--device", "cpu", "-o", out]), 0)
        with open(out, encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["schema"], "kvsim.torch-sdpa/1")
        self.assertEqual({r["dtype"] for r in document["results"]}, set(sdpa.DTYPES))
        for r in document["results"]:
            self.assertTrue(r["agrees"])
            self.assertIsNone(r["kvsim"])  # no timings
        # Attention over one entry returns its value for any softmax, so other shapes must show an error.
        self.assertGreater(max(r["error"] for r in document["results"]), 0)

    def test_a_wrong_output_is_detected(self):
        kernel, reference = sdpa.Kernel(torch, LIBRARY), sdpa.Sdpa(torch)
        q = torch.randn(1, 2, 64)
        keys, values = torch.randn(2, 1, 2, 50, 64)
        call, out = kernel.prepare(q, keys, values)
        call()
        theirs, _ = reference.prepare(q, keys, values)
        self.assertLess(sdpa.largest_error(torch, out, theirs()), sdpa.ALLOWED["float32"])
        shifted, _ = reference.prepare(q, keys, values.roll(1, 2))
        self.assertGreater(sdpa.largest_error(torch, out, shifted()), 0.1)
        out[0, 0, 0] = math.nan
        self.assertEqual(sdpa.largest_error(torch, out, theirs()), math.inf)

    def test_refusals_reach_python(self):
        call, _ = sdpa.Kernel(torch, LIBRARY).prepare(torch.randn(1, 1, 48),
                                                      torch.randn(1, 1, 5, 48),
                                                      torch.randn(1, 1, 5, 48))
        with self.assertRaisesRegex(sdpa.Bad, "head"):
            call()
        self.assertEqual(sdpa.main(["--library", "absent.so", "--device", "cpu"]), 2)
        if not torch.cuda.is_available():
            self.assertEqual(sdpa.main(["--library", LIBRARY]), sdpa.SKIPPED)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
