"""Scorers of tests/sim/own/test_own_methods.cpp: reimplementations of built-in scorers, and broken scorers."""

import os
import sys
import time
from dataclasses import dataclass

import numpy as np


class Knorm:
    """Keys with small norms."""

    passes = {"keys": 1}

    def score(self, keys):
        k = keys.astype(np.float64)
        return -np.sqrt((k * k).sum(axis=-1))


class KeyDiff:
    def score(self, *, keys, **rest):
        assert set(rest) == {"layer", "n_layers", "values", "queries", "scale", "seed"}
        k = keys.astype(np.float64)
        unit = k / np.linalg.norm(k, axis=-1, keepdims=True)
        mean = unit.mean(axis=1, keepdims=True)
        return -(unit * mean).sum(axis=-1) / np.linalg.norm(mean, axis=-1)


@dataclass
class Recent:
    """The last `window` tokens, then the first."""

    window: int = 8
    weight: float = 1.0
    reverse: bool = False
    word: str = "a"
    compression_ratio: float = 0.0

    def score(self, keys, layer):
        n = keys.shape[1]
        t = np.arange(n, dtype=np.float64)
        s = np.where(t >= n - self.window, 2.0 * n, -t)
        if self.reverse:
            s = -s
        return np.broadcast_to(s * self.weight, keys.shape[:2])


class Attention:
    """Mean attention of the last 8 queries over their group; the last 8 tokens stay."""

    def score(self, queries, keys, scale):
        h, n, d = queries.shape
        hk = keys.shape[0]
        q = queries.reshape(hk, h // hk, n, d)[:, :, -8:].astype(np.float64)
        z = np.einsum("hgqd,htd->hgqt", q, keys.astype(np.float64)) * scale
        z[..., :] += np.where(np.arange(n) > np.arange(n - 8, n)[:, None], -np.inf, 0)
        p = np.exp(z - z.max(axis=-1, keepdims=True))
        s = (p / p.sum(axis=-1, keepdims=True)).mean(axis=(1, 2))
        s[:, -8:] = 2
        return s


class Random:
    def score(self, keys):
        return np.random.random(keys.shape[:2])


class Counts:
    """Scores that depend on the number of calls, which is always 1."""

    def __init__(self):
        self.calls = 0

    def score(self, keys):
        self.calls += 1
        return keys[:, :, self.calls]


class Prints:
    def score(self, keys):
        print("a line of the scorer")
        return keys[:, :, 0]


class Hidden:
    def score(self, hidden, keys):
        return np.broadcast_to(hidden[:, 0], keys.shape[:2])


class Projection:
    def score(self, output_projection, keys):
        return keys[:, :, 0]


class Raises:
    def score(self, keys):
        return keys[99]


class Exits:
    def score(self, keys):
        sys.exit("enough")


class Dies:
    def score(self, keys):
        os._exit(7)


class Sleeps:
    def score(self, keys):
        time.sleep(60)


class Stays:
    """Writes its process ID to a file and does not return."""

    def score(self, keys):
        with open("pid.partial", "w") as file:
            file.write(str(os.getpid()))
        os.rename("pid.partial", "pid")
        while True:
            time.sleep(0.01)


class WrongShape:
    def score(self, keys):
        return keys.sum(axis=-1)[0]


class Words:
    def score(self, keys):
        return "no numbers"


class NotFinite:
    def score(self, keys, layer):
        s = np.zeros(keys.shape[:2])
        if layer == 1:
            s[1, 5] = np.nan
        return s


class NoScore:
    pass


class Unknown:
    def score(self, module, keys):
        return keys


class NoDefault:
    def __init__(self, window):
        self.window = window

    def score(self, keys):
        return keys


class TakenName:
    def __init__(self, granularity="a"):
        pass

    def score(self, keys):
        return keys


class BadPasses:
    passes = {"keys": -1}

    def score(self, keys):
        return keys


class Refuses:
    def __init__(self, window=4):
        if window < 1:
            raise ValueError(f"window: expected at least 1, got {window}")

    def score(self, keys):
        return keys[:, :, 0]


NotAClass = 3
