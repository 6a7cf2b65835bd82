"""run_python.py PROGRAM SCRATCH SOURCES MODULES PAGE.md…: runs the ```python blocks of pages.

The unchanged blocks of a page run in order in one namespace, in a folder laid out like a clone of the project. The
`prelude` of a page below defines what the page assumes (a model, the user's arrays). Blocks that need another
machine are skipped by name, with a reason.
"""

import importlib.util
import os
import re
import shutil
import sys
import traceback

PROGRAM, SCRATCH, SOURCES, MODULES = sys.argv[1:5]
PAGES = sys.argv[5:]

ARRAYS = """
import numpy as _np
_draw = _np.random.default_rng(7)
q, k, v = (_draw.standard_normal((2, heads, 1800, 8), dtype=_np.float32) for heads in (4, 2, 2))
"""
MODEL = """
import sys as _sys
_sys.path.insert(0, "tests/python")
from tiny_llama import TinyLlama as _TinyLlama
model = _TinyLlama(layers=17, heads=2, kv_heads=1, max_position_embeddings=2048)
tokens = [(7 * i) % 64 for i in range(1800)]
"""
PRELUDES = {"docs/python.md": ARRAYS, "docs/record.md": MODEL}
NEEDS = {"docs/python.md": ("kvsim", "numpy"), "docs/record.md": ("torch", "numpy"),
         "docs/howto/own-method.md": ("numpy",)}
EXCUSES = {"torch.cuda.memory._record_memory_history": "no GPU"}


def blocks_of(text):
    """Returns (line number, code) of each block."""
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, found.start()) + 2, found.group(1)


def run_page(page, folder):
    """Returns the numbers of blocks that ran and that failed, and the reason if none could run or all were skipped."""
    with open(os.path.join(SOURCES, page), encoding="utf-8") as file:
        blocks = list(blocks_of(file.read()))
    ran = failed = 0
    namespace = passed_over = None
    for line, code in blocks:
        excuse = next((why for start, why in EXCUSES.items() if code.startswith(start)), None)
        if excuse:
            compile(code, page, "exec")  # checks at least the syntax
            print(f"skipped: {page}:{line} ({excuse})")
            passed_over = f"{excuse}: {page} line {line} needs one"
            continue
        if namespace is None:
            missing = [name for name in NEEDS.get(page, ()) if importlib.util.find_spec(name) is None]
            if missing:
                return ran, failed, f"no {', '.join(missing)}: {sys.executable} does not have what {page} needs"
            os.chdir(folder)
            namespace = {"__name__": "__main__"}
            exec(PRELUDES.get(page, ""), namespace)
        try:
            # Traceback entries of the page.
            exec(compile("\n" * (line - 1) + code, page, "exec"), namespace)
            print(f"ok: {page}:{line}")
        except Exception:
            failed += 1
            print(f"FAILED: {page}:{line}")
            traceback.print_exc(file=sys.stdout)
        ran += 1
    return ran, failed, None if ran else passed_over


def main():
    sys.path.insert(0, MODULES)
    os.environ["PATH"] = os.path.dirname(PROGRAM) + os.pathsep + os.environ.get("PATH", "")
    folder = os.path.join(SCRATCH, "clone")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for part in ("traces", "tests", "scenarios", "validation"):
        os.symlink(os.path.join(SOURCES, part), os.path.join(folder, part))
    total = failures = 0
    skipped = []
    for page in PAGES:
        ran, failed, reason = run_page(page, folder)
        total += ran
        failures += failed
        if reason:
            skipped.append(reason)
    print(f"{total} blocks ran, {failures} failed")
    if failures:
        sys.exit(1)
    for reason in skipped:
        print(f"KVSIM-SKIPPED: {reason}")
    if total == 0 and not skipped:
        sys.exit("no page had a block that could run")


main()
