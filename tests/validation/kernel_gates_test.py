"""Tests validation/gates/kernel_gates.py on handwritten PTX: wide loads, loops, and bytes in flight.

    python3 kernel_gates_test.py [NVCC]
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "validation", "gates"))
sys.dont_write_bytecode = True
import kernel_gates as gates  # noqa: E402


def loads(ptx):
    measured, in_loop = gates.main_loop(gates.instructions(ptx.strip().splitlines()))
    return measured.wide, measured.narrow, measured.in_flight, in_loop


class Loads(unittest.TestCase):
    def test_widths(self):
        for opcode, size in [("ld.global.v4.u32", 16), ("ld.global.nc.v4.f32", 16), ("ld.global.v2.u64", 16),
                             ("ld.global.b128", 16), ("ld.global.v4.u64", 32), ("ld.global.nc.v8.b32", 32),
                             ("ld.global.u16", 2), ("ld.global.nc.L1::no_allocate.u64", 8),
                             ("ld.shared.v4.f32", 0), ("ld.param.u64", 0), ("st.global.v4.u32", 0), ("add.f32", 0)]:
            self.assertEqual(gates.load_bytes(opcode), size, opcode)

    def test_without_a_loop_all_of_the_code_counts(self):
        self.assertEqual(loads("""
            ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
            ld.global.u32 %r5, [%rd2];
            add.s32 %r6, %r1, %r5;
            st.global.u32 [%rd3], %r6;
            ret;"""), (16, 4, 20, False))

    def test_the_loop_counts_and_not_what_precedes_it(self):
        self.assertEqual(loads("""
            ld.global.u32 %r9, [%rd9];
            $L__BB0_1:
            ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
            add.s32 %r6, %r1, %r6;
            add.s64 %rd1, %rd1, 16;
            setp.lt.s64 %p1, %rd1, %rd2;
            @%p1 bra $L__BB0_1;
            ret;"""), (16, 0, 16, True))

    def test_loads_of_a_block_are_in_flight_together_and_a_use_ends_that(self):
        together = """
            $L__BB0_1:
            ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
            add.s32 %r9, %r9, %r1;
            ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd2];
            add.s32 %r9, %r9, %r5;
            setp.lt.s32 %p1, %r10, %r11;
            @%p1 bra $L__BB0_1;"""
        self.assertEqual(loads(together), (32, 0, 32, True))  # the compiler moves the second load before the first use
        apart = together.replace("add.s32 %r9, %r9, %r1;", "add.s32 %r9, %r9, %r1;\nbar.sync 0;")
        self.assertEqual(loads(apart), (32, 0, 16, True))

    def test_values_that_are_only_moved_stay_in_flight(self):
        self.assertEqual(loads("""
            $L__BB0_1:
            @%p2 bra $L__BB0_2;
            ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
            mov.u32 %r20, %r1;
            $L__BB0_2:
            @%p3 bra $L__BB0_3;
            ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd2];
            $L__BB0_3:
            add.s32 %r9, %r20, %r5;
            setp.lt.s32 %p1, %r10, %r11;
            @%p1 bra $L__BB0_1;"""), (32, 0, 32, True))

    def test_a_load_whose_address_is_loaded_waits_for_it(self):
        self.assertEqual(loads("""
            ld.global.u32 %r1, [%rd1];
            mul.wide.s32 %rd2, %r1, 16;
            ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd2];
            st.global.u32 [%rd3], %r5;"""), (16, 4, 8, False))  # 16 bytes half of the time

    def test_loads_of_an_inner_loop_are_not_those_of_the_outer(self):
        self.assertEqual(loads("""
            $L__BB0_1:
            ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
            ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd1+16];
            $L__BB0_2:
            ld.global.u32 %r9, [%rd4];
            add.s32 %r10, %r9, %r1;
            setp.lt.s32 %p1, %r10, %r11;
            @%p1 bra $L__BB0_2;
            add.s32 %r12, %r12, %r5;
            setp.lt.s32 %p2, %r12, %r11;
            @%p2 bra $L__BB0_1;""")[:2], (32, 0))


class Blocks(unittest.TestCase):
    def test_occupancy_by_each_limit(self):
        self.assertEqual(gates.occupancy(32, 0, 256, 164), 8)  # 2,048 threads
        self.assertEqual(gates.occupancy(32, 0, 32, 164), 32)  # 32 blocks
        self.assertEqual(gates.occupancy(168, 0, 128, 228), 3)  # 65,536 registers
        self.assertEqual(gates.occupancy(255, 0, 128, 228), 2)
        self.assertEqual(gates.occupancy(32, 40 * 1024, 128, 164), 4)  # shared memory
        self.assertEqual(gates.occupancy(33, 0, 1024, 164), 1)  # registers in steps of eight

    def test_bandwidths_are_those_of_the_catalogue(self):
        self.assertEqual(gates.gpu_facts("h100-80gb-sxm"), (132, 3.35e12))


SASS = """
        Function : _Z6kernelPf
    .headerflags    @"EF_CUDA_SM90"
        /*0070*/                   LDG.E.128 R4, desc[UR4][R2.64] ;  /* 0x0000000402047981 */
        /*0080*/                   LDG.E.128.CONSTANT R8, [R2.64+0x10] ;
        /*0090*/              @!P0 LDG.E.U16 R6, [R4.64] ;
        /*00a0*/                   LDG.E R7, [R4.64] ;
        /*00b0*/                   LDS.128 R8, [R3] ;
        Function : _Z5otherPf
        /*0070*/                   STG.E.128 [R2.64], R4 ;
