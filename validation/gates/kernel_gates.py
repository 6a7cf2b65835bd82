#!/usr/bin/env python3
"""Static checks of the CUDA kernels from compiler output, without a GPU.

Compiles each kernel for several architectures. Reads its registers, spills and shared memory from ptxas,
and the width of loads in its main loop and the bytes in flight per thread from PTX. Derives the number of
blocks that fit on an SM, the bytes in flight per SM, and the share of HBM bandwidth that they allow by
Little's law (bytes in flight = latency x bandwidth). Nothing is measured.

Exit status: 0 if all gates hold, 1 if one does not, 2 for wrong usage, 77 without nvcc.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["basic", "decode", "merge", "quantise", "score", "select"]

# Latency in clock cycles of a load that misses all caches: H200, global memory (arXiv:2512.02189). Clocks and
# limits of an SM: NVIDIA's data sheets and CUDA programming guide, table of compute capabilities.
LATENCY_CYCLES = 1000
ARCHITECTURES = {
    "80": {"gpu": "a100-80gb-sxm", "name": "A100", "ghz": 1.41, "shared_kib": 164},
    "90": {"gpu": "h100-80gb-sxm", "name": "H100", "ghz": 1.98, "shared_kib": 228},
    "100": {"gpu": "b200", "name": "B200", "ghz": 1.965, "shared_kib": 228},
}
REGISTERS_PER_SM = 65536
THREADS_PER_SM = 2048
BLOCKS_PER_SM = 32
RESERVED_SHARED = 1024  # bytes per block
BANDWIDTH_UNITS = {"TB/s": 1e12, "GB/s": 1e9}

# Gates. Kernels read the cache, so they must use 128-bit loads and keep enough bytes in flight.
WIDE_BYTES = 16
WIDE_SHARE = 2 / 3  # minimum share of the main loop's bytes in 128-bit loads; the rest are indexes, biases, scales
FLIGHT_SHARE = 0.8  # minimum share of latency x bandwidth, on A100 and H100

# Exempt kernels: name pattern, gates that do not apply, reason.
SCORES = "rows of 4-byte numbers: neighbouring lanes read neighbouring elements, 128 bytes per instruction"
EXEMPT = [
    (r"^(softmax|copy|open|choose|bias|column|log_average|fuse|threshold|retain|normalise|lazy)_kernel", ("wide", "flight"),
     SCORES),
    (r"^spread_kernel", ("wide", "flight"), "one number of each of many rows"),
    (r"^move_kernel", ("wide",), "two indexes of 8 bytes per 16 bytes of a row"),
    (r"^slerp_kernel", ("stack",), "the compiler's argument reduction of sines, for arguments larger than any angle"),
]

LOAD = re.compile(r"ld(?:\.(?:global|weak|relaxed|volatile|nc|L1::\S+|L2::\S+))*(?:\.v([248]))?\.(?:b|u|s|f)(\d+)$")


def fail(message):
    print(f"kernel_gates: {message}", file=sys.stderr)
    sys.exit(2)


class Loads:
    """Global-memory loads in a section of PTX."""

    def __init__(self):
        self.wide = 0  # bytes in loads of 128 bits or more
        self.narrow = 0
        self.in_flight = 0  # maximum bytes that a thread has requested and not yet used

    @property
    def bytes(self):
        return self.wide + self.narrow


def load_bytes(opcode):
    """Returns the bytes of a global-memory load; 0 for any other instruction."""
    if not opcode.startswith("ld.global"):
        return 0
    match = LOAD.match(opcode)
    if not match:
        return 0
    return int(match.group(1) or 1) * int(match.group(2)) // 8


def instructions(body):
    """Returns (label or None, opcode, destinations, sources, branch target) of each line of PTX."""
    result = []
    for line in body:
        text = line.strip()
        label = re.match(r"(\$L\w+):", text)
        if label:
            result.append((label.group(1), "", [], [], None))
            continue
        match = re.match(r"(?:@!?(%\w+)\s+)?([a-z][\w.:]*)\s*(.*);", text)
        if not match:
            continue
        guard, opcode, operands = match.groups()
        registers = re.findall(r"%[a-z]+\d+", operands)
        target = re.search(r"(\$L\w+)", operands) if opcode.startswith("bra") else None
        if opcode.startswith(("st.", "bra", "red", "setp", "bar", "ret")) or not registers:
            destinations, sources = [], registers
            if opcode.startswith("setp"):
                destinations, sources = registers[:1], registers[1:]
        else:
            count = 1
            vector = re.match(r"\{([^}]*)\}", operands)
            if vector:
                count = len(re.findall(r"%[a-z]+\d+", vector.group(1)))
            destinations, sources = registers[:count], registers[count:]
        if guard:
            sources = sources + [guard]
        result.append((None, opcode, destinations, sources, target.group(1) if target else None))
    return result


def blocks_of(code):
    """Splits code into basic blocks, which are lists of instructions."""
    blocks, current = [], []
    for item in code:
        if item[0] and current:
            blocks.append(current)
            current = []
        current.append(item)
        if item[1].startswith(("bra", "ret", "bar")):
            blocks.append(current)
            current = []
    return blocks + ([current] if current else [])


def measure(code, rounds):
    """Returns the loads of `code` executed `rounds` times. A use of a loaded value waits for the load; loads
    move up within a basic block. If an address is itself loaded, the loads form a chain of dependences: bytes
    in flight are divided by its length."""
    loads = Loads()
    outstanding = {}  # load -> bytes
    carried = {}  # register -> loads whose value it holds
    depth = {}  # register -> length of the chain of loads that it depends on
    longest = 1
    for turn in range(rounds):
        depth.clear()
        for number, block in enumerate(blocks_of(code)):
            derived = set()  # registers that depend on a load of this block
            for index, (_, opcode, destinations, sources, _) in enumerate(block):
                size = load_bytes(opcode)
                chain = max([depth.get(s, 0) for s in sources], default=0) + (1 if size else 0)
                for register in destinations:
                    depth[register] = chain
                longest = max(longest, chain)
                if size and turn == 0:
                    if size >= WIDE_BYTES:
                        loads.wide += size
                    else:
                        loads.narrow += size
                depends = any(s in derived for s in sources)
                if size and not depends:
                    outstanding[number, index] = size
                if size or depends:
                    derived.update(destinations)
            loads.in_flight = max(loads.in_flight, sum(outstanding.values()))
            for index, (_, opcode, destinations, sources, _) in enumerate(block):
                held = set().union(*(carried.get(s, set()) for s in sources)) if sources else set()
                if opcode.startswith("mov"):
                    for register in destinations:
                        carried[register] = held
                    continue
                for load in held:
                    outstanding.pop(load, None)
                size = load_bytes(opcode)
                if size:
                    outstanding[number, index] = size
                    loads.in_flight = max(loads.in_flight, sum(outstanding.values()))
                for register in destinations:
                    carried[register] = {(number, index)} if size else set()
    loads.in_flight //= longest
    return loads


def is_wide(code, loop):
    start, end, inner = loop
    return any(load_bytes(code[i][1]) >= WIDE_BYTES for i in range(start, end + 1) if not any(s <= i <= e for s, e in inner))


def main_loop(code):
    """Returns the loads of the main loop and True. The main loop reads the most bytes, not counting inner loops.
    If only code outside of loops has 128-bit loads, returns the loads of that code and False."""
    position = {item[0]: i for i, item in enumerate(code) if item[0]}
    loops = {}
    for i, item in enumerate(code):
        start = position.get(item[4]) if item[4] else None
        if start is not None and start < i:
            loops[start] = max(loops.get(start, 0), i)
    ranges = sorted(loops.items())
    best, best_bytes = None, 0
    for start, end in ranges:
        inner = [(s, e) for s, e in ranges if start <= s and e <= end and (s, e) != (start, end)]
        total = sum(load_bytes(code[i][1]) for i in range(start, end + 1)
                    if not any(s <= i <= e for s, e in inner))
        if total > best_bytes:
            best, best_bytes = (start, end, inner), total
    outside = [c for i, c in enumerate(code) if not any(s <= i <= e for s, e in ranges)]
    if best is None or (any(load_bytes(c[1]) >= WIDE_BYTES for c in outside) and not is_wide(code, best)):
        return measure(outside, 1), False
    start, end, inner = best
    own = [code[i] for i in range(start, end + 1) if not any(s <= i <= e for s, e in inner)]
    return measure(own, 2), True


def sass_loads(text):
    """Returns global-memory loads in the output of `cuobjdump -sass`: counts by bytes per load, for each function."""
    result, function = {}, None
    for line in text.splitlines():
        name = re.match(r"\s*Function : (\w+)", line)
        if name:
            function = result.setdefault(name.group(1), {})
        load = re.search(r"\bLDG\.E((?:\.\w+)*)", line)
        if load and function is not None:
            parts = load.group(1).split(".")
            size = next((int(p) // 8 for p in parts if p in ("64", "128", "256")), None)
            size = size or (1 if {"U8", "S8"} & set(parts) else 2 if {"U16", "S16"} & set(parts) else 4)
            function[size] = function.get(size, 0) + 1
    return result


def entries(ptx):
    """Returns (mangled name, threads per block, lines) of each kernel."""
    lines = ptx.splitlines()
    i = 0
    while i < len(lines):
        match = re.match(r"\s*(?:\.visible |\.weak )?\.entry (\w+)\(", lines[i])
        if not match:
            i += 1
            continue
        threads, start = 0, i
        while lines[i].strip() != "{":
            limit = re.match(r"\s*\.maxntid (\d+)", lines[i])
            if limit:
                threads = int(limit.group(1))
            i += 1
        body = i
        while lines[i] != "}":
            i += 1
        yield match.group(1), threads, lines[body:i]


def readable(names):
    """Removes the project's namespaces and anonymous ones from names."""
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    result = []
    for name in out.splitlines():
        name = re.sub(r"kvsim::on_gpu::|kvsim::kernels::|kv::|split_k::|\(anonymous namespace\)::|void ", "", name)
        result.append(name.split("(kvsim")[0].split("(QuantShape")[0])
    return result


