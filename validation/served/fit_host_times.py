#!/usr/bin/env python3
"""Fits the host time of an engine per sequence and step to measured runs, with one value per document.

    kvsim validate served runs.csv -o none/ --set /engine/step_overhead_per_sequence=0us
    kvsim validate served runs.csv -o some/ --set /engine/step_overhead_per_sequence=30us
    python3 validation/served/fit_host_times.py none/values.csv some/values.csv 30 > host-times.json

The measured time per token of a run is m = k p + b s, where p is the prediction without time per sequence and
s = (p with 30 us - p) / 30 us is the mean number of sequences of an iteration. Each document has a factor k for
kernel times, lognormal with median 1, and a time b per sequence. b is normally distributed with the mean of the
engine's releases (an era). Errors of rows are Student-t distributed. The mean of an era and the spread of documents
maximise the likelihood of all documents (empirical Bayes); each era is also fitted with each document left out.
Runs below MOST_LOADED of saturation and bursts are used, with the mean of TPOT or the median of gaps.
"""
import csv
import json
import math
import sys

KERNELS = 0.10  # spread of log k between documents, as for decode kernels on other GPUs
ROWS = 0.05  # scale of a row's error, from repeats and from models within a document
MOST_LOADED = 0.85  # as a share of the highest rate
TAILS = 4  # degrees of freedom of the Student-t distribution
STATS = {"tpot": "mean", "itl": "median"}


def rows_of(path):
    out = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if STATS.get(row["metric"]) != row["stat"]:
                continue
            out[row["run"], row["metric"]] = row
    return out


def era_of(engine, version, client):
    numbers = [int(n) for n in version.split(" ")[0].split(".")[:3]] + [0, 0]
    release = tuple(numbers[:3])
    if engine == "vLLM":
        if release < (0, 6, 0):
            # ML.ENERGY's scripts start 0.5.4 with --disable-frontend-multiprocessing.
            one_process = release < (0, 5, 4) or client == "ML.ENERGY 2024"
            return "vLLM before 0.6, API server in the engine's process" if one_process else "vLLM 0.5.4 to 0.5.5"
        return "vLLM 0.6 to 0.7" if release < (0, 8, 0) else "vLLM V1"
    if engine == "TensorRT-LLM":
        return "TensorRT-LLM, PyTorch" if release >= (1, 0, 0) else "TensorRT-LLM, C++"
    return engine


def documents_of(without, with_some, step):
    out = {}
    others = rows_of(with_some)
    for key, row in rows_of(without).items():
        other = others.get(key)
        share = float(row["load_share"] or 0)
        if other is None or not (0 < share <= MOST_LOADED or share == 1):
            continue  # near saturation the batch depends on the step time; a share of 1 is a burst
        p, q, m = float(row["predicted"]), float(other["predicted"]), float(row["measured"])
        s = (q - p) / step
        if p <= 0 or m <= 0 or s < 0.5:
            continue
        era = era_of(row["engine"], row["version"], row["client"])
        out.setdefault(era, {}).setdefault(row["source"], []).append((m, p, s))
    return out


def log_t(x):
    return -0.5 * (TAILS + 1) * math.log1p(x * x / TAILS)


def fit_document(rows, mean, spread):
    """Returns the mode of log k and b, the error of b, and the Laplace approximation of the evidence."""
    weight = min(1.0, 20 / len(rows))  # a document counts as at most 20 rows

    def cost(u, b):
        total = 0.5 * (u / KERNELS) ** 2 + 0.5 * ((b - mean) / spread) ** 2
        for m, p, s in rows:
            predicted = math.exp(u) * p + b * s
            if predicted <= 0:
                return math.inf
            total -= weight * log_t(math.log(m / predicted) / ROWS)
        return total

    u, b = 0.0, mean
    du, db = 0.1, max(5e-6, spread)
    best = cost(u, b)
    for _ in range(400):
        moved = False
        for au, ab in ((du, 0), (-du, 0), (0, db), (0, -db), (du, -db), (-du, db)):
            there = cost(u + au, b + ab)
            if there < best - 1e-12:
                u, b, best, moved = u + au, b + ab, there, True
        if not moved:
            du, db = du / 2, db / 2
            if du < 1e-5:
                break
    hu, hb = 1e-3, 1e-7
    c = cost
    uu = (c(u + hu, b) - 2 * best + c(u - hu, b)) / hu**2
    bb = (c(u, b + hb) - 2 * best + c(u, b - hb)) / hb**2
    ub = (c(u + hu, b + hb) - c(u + hu, b - hb) - c(u - hu, b + hb) + c(u - hu, b - hb)) / (4 * hu * hb)
    determinant = max(1e-12, uu * bb - ub * ub)
    evidence = -best - 0.5 * math.log(determinant) - math.log(KERNELS * spread)
    error = math.sqrt(max(0.0, uu / determinant))
    return u, b, error, evidence


def fit_era(documents):
    best = None
    for spread in (8e-6, 16e-6, 32e-6, 64e-6):
        for i in range(0, 71):
            mean = i * 2e-6 if i <= 25 else (i - 20) * 1e-5
            # Weak prior: a few documents do not determine spreads below 8 us.
            value = sum(fit_document(rows, mean, spread)[3] for rows in documents) - 8e-6 / spread
            if best is None or value > best[0]:
                best = (value, mean, spread)
    return best[1], best[2]


def main():
    without, with_some, step = sys.argv[1], sys.argv[2], float(sys.argv[3]) * 1e-6
    eras = []
    for era, documents in sorted(documents_of(without, with_some, step).items()):
        names = sorted(documents)
        mean, spread = fit_era([documents[n] for n in names])
        listed = []
        for name in names:
            u, b, error, _ = fit_document(documents[name], mean, spread)
            others = [documents[n] for n in names if n != name]
            left_out = fit_era(others)[0] if others else None
            listed.append({"document": name, "rows": len(documents[name]), "kernels": round(math.exp(u), 3),
                           "us": round(b * 1e6, 1), "error_us": round(error * 1e6, 1),
                           "era_us_without_it": None if left_out is None else round(left_out * 1e6, 1)})
        eras.append({"era": era, "us": round(mean * 1e6, 1), "spread_us": round(spread * 1e6, 1), "documents": listed})
    json.dump({"schema": "kvsim.host-times/1", "eras": eras}, sys.stdout, indent=1)
    print()


main()
