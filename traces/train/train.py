#!/usr/bin/env python3
"""Trains the sample model on a CPU: a small Llama that retrieves distant tokens (tasks.py). Seeded; prints the learning
curve and the accuracy by task.

    traces/train/train.py OUT [--minutes 120] [--seed 0] [--resume]

Needs PyTorch 1.13 or later (python3-torch of Debian) and an optimised BLAS (libopenblas0-pthread of Debian: with the
reference BLAS it is ten times slower).
"""
import argparse
import math
import pathlib
import random
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from model import Config, Llama, load, save  # noqa: E402
from tasks import ANSWER, BOS, TASKS, Filler, draw, prompts  # noqa: E402

TOKENS_PER_BATCH = 2048
# Context lengths; each begins when the answers at the previous one are correct.
LENGTHS = (64, 128, 256, 512, 1024)
TASK_WEIGHTS = (1, 2, 2, 2, 2, 1)
FILLER_WEIGHT = 0.05  # of the loss of a context's tokens


def batch(rng, filler, length, rows):
    """Returns tokens [rows, length] and weights of the loss [rows, length - 1]."""
    tokens, weights = [], []
    for _ in range(rows):
        task = rng.choices(TASKS, TASK_WEIGHTS)[0]
        row, weight = [BOS], [0.0]
        context, asked = draw(task, rng, filler, max(16, length - 40), questions=6)
        row += context
        weight += [FILLER_WEIGHT] * len(context)
        for question, answer in asked:
            if len(row) + len(question) + len(answer) > length:
                break
            row += question + answer
            weight += [0.0] * len(question) + [1.0] * len(answer)
        pad = length - len(row)
        tokens.append((row + [0] * pad)[:length])
        weights.append((weight + [0.0] * pad)[1:length])
    return torch.tensor(tokens), torch.tensor(weights)


@torch.no_grad()
def accuracy(model, length, per_task, seed=12345):
    """Returns the share of prompts whose entire answer is correct, by task."""
    right = {}
    for prompt in prompts(seed, length, per_task):
        tokens = prompt["tokens"] + prompt["answer"]
        logits = model(torch.tensor([tokens[:-1]]))[0, len(prompt["tokens"]) - 1:]
        right.setdefault(prompt["task"], []).append(logits.argmax(-1).tolist() == prompt["answer"])
    return {task: sum(r) / len(r) for task, r in right.items()}


def train(arguments):
    out = pathlib.Path(arguments.out)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    rng, filler = random.Random(arguments.seed), Filler(0)
    model = load(out) if arguments.resume else Llama(Config())
    if not arguments.resume:
        model.seed_retrieval()
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
                                  lr=arguments.rate, betas=(0.9, 0.95))
    print(f"{model.parameters_count():,} parameters", flush=True)
    began, step, stage, seen, smoothed = time.time(), 0, arguments.stage, 0, None
    while time.time() - began < 60 * arguments.minutes:
        length = LENGTHS[stage] if rng.random() < 0.8 else LENGTHS[rng.randint(0, stage)]
        tokens, weights = batch(rng, filler, length, max(1, TOKENS_PER_BATCH // length))
        done = (time.time() - began) / (60 * arguments.minutes)
        rate = arguments.rate * min(1, (step + 1) / 100) * (1 if done < 0.7 else max(0.05, (1 - done) / 0.3))
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = model(tokens[:, :-1])
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        answers = weights.flatten() == 1
        answer_loss = losses[answers].mean().item() if answers.any() else math.nan
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, seen = step + 1, seen + tokens.numel()
        if not math.isnan(answer_loss):
            smoothed = answer_loss if smoothed is None else 0.98 * smoothed + 0.02 * answer_loss
        if step % 100 == 0:
            print(f"step {step}, {seen / 1e6:.1f}M tokens, {time.time() - began:.0f} s, context {LENGTHS[stage]}, "
                  f"answer loss {smoothed:.3f}", flush=True)
        if step % 120 == 0:
            scores = accuracy(model, max(64, LENGTHS[stage]), 10)
            print("  accuracy " + ", ".join(f"{t} {100 * a:.0f} %" for t, a in scores.items()), flush=True)
            save(model, out)
            if stage + 1 < len(LENGTHS) and min(scores["needle"], scores["recall"]) >= 0.9:
                stage += 1
    save(model, out)
    scores = accuracy(model, LENGTHS[-1], 50)
    print(f"at {LENGTHS[-1]} tokens: " + ", ".join(f"{t} {100 * a:.0f} %" for t, a in scores.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--stage", type=int, default=0, choices=range(len(LENGTHS)), help="index of the first length")
    parser.add_argument("--resume", action="store_true", help="go on from the weights in OUT")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
