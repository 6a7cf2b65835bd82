"""Runs a user's scorer for kvsim, which starts this script as `python3 -c TEXT SOCKET FILE CLASS`.

Each message on SOCKET consists of 8 bytes with the length of a JSON header, the header, and the
bytes of its arrays. A request has "op"; the reply has "error" or the result. All numbers are little-endian.
"""

import copy
import importlib.util
import inspect
import json
import os
import select
import socket
import struct
import sys
import threading
import traceback

# Arguments that `score` may have; they are passed by keyword. Shapes: docs/howto/own-method.md.
ARGUMENTS = ("layer", "n_layers", "keys", "values", "queries", "scale", "seed", "hidden",
             "output_projection")
ON_REQUEST = ("hidden", "output_projection")  # sent only if `score` takes them; some traces do not contain them


class Refused(Exception):
    """An error in the user's class, with a complete message."""


def last_place(error, path):
    """Returns `file:line: Type: text` of the last frame in the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if os.path.abspath(f.filename) == os.path.abspath(path)]
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{os.path.basename(error.filename)}:{error.lineno}: "
    elif inside or frames:
        frame = (inside or frames)[-1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}: "
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    return where + text


def load(path, name):
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("kvsim_own_method", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    kind = getattr(module, name, None)
    if kind is None:
        classes = [n for n, v in vars(module).items()
                   if inspect.isclass(v) and v.__module__ == spec.name]
        raise Refused(f"expected a class {name}, got {', '.join(classes) or 'no class'}")
    if not inspect.isclass(kind):
        raise Refused(f"{name}: expected a class, got a {type(kind).__name__}")
    if not callable(getattr(kind, "score", None)):
        raise Refused(f"{name}: expected a method score(), got none")
    return kind


def score_arguments(kind):
    """Returns the arguments that kind.score takes."""
    wanted = []
    parameters = list(inspect.signature(kind.score).parameters.values())
    if not isinstance(inspect.getattr_static(kind, "score"), (staticmethod, classmethod)):
        parameters = parameters[1:]  # self
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            wanted += [a for a in ARGUMENTS if a not in wanted and a not in ON_REQUEST]
        elif p.name in ARGUMENTS and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            wanted.append(p.name)
        elif p.kind is not p.VAR_POSITIONAL and p.default is p.empty:
            raise Refused(f"{kind.__name__}.score(): expected keyword arguments out of "
                          f"{', '.join(ARGUMENTS)}, got {p.name}")
    return wanted


def constructor_params(kind):
    """Returns the name and default of each constructor parameter, and whether the constructor takes the ratio."""
    if kind.__init__ is object.__init__:
        return [], None
    found, ratio = [], None
    for p in list(inspect.signature(kind).parameters.values()):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if p.name in ("ratio", "compression_ratio"):
            ratio = p.name
            continue
        simple = isinstance(p.default, (bool, int, float, str))
        finite = not isinstance(p.default, float) or abs(p.default) < float("inf")
        if p.kind is p.POSITIONAL_ONLY or not simple or not finite:
            got = "none" if p.default is p.empty else repr(p.default)
            raise Refused(f"{kind.__name__}(): parameter {p.name}: expected a default that is "
                          f"true, false, a number or a text, got {got}")
        found.append({"name": p.name, "default": p.default})
    return found, ratio


def declared_passes(kind):
    passes = getattr(kind, "passes", None)
    if passes is None:
        return None
    arrays = ("keys", "values", "queries")
    if not isinstance(passes, dict) or any(
            k not in arrays or isinstance(v, bool) or not isinstance(v, (int, float)) or
            not 0 <= v < 1e6 for k, v in passes.items()):
        raise Refused(f"{kind.__name__}.passes: expected a dict of keys, values and queries to "
                      f"numbers in [0, 1000000), got {passes!r}")
    return {a: passes.get(a, 0) for a in arrays}


class Scorer:
    """The user's class and its instances, keyed by their parameters."""

    def __init__(self, path, name):
        self.path, self.name = path, name
        self.kind = None
        self.made = {}

    def describe(self):
        self.kind = load(self.path, self.name)
        self.arguments = score_arguments(self.kind)
        params, self.ratio = constructor_params(self.kind)
        summary = (inspect.getdoc(self.kind) or "").strip().split("\n")[0]
        if summary.startswith(f"{self.name}("):  # a dataclass without a docstring
            summary = ""
        return {"params": params, "arguments": self.arguments, "summary": summary,
                "passes": declared_passes(self.kind)}

    def instance(self, params):
        key = json.dumps(params, sort_keys=True)
        if key not in self.made:
            given = dict(params)
            ratio = given.pop("ratio")
            if self.ratio:
                given[self.ratio] = ratio
            self.made[key] = self.kind(**given)
        return self.made[key]

    def score(self, header, arrays):
        import random
        import numpy as np
        # Layers are scored in any order, so values assigned to self must not affect the next call.
        one = copy.copy(self.instance(header["params"]))
        known = {**header["facts"], **arrays}
        seed = [header["facts"]["seed"] % 2**32, header["facts"]["layer"]]
        random.seed(seed[0] * 1000003 + seed[1])
        np.random.seed(seed)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed[0] * 1000003 + seed[1])
        got = one.score(**{a: known[a] for a in self.arguments})
        if hasattr(got, "detach"):  # a PyTorch tensor
            got = got.detach().cpu().numpy()
        try:
            scores = np.ascontiguousarray(got, dtype="<f8")
        except (TypeError, ValueError):
            raise Refused(f"{self.name}.score() at layer {seed[1]}: expected an array of numbers, "
                          f"got {type(got).__name__}") from None
        wanted = tuple(header["expected"])
        if scores.shape != wanted:
            raise Refused(f"{self.name}.score() at layer {seed[1]}: expected the shape "
                          f"(n_kv_heads, tokens) = {wanted}, got {scores.shape}")
        if not np.isfinite(scores).all():
            head, token = np.argwhere(~np.isfinite(scores))[0]
            raise Refused(f"{self.name}.score() at layer {seed[1]}: expected finite scores, got "
                          f"{scores[head, token]} for head {head}, token {token}")
        return scores