def short(name):
    depth, out = 0, ""
    for c in name:
        if c == "(" and depth == 0:
            break
        depth += {"<": 1, ">": -1}.get(c, 0)
        out += c
    return out


def occupancy(registers, shared, threads, shared_kib):
    """Returns the number of blocks that fit on an SM."""
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // 256) * 256
    limits = [BLOCKS_PER_SM, THREADS_PER_SM // (warps * 32)]
    if per_warp:
        limits.append(REGISTERS_PER_SM // per_warp // warps)
    limits.append(shared_kib * 1024 // (shared + RESERVED_SHARED))
    return min(limits)


def gpu_facts(file):
    facts = json.loads((ROOT / "models/gpu/data" / f"{file}.json").read_text())
    number, unit = facts["hbm_bandwidth"].split()
    return facts["sms"], float(number) * BANDWIDTH_UNITS[unit]


def compile_source(nvcc, source, arch):
    """Returns the rows of one source file for one architecture."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = pathlib.Path(folder) / "kernel.ptx"
        common = [nvcc, f"-arch=sm_{arch}"]
        flags = ["-std=c++20", "--expt-relaxed-constexpr", "-O3", f"-I{ROOT}"]
        subprocess.run(common + flags + ["-ptx", str(source), "-o", str(ptx)], check=True, capture_output=True, text=True)
        said = subprocess.run(common + ["-Xptxas", "-v", "-cubin", str(ptx), "-o", os.path.join(folder, "kernel.cubin")],
                              check=True, capture_output=True, text=True).stderr
        text = ptx.read_text()
        disassembler = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.path.dirname(nvcc))
        sass = {}
        if disassembler:
            sass = sass_loads(subprocess.run([disassembler, "-sass", os.path.join(folder, "kernel.cubin")], check=True,
                                             capture_output=True, text=True).stdout)
    used, name = {}, None
    for line in said.splitlines():
        entry = re.search(r"Compiling entry function '(\w+)'", line)
        if entry:
            name = entry.group(1)
            used[name] = {"registers": 0, "shared": 0, "spills": 0, "stack": 0}
        spill = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if spill and name:
            used[name]["stack"] = int(spill.group(1))
            used[name]["spills"] = int(spill.group(2)) + int(spill.group(3))
        registers = re.search(r"Used (\d+) registers", line)
        if registers and name:
            used[name]["registers"] = int(registers.group(1))
            shared = re.search(r"(\d+) bytes smem", line)
            used[name]["shared"] = int(shared.group(1)) if shared else 0
    facts = ARCHITECTURES[arch]
    sms, bandwidth = gpu_facts(facts["gpu"])
    needed = LATENCY_CYCLES / (facts["ghz"] * 1e9) * bandwidth / sms
    rows = []
    for mangled, threads, body in entries(text):
        loads, in_loop = main_loop(instructions(body))
        row = dict(used[mangled], mangled=mangled, source=os.path.relpath(source, ROOT), arch=f"sm_{arch}",
                   threads=threads, loop=in_loop, loop_bytes=loads.bytes, wide_bytes=loads.wide,
                   thread_in_flight=loads.in_flight)
        row["sass_loads"] = sass.get(mangled) if sass else None
        row["blocks"] = occupancy(row["registers"], row["shared"], threads, facts["shared_kib"]) if threads else 0
        row["in_flight"] = row["blocks"] * threads * loads.in_flight
        row["needed"] = round(needed)
        row["hbm_share"] = min(1.0, row["in_flight"] / needed) if loads.bytes else None
        rows.append(row)
    for row, name in zip(rows, readable([r.pop("mangled") for r in rows])):
        row["kernel"] = short(name)
    return rows


def problems(row):
    """Yields the name of each gate that a row fails, with the reason."""
    if row["spills"]:
        yield "spills", f"{row['spills']} bytes of spills"
    if row["stack"]:
        yield "stack", f"{row['stack']} bytes of local memory"
    if not row["threads"]:
        yield "bounds", "no launch bounds"
    if not row["loop_bytes"]:
        return
    if row["wide_bytes"] < WIDE_SHARE * row["loop_bytes"]:
        yield "wide", f"{row['wide_bytes']} of {row['loop_bytes']} bytes in 128-bit loads"
    if row["wide_bytes"] and row["sass_loads"] is not None and not {16, 32} & set(row["sass_loads"]):
        yield "sass", "128-bit loads of PTX are missing in SASS"
    if row["arch"] != "sm_100" and row["hbm_share"] < FLIGHT_SHARE:
        yield "flight", f"{row['in_flight']} of {row['needed']} bytes in flight"


def exemption(kernel, gate):
    for pattern, gates, reason in EXEMPT:
        if gate in gates and re.search(pattern, kernel):
            return reason
    return None


def merged(values):
    """Returns one text if all values are equal, otherwise one per architecture."""
    return str(values[0]) if len(set(values)) == 1 else " / ".join(str(v) for v in values)


def markdown(rows):
    """Returns a Markdown table of the bf16 kernels with head_dim 128, one line per kernel, with the requirements and exemptions."""
    first = {}
    for row in rows:
        first.setdefault(row["arch"], row["needed"])
    needed = ", ".join(f"{ARCHITECTURES[a[3:]]['name']} {n / 1024:.1f} KiB" for a, n in first.items())
    lines = [f"Bytes in flight per SM that HBM needs: {needed}. Multiple values are for "
             + " / ".join(ARCHITECTURES[a[3:]]["name"] for a in first) + ".", "",
             "| kernel | registers | shared, bytes | blocks per SM | main loop: bytes in 128-bit loads | in flight per SM, KiB "
             "| share of HBM bandwidth | exempt |",
             "|---|---|---|---|---|---|---|---|"]
    groups = {}
    for row in rows:
        if re.search(r"\b(float|Half)\b|\b64\b", row["kernel"]):
            continue
        if row["kernel"].startswith("combine") and not row["source"].endswith("decode_attention.cu"):
            continue
        groups.setdefault((row["source"], row["kernel"]), {})[row["arch"]] = row
    for (source, kernel), by_arch in groups.items():
        of = [by_arch[a] for a in first if a in by_arch]
        reads = of[0]["loop_bytes"] > 0
        exempt = sorted({p["gate"] for row in of for p in row["problems"] if p["exempt"]})
        name = re.sub(r", BFloat16\b|\bBFloat16, |<BFloat16>", "", kernel)
        name = re.sub(r"StagedRows<(.*)<128> >", r"\1", name).replace("::Format", "").replace("Format", "")
        name = name.replace("(ByteCode)0", "int8").replace("(ByteCode)1", "e4m3").replace("<128>", "").replace(", 128,", ",")
        name = name.replace("unsigned short", "2 bits").replace("unsigned int", "4 bits").replace(", 128>", ">")
        lines.append(f"| `{name}` ({pathlib.Path(source).stem}) | " + " | ".join([
            merged([row["registers"] for row in of]), merged([row["shared"] for row in of]),
            merged([row["blocks"] for row in of]),
            merged([f"{row['wide_bytes']} of {row['loop_bytes']}" for row in of]) if reads else "reads nothing",
            merged([f"{row['in_flight'] / 1024:.0f}" for row in of]) if reads else "",
            merged([f"{100 * row['hbm_share']:.0f} %" for row in of]) if reads else "", ", ".join(exempt)]) + " |")
    lines += ["", "Exempt from a gate:", ""]
    lines += [f"- `{pattern}` ({', '.join(gates)}): {reason}." for pattern, gates, reason in EXEMPT]
    return "\n".join(lines)


def nvcc_release(nvcc):
    said = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"release (\d+\.\d+)", said)
    return release.group(1) if release else "unknown"


def document_differs(document, release, table):
    """Returns whether the table in the document differs from `table` although the same nvcc release produced both."""
    block = re.search(r"<!-- gates: nvcc (\S+) -->\n(.*?)\n<!-- end of gates -->", document, re.DOTALL)
    if not block:
        fail("the document has no block <!-- gates: nvcc VERSION -->")
    return block.group(1) == release and block.group(2) != table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvcc", default=os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--arch", action="append", choices=list(ARCHITECTURES), help="default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", metavar="FILE", help="every kernel's row")
    parser.add_argument("--markdown", metavar="FILE", help="the table of docs/hardware.md")
    parser.add_argument("--document", metavar="FILE", help="fail if its table differs although it is of the same nvcc")
    parser.add_argument("sources", nargs="*", help="default: all kernels")
    arguments = parser.parse_args()
    if not os.access(arguments.nvcc, os.X_OK):
        print("KVSIM-SKIPPED: no nvcc")
        sys.exit(77)
    sources = [pathlib.Path(s).resolve() for s in arguments.sources]
    if not sources:
        sources = sorted(f for folder in FOLDERS for f in (ROOT / "kernels" / folder).glob("*.cu"))
    for source in sources:
        if not source.is_file():
            fail(f"{source}: no such file")
    jobs = [(s, a) for s in sources for a in ARCHITECTURES if a in (arguments.arch or ARCHITECTURES)]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            rows = [r for part in pool.map(lambda j: compile_source(arguments.nvcc, *j), jobs) for r in part]
        except subprocess.CalledProcessError as error:
            fail(f"nvcc failed: {error.stderr.strip()}")
    failed = 0
    for row in rows:
        row["problems"] = [{"gate": g, "what": w, "exempt": exemption(row["kernel"], g)} for g, w in problems(row)]
        for p in row["problems"]:
            if p["exempt"] is None:
                failed += 1
                print(f"FAILED {row['arch']} {row['kernel']}: {p['what']}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.document:
        document = pathlib.Path(arguments.document).read_text()
        if document_differs(document, nvcc_release(arguments.nvcc), markdown(rows)):
            failed += 1
            print(f"FAILED {arguments.document}: its table differs; rewrite it with --markdown")
    if arguments.markdown:
        pathlib.Path(arguments.markdown).write_text(markdown(rows) + "\n")
    print(f"{len(rows)} kernels: {failed} gates failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
