#!/usr/bin/env python3
"""Records the sample trace from trained weights: facts in filler, then questions about them with their answers.

    traces/train/sample.py WEIGHTS OUT.safetensors [--seed 1] [--length 896]

The prompt ends where the first question starts. q and k are stored after rotation.
"""
import argparse
import json
import pathlib
import random
import struct
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from model import load  # noqa: E402
from tasks import ANSWER, BOS, COPY, END, IS, MARK, NAMES, QUESTION, VALUES, Filler, fact, place  # noqa: E402

FACTS = 20
QUESTIONS = 10


def conversation(seed, length):
    """Returns (tokens, segments): a context, and questions with their answers."""
    rng, filler = random.Random(seed), Filler(0)
    names = rng.sample(NAMES, FACTS + 2)
    facts = [fact(rng, name) for name in names[:FACTS]]
    links = [[MARK, names[FACTS], IS, names[0]], [MARK, names[FACTS + 1], IS, names[FACTS]]]
    span = [rng.choice(VALUES) for _ in range(8)]
    parts = facts[:1] + rng.sample(facts[1:], FACTS - 1)
    parts[6:6], parts[12:12], parts[16:16] = [links[0]], [[COPY] + span + [COPY]], [links[1]]
    asked = [([QUESTION, f[1], ANSWER], f[3:] + [END]) for f in rng.sample(facts[1:], QUESTIONS - 2)]
    asked.insert(3, ([QUESTION, names[FACTS + 1], IS, ANSWER], facts[0][3:] + [END]))
    asked.insert(6, ([QUESTION, COPY, ANSWER], span + [END]))
    context = [BOS] + place(rng, filler, parts, length - 1 - sum(len(q) + len(a) for q, a in asked))
    tokens, segments = list(context), [("context", 0, len(context))]
    for question, answer in asked:
        segments.append(("question", len(tokens), len(tokens) + len(question)))
        segments.append(("answer", len(tokens) + len(question), len(tokens) + len(question) + len(answer)))
        tokens += question + answer
    return tokens, segments


@torch.no_grad()
def vectors(model, tokens):
    """Returns per layer q [T, heads, d], k and v [T, KV heads, d], and the logits [T, vocabulary]."""
    c, n = model.config, len(tokens)
    angles = torch.outer(torch.arange(n).float(),
                         c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim))
    angles = torch.cat((angles, angles), -1)[:, None]
    half = c.head_dim // 2

    def rotated(y):
        return y * angles.cos() + torch.cat((-y[..., half:], y[..., :half]), -1) * angles.sin()

    out, inputs = [], []
    hooks = [layer.input_layernorm.register_forward_hook(lambda m, i, o: inputs.append(o[0]))
             for layer in model.model.layers]
    logits = model(torch.tensor([tokens]))[0]
    for hook in hooks:
        hook.remove()
    for layer, x in zip(model.model.layers, inputs):
        a = layer.self_attn
        out.append((rotated(a.q_proj(x).view(n, -1, c.head_dim)), rotated(a.k_proj(x).view(n, -1, c.head_dim)),
                    a.v_proj(x).view(n, -1, c.head_dim)))
    return out, logits


def right_answers(logits, tokens, segments):
    answers = [(start, end) for name, start, end in segments if name == "answer"]
    picked = logits.argmax(-1).tolist()
    return sum(picked[start - 1:end - 1] == tokens[start:end] for start, end in answers), len(answers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=896, help="tokens in all (default 896)")
    arguments = parser.parse_args()
    model = load(arguments.weights)
    c = model.config
    tokens, segments = conversation(arguments.seed, arguments.length)
    layers, logits = vectors(model, tokens)
    right, asked = right_answers(logits, tokens, segments)
    starts = {name: next(start for n, start, _ in segments if n == name) for name in ("question", "answer")}
    about = {"format": "kv-attention-trace", "version": "1", "model": pathlib.Path(arguments.weights).name,
             "num_layers": c.num_hidden_layers, "num_q_heads": c.num_attention_heads,
             "num_kv_heads": c.num_key_value_heads, "head_dim": c.head_dim, "prompt_len": starts["question"],
             "num_tokens": len(tokens), "trained_context": 1024,
             "rope": f"rotary on halves (i, i + {c.head_dim // 2}), theta={c.rope_theta:g}, positions 0..T-1; "
                     "q and k are stored after rotation",
             "rope_style": "half_split", "rope_theta": repr(float(c.rope_theta)),
             "softmax_scale": repr(c.head_dim ** -0.5), "mask": "causal",
             "gqa": "query head h uses kv head h // (num_q_heads // num_kv_heads)", "dtype": "float16",
             "source": f"own weights; facts in filler, {asked} questions of which the model answers {right}; "
                       f"traces/train/sample.py --seed {arguments.seed} --length {arguments.length}",
             "question_start": starts["question"], "answer_start": starts["answer"],
             "segments": json.dumps([{"name": n, "start": s, "end": e} for n, s, e in segments])}
    header, blobs, at = {"__metadata__": {key: str(value) for key, value in about.items()}}, [], 0
    tensors = {f"layers.{i}.{name}": x.to(torch.float16) for i, layer in enumerate(layers)
               for name, x in zip("qkv", layer)}
    # Contribution of each layer's head outputs (CriticalKV).
    for i, layer in enumerate(model.model.layers):
        tensors[f"layers.{i}.wo"] = layer.self_attn.o_proj.weight.detach().to(torch.float16)
    tensors["tokens"] = torch.tensor(tokens, dtype=torch.int32)
    for name, x in tensors.items():
        raw = x.contiguous().numpy().tobytes()
        header[name] = {"dtype": "I32" if name == "tokens" else "F16", "shape": list(x.shape),
                        "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        blobs.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out = pathlib.Path(arguments.out)
    partial = out.with_suffix(".partial")
    partial.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    partial.rename(out)
    print(f"{out}: {len(tokens)} tokens, {right} of {asked} answers right, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
