"""Synthetic tasks whose answers need distant tokens: the training data of the sample model, and the task sets of
closed-loop runs. Everything is drawn from a seed.

Token ids: 0 BOS, 1 QUESTION, 2 ANSWER, 3 END, 4 IS, 5 COUNT, 6 COPY, 7 MARK, 8-17 digits, then names, values and
words.
"""
import argparse
import json
import random
import sys

BOS, QUESTION, ANSWER, END, IS, COUNT, COPY, MARK = range(8)
DIGITS = range(8, 18)
NAMES = range(18, 82)      # keys and variables
VALUES = range(82, 146)
WORDS = range(146, 256)    # filler
VOCAB = 256
TASKS = ("needle", "needles", "recall", "track", "copy", "count")


class Filler:
    """Words of a Markov chain with Zipf-like successors, so that the filler is partly predictable."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.successors = {word: rng.sample(WORDS, 8) for word in WORDS}
        self.weights = [1 / (rank + 1) for rank in range(8)]

    def words(self, rng, count):
        word, out = rng.choice(WORDS), []
        for _ in range(count):
            out.append(word)
            word = rng.choices(self.successors[word], self.weights)[0] if rng.random() < 0.9 else rng.choice(WORDS)
        return out


def place(rng, filler, facts, length):
    """Returns the facts, each contiguous and in order, spread over `length` tokens of filler."""
    room = length - sum(map(len, facts))
    cuts = sorted(rng.randint(0, max(room, 0)) for _ in facts)
    words = filler.words(rng, max(room, 0))
    out, last = [], 0
    for cut, fact in zip(cuts, facts):
        out += words[last:cut] + fact
        last = cut
    return out + words[last:]


def fact(rng, name):
    return [MARK, name, IS, rng.choice(VALUES), rng.choice(VALUES)]


def draw(task, rng, filler, length, questions=1):
    """Returns (context, [(question, answer), ...]): about `length` tokens of context."""
    if task == "needle":
        name = rng.choice(NAMES)
        found = fact(rng, name)
        return place(rng, filler, [found], length), [([QUESTION, name, ANSWER], found[3:] + [END])]
    if task == "needles":  # values of one name, in the order of their facts
        name, other = rng.sample(NAMES, 2)
        facts = [fact(rng, name), fact(rng, other), fact(rng, name)]
        rng.shuffle(facts)
        values = [t for f in facts if f[1] == name for t in f[3:]]
        return place(rng, filler, facts, length), [([QUESTION, name, MARK, ANSWER], values + [END])]
    if task == "recall":
        names = rng.sample(NAMES, max(2, min(32, length // 8)))
        facts = [fact(rng, name) for name in names]
        asked = rng.sample(facts, min(questions, len(facts)))
        return place(rng, filler, facts, length), [([QUESTION, f[1], ANSWER], f[3:] + [END]) for f in asked]
    if task == "track":  # a is v, b is a, c is b
        a, b, c = rng.sample(NAMES, 3)
        first = fact(rng, a)
        chain = [first, [MARK, b, IS, a], [MARK, c, IS, b]]
        hops = rng.randint(1, 2)
        asked = (b, c)[hops - 1]
        others = [fact(rng, n) for n in rng.sample([n for n in NAMES if n not in (a, b, c)], 2)]
        facts = others[:1] + chain[:2] + others[1:] + chain[2:]
        return place(rng, filler, facts, length), [([QUESTION, asked, IS, ANSWER], first[3:] + [END])]
    if task == "copy":
        span = [rng.choice(VALUES) for _ in range(rng.randint(4, 12))]
        return place(rng, filler, [[COPY] + span + [COPY]], length), [([QUESTION, COPY, ANSWER], span + [END])]
    count, word = rng.randint(1, 9), rng.choice(NAMES)  # count
    facts = [[COUNT, word]] * count
    return place(rng, filler, facts, length), [([QUESTION, COUNT, word, ANSWER], [DIGITS[count], END])]


def prompts(seed, length, per_task, tasks=TASKS, chunks=0):
    filler, rng = Filler(0), random.Random(seed)
    for task in tasks:
        for _ in range(per_task):
            context, [(question, answer)] = draw(task, rng, filler, length - 24)
            prompt = {"task": task, "tokens": [BOS] + context + question, "question_start": 1 + len(context),
                      "answer": answer}
            if chunks:
                prompt["chunks"] = [i * (1 + len(context)) // chunks for i in range(chunks)]
            yield prompt


def main():
    parser = argparse.ArgumentParser(description="Writes a task set for kvsim replay --closed-loop, as JSONL.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a prompt, about (default 1024)")
    parser.add_argument("--per-task", type=int, default=20, help="prompts of each task (default 20)")
    parser.add_argument("--task", action="append", choices=TASKS, help="only this task; may be repeated")
    parser.add_argument("--chunks", type=int, default=0, help="state as many equal chunks of each context, for CacheBlend")
    arguments = parser.parse_args()
    if not 0 <= arguments.chunks <= 32:
        parser.error(f"--chunks: expected 0 to 32, got {arguments.chunks}")
    if not 64 <= arguments.length <= 1 << 20:
        parser.error(f"--length: expected 64 to {1 << 20}, got {arguments.length}")
    for prompt in prompts(arguments.seed, arguments.length, arguments.per_task, arguments.task or TASKS,
                          arguments.chunks):
        json.dump(prompt, sys.stdout)
        print()


if __name__ == "__main__":
    main()