def receive_into(link, view):
    while len(view):
        n = link.recv_into(view)
        if n == 0:
            os._exit(0)  # kvsim ended
        view = view[n:]


def receive(link):
    length = bytearray(8)
    receive_into(link, memoryview(length))
    header = bytearray(struct.unpack("<Q", length)[0])
    receive_into(link, memoryview(header))
    header = json.loads(header)
    arrays = {}
    if header.get("arrays"):
        import numpy as np
        for name, shape in header["arrays"]:
            arrays[name] = np.empty(shape, dtype="<f4")
            receive_into(link, memoryview(arrays[name]).cast("B"))
    return header, arrays


def reply(link, header, body=b""):
    text = json.dumps(header).encode()
    try:
        link.sendall(struct.pack("<Q", len(text)) + text)
        if len(body):
            link.sendall(body)
    except BrokenPipeError:
        os._exit(0)  # kvsim ended


def end_with(link):
    """Waits until kvsim ends, then ends this process, even if the user's code is running."""
    wait = select.poll()
    wait.register(link, 0)  # reports only that the other side has closed
    wait.poll()
    os._exit(0)


def main():
    link = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=end_with, args=(link,), daemon=True).start()
    path, name = sys.argv[2:4]
    scorer = Scorer(path, name)
    while True:
        header, arrays = receive(link)
        try:
            if header["op"] == "start":
                import numpy
                reply(link, {"numpy": numpy.__version__})
            elif header["op"] == "describe":
                reply(link, scorer.describe())
            else:
                scores = scorer.score(header, arrays)
                reply(link, {"count": scores.size}, memoryview(scores).cast("B"))
        except Refused as error:
            reply(link, {"error": str(error)})
        except BaseException as error:  # from the user's code, including SystemExit
            reply(link, {"error": last_place(error, path)})


main()
