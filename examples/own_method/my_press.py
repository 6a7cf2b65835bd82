import numpy as np


class MyPress:
    """Small keys with large values, and the newest tokens."""

    passes = {"keys": 1, "values": 1}  # a kernel would read both once

    def __init__(self, recent=16):
        self.recent = recent

    def score(self, keys, values):
        score = np.linalg.norm(values, axis=-1) / np.linalg.norm(keys, axis=-1)
        score[:, -self.recent :] = score.max() + 1
        return score