"""


class Sass(unittest.TestCase):
    def test_loads_by_width(self):
        self.assertEqual(gates.sass_loads(SASS), {"_Z6kernelPf": {16: 2, 2: 1, 4: 1}, "_Z5otherPf": {}})


ROW = {"sass_loads": None, "arch": "sm_90", "kernel": "split_kernel<Rows>", "spills": 0, "stack": 0, "threads": 128, "loop_bytes": 32,
       "wide_bytes": 32, "in_flight": 20000, "needed": 12000, "hbm_share": 1.0}


class Gates(unittest.TestCase):
    def failed(self, **changes):
        return [gate for gate, _ in gates.problems({**ROW, **changes})]

    def test_each_gate(self):
        self.assertEqual(self.failed(), [])
        self.assertEqual(self.failed(spills=4), ["spills"])
        self.assertEqual(self.failed(stack=8), ["stack"])
        self.assertEqual(self.failed(threads=0), ["bounds"])
        self.assertEqual(self.failed(wide_bytes=16), ["wide"])
        self.assertEqual(self.failed(sass_loads={4: 2}), ["sass"])
        self.assertEqual(self.failed(sass_loads={4: 2, 16: 1}), [])
        self.assertEqual(self.failed(hbm_share=0.5), ["flight"])
        self.assertEqual(self.failed(hbm_share=0.5, arch="sm_100"), [])
        self.assertEqual(self.failed(loop_bytes=0, wide_bytes=0, hbm_share=None), [])

    def test_exemptions_name_kernels_and_gates(self):
        self.assertIsNone(gates.exemption("split_kernel<Rows>", "wide"))
        self.assertIsNone(gates.exemption("softmax_kernel<float>", "spills"))
        self.assertIsNotNone(gates.exemption("softmax_kernel<float>", "wide"))


class Document(unittest.TestCase):
    def test_a_table_of_the_same_compiler_has_to_be_equal(self):
        text = "a\n<!-- gates: nvcc 13.0 -->\n| x |\n| y |\n<!-- end of gates -->\nb"
        self.assertFalse(gates.document_differs(text, "13.0", "| x |\n| y |"))
        self.assertTrue(gates.document_differs(text, "13.0", "| x |\n| z |"))
        self.assertFalse(gates.document_differs(text, "13.1", "| x |\n| z |"))
        with self.assertRaises(SystemExit):
            gates.document_differs("no block", "13.0", "")

    def test_the_table_has_a_line_per_kernel_and_values_per_architecture(self):
        base = {"source": "kernels/decode/decode_attention.cu", "registers": 32, "shared": 0, "blocks": 8,
                "in_flight": 32768, "needed": 13000, "hbm_share": 1.0, "loop_bytes": 32, "wide_bytes": 32, "problems": []}
        rows = [dict(base, arch="sm_80", kernel="k<BFloat16, 128>"),
                dict(base, arch="sm_90", kernel="k<BFloat16, 128>", registers=40),
                dict(base, arch="sm_90", kernel="k<Half, 128>")]
        lines = [line for line in gates.markdown(rows).splitlines() if line.startswith("| `")]
        self.assertEqual(len(lines), 1)
        self.assertIn("| 32 / 40 | 0 | 8 | 32 of 32 | 32 | 100 % |", lines[0])


if __name__ == "__main__":
    unittest.main()
