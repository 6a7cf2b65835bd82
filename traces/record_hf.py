#!/usr/bin/env python3
"""Records an attention trace (kv-attention-trace, version 1) from a Hugging Face causal language model.

    python3 traces/record_hf.py path/to/model -o trace.safetensors --text book.txt --tokens 4096 --decode 512
    kvsim trace check trace.safetensors

Runs one forward pass over the whole sequence. Each layer is written to disk when it is computed, so that memory holds
the model and the vectors of one layer. Queries and keys are captured at the attention product, after rotary embedding
and any norm, for any architecture:

- the functions in transformers' ALL_ATTENTION_FUNCTIONS (4.48 and later), with K and V of the stored heads;
- torch.nn.functional.scaled_dot_product_attention (older and custom models); if K and V are expanded to the query
  heads, the expansion is undone after a check that the copies are equal;
- `eager_attention_forward` of the modules that define the model's classes.

The data is checked during recording: causal softmax attention of the file's q, k, v must equal the output of the model's
attention. A soft cap, a sliding window, a bias or a sink that the format cannot represent is therefore an error, not a
silent difference. User documentation: docs/record.md.

A single file on purpose: it is copied to the machine that has the model, without the rest of kvsim.

Needs torch; transformers for `main` (models by name or folder), not for `record` (any module with its interface).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import struct
import sys
from typing import Any, Callable, Optional, Sequence

try:
    import torch
except ImportError:
    sys.exit("record_hf: torch is missing (apt-get install python3-torch, or pip install torch)")


class RecordError(Exception):
    """An input that cannot be recorded; the message has the expected and the actual value."""


# ---- The file -------------------------------------------------------------------------------------------------------

_TYPES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32"}
_NAMES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class TensorFile:
    """A safetensors file whose sizes are known before its contents.

    Tensors may be written in any order, each row once. finish() requires all of them and gives the file its name;
    until then it is PATH.partial-PID, which discard() removes.
    """

    def __init__(self, path: str, tensors: dict, metadata: dict):
        """tensors: name -> (torch dtype, shape); metadata: strings."""
        self._path = path
        self._partial = f"{path}.partial-{os.getpid()}"
        self._plan = {}
        header: dict = {"__metadata__": metadata}
        offset = 0
        for name, (dtype, shape) in tensors.items():
            size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
            header[name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [offset, offset + size]}
            self._plan[name] = (dtype, tuple(shape), offset)
            offset += size
        text = json.dumps(header, ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._begin = 8 + len(text)
        self._left = {name: shape[0] for name, (_, shape, _) in self._plan.items()}  # rows
        try:
            self._file = open(self._partial, "wb")
        except OSError as error:
            raise RecordError(f"{path}: cannot be written: {error.strerror}") from None
        self._put(0, struct.pack("<Q", len(text)) + text)

    def _put(self, offset: int, data: Any) -> None:
        try:
            self._file.seek(offset)
            self._file.write(data)
        except OSError as error:
            raise RecordError(f"{self._path}: cannot be written: {error.strerror}") from None

    def write(self, name: str, tensor: torch.Tensor, first: int = 0) -> None:
        """Writes rows starting at `first`. Errors: RecordError if a value does not fit the file's format, or the disk is
        full."""
        dtype, shape, offset = self._plan[name]
        rows = tensor.shape[0]
        assert tuple(tensor.shape[1:]) == shape[1:] and first + rows <= shape[0] and rows <= self._left[name], \
            f"{name}: {tuple(tensor.shape)} from row {first}, planned {shape}"
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise RecordError(f"{name}: the model computed a value that is NaN or infinite; --compute-dtype float32 "
                              "or bfloat16 may help")
        stored = tensor.detach().to(dtype)
        if stored.is_floating_point() and not bool(torch.isfinite(stored).all()):
            raise RecordError(f"{name}: a value of {float(tensor.abs().max()):g} does not fit float16; "
                              "--dtype bfloat16 or float32 holds it")
        stored = stored.cpu().contiguous()
        if dtype == torch.bfloat16:
            stored = stored.view(torch.int16)  # NumPy has no bfloat16
        if rows == 0:
            return
        of_row = math.prod(shape[1:]) * stored.element_size()
        self._put(self._begin + offset + first * of_row, memoryview(stored.numpy()).cast("B"))
        self._left[name] -= rows

    def finish(self) -> None:
        left = sorted(name for name, rows in self._left.items() if rows)
        assert not left, f"not written: {left}"
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._partial, self._path)
        except OSError as error:
            raise RecordError(f"{self._path}: cannot be written: {error.strerror}") from None

    def discard(self) -> None:
        self._file.close()
        if os.path.exists(self._partial):
            os.remove(self._partial)


# ---- Listening to attention -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class AttentionCall:
    """One layer's attention over a whole sequence of T tokens.

    query [Hq, T, d]; key, value [Hk, T, d], Hk the stored heads or Hq; output [Hq, T, d]; hidden [T, D], the input of
    the attention module; extras: other arguments of the attention function, by name.
    """

    module: Optional[torch.nn.Module]
    hidden: Optional[torch.Tensor]
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    scale: float
    extras: dict


class AttentionTap:
    """Within `with`, every attention of the model calls `on_call` with an AttentionCall, in the order of layers."""

    def __init__(self, model: torch.nn.Module, on_call: Callable[[AttentionCall], None]):
        self._model = model
        self._on_call = on_call
        self._frames: list = []  # modules being executed, outermost first: (module, hidden or None)
        self._depth = 0  # of attention functions, which may be nested
        self._undo: list = []

    def __enter__(self) -> "AttentionTap":
        for module in self._model.modules():
            self._follow(module)
        places = sorted({type(module).__module__ for module in self._model.modules()})
        # The file of a model may have a registry in addition to that of transformers.
        registries = [getattr(sys.modules.get(name), "ALL_ATTENTION_FUNCTIONS", None)
                      for name in ["transformers.modeling_utils", *places]]
        for registry in {id(one): one for one in registries if one is not None}.values():
            for name in list(registry):
                self._replace(registry, name, self._interface(registry[name]))
        if hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            self._patch(torch.nn.functional, "scaled_dot_product_attention", self._sdpa)
        for name in places:
            if callable(getattr(sys.modules.get(name), "eager_attention_forward", None)):
                self._patch(sys.modules[name], "eager_attention_forward", self._interface)
        return self

    def __exit__(self, *unused) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._frames.clear()

    def _replace(self, registry: Any, name: str, function: Callable) -> None:
        original = registry[name]
        registry[name] = function
        self._undo.append(lambda: registry.__setitem__(name, original))

    def _patch(self, owner: Any, name: str, wrap: Callable) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wrap(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def _follow(self, module: torch.nn.Module) -> None:
        """Maintains the stack of frames. Replaces forward: old hooks do not receive keyword arguments."""
        own = module.__dict__.get("forward")
        original = module.forward

        def forward(*args, **kwargs):
            self._frames.append((module, _hidden_of(args, kwargs)))
            try:
                return original(*args, **kwargs)
            finally:
                self._frames.pop()

        module.forward = forward  # type: ignore[method-assign]
        self._undo.append((lambda: module.__dict__.pop("forward", None)) if own is None else
                          (lambda: module.__dict__.__setitem__("forward", own)))

    def _interface(self, original: Callable) -> Callable:
        """Wraps f(module, query, key, value, mask, scaling=…, …) -> (output [1, T, Hq, d], weights)."""

        def attend(module, query, key, value, attention_mask=None, *args, **kwargs):
            self._depth += 1
            try:
                result = original(module, query, key, value, attention_mask, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                scale = kwargs.get("scaling")
                scale = getattr(module, "scaling", None) if scale is None else scale
                self._tell(module, query, key, value, result[0].transpose(1, 2), scale, kwargs)
            return result

        return attend

    def _sdpa(self, original: Callable) -> Callable:
        def attend(query, key, value, *args, **kwargs):
            self._depth += 1
            try:
                result = original(query, key, value, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                self._tell(None, query, key, value, result, kwargs.get("scale"), {})
            return result

        return attend

    def _tell(self, module, query, key, value, output, scale, extras) -> None:
        if query.dim() == 3:  # without the batch
            query, key, value, output = (x.unsqueeze(0) for x in (query, key, value, output))
        if query.dim() != 4 or query.shape[0] != 1:
            raise RecordError(f"expected queries of shape [1, heads, tokens, d], got {list(query.shape)}")
        if key.shape[2] != query.shape[2]:
            raise RecordError(f"expected as many keys as queries, got {key.shape[2]} keys for {query.shape[2]} queries: "
                              "cross-attention or a cache is not a full pass of a causal language model")
        hidden = None
        for frame, seen in reversed(self._frames):
            if seen is not None and seen.shape[1] == query.shape[2] and (module is None or frame is module):
                module, hidden = frame, seen[0]
                break
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
        self._on_call(AttentionCall(module, hidden, query[0], key[0], value[0], output[0], scale, extras))


def _hidden_of(args: Sequence, kwargs: dict) -> Optional[torch.Tensor]:
    """Returns the [1, T, D] input of a module, if it has one."""
    named = kwargs.get("hidden_states")
    for x in ([named] if named is not None else [*args[:1], *kwargs.values()]):
        if isinstance(x, torch.Tensor) and x.dim() == 3 and x.shape[0] == 1 and x.is_floating_point():
            return x
    return None


class _AllRecorded(Exception):
    """Ends a forward pass after the last requested layer."""


# ---- Content of the format ------------------------------------------------------------------------------------------

# Rotation of pairs (i, i + d/2) over the whole head. Others rotate adjacent elements (GPT-J, Cohere, GLM) or part of a head.
_HALF_SPLIT = frozenset("llama mistral mixtral ministral qwen2 qwen2_moe qwen3 qwen3_moe phi3 gemma gemma2 olmo olmo2 "
                        "olmoe granite granitemoe smollm3 starcoder2 yi internlm2 deepseek arcee".split())
_OUTPUT_NAMES = ("o_proj", "out_proj", "dense", "c_proj", "wo", "out", "output")


def unexpanded(call: AttentionCall, stored: Optional[int]) -> tuple:
    """Returns K and V of the stored heads, [Hkv, T, d] each.

    If they are expanded to the query heads (repeat_kv), heads that are copies of each other are merged. `stored`: their
    number in the model's configuration; None if it has none: then the largest equal groups are merged.
    """
    key, value = call.key, call.value
    heads = key.shape[0]
    if heads < call.query.shape[0]:
        return key, value
    sizes = [heads // stored] if stored and heads % stored == 0 else [n for n in range(heads, 1, -1) if heads % n == 0]
    for size in sizes:
        grouped = [x.reshape(heads // size, size, *x.shape[1:]) for x in (key, value)]
        if all(bool((x == x[:, :1]).all()) for x in grouped):
            return grouped[0][:, 0], grouped[1][:, 0]
    return key, value


def disagreement(call: AttentionCall, key: torch.Tensor, value: torch.Tensor, rows: int = 8) -> float:
    """Returns the relative difference of causal softmax attention of q, k, v from the model's own output:
    ||o' - o|| / ||o|| over `rows` rows, evenly spaced and ending with the last."""
    heads, tokens, _ = call.query.shape
    at = torch.linspace(0, tokens - 1, min(rows, tokens), device=key.device).round().long()
    group = heads // key.shape[0]
    q = call.query[:, at].float().reshape(key.shape[0], group * len(at), -1)
    logits = (q @ key.float().transpose(1, 2) * call.scale).reshape(key.shape[0], group, len(at), tokens)
    logits.masked_fill_(torch.arange(tokens, device=key.device)[None] > at[:, None], float("-inf"))
    weights = logits.softmax(-1).reshape(key.shape[0], group * len(at), tokens)
    ours = (weights @ value.float()).reshape(heads, len(at), -1)
    theirs = call.output[:, at].float()
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-30))


def output_projection(module: torch.nn.Module, width: int, name: Optional[str] = None) -> torch.Tensor:
    """Returns W_O [D, Hq * d] of an attention module; columns h d … (h + 1) d - 1 belong to query head h.

    The weight of a Linear; for any other linear module (GPT-2's Conv1D, a quantised one) its output for unit vectors.
    Errors: RecordError if there is no output projection, or its input is not `width` wide.
    """
    names = [name] if name else [n for n in _OUTPUT_NAMES if hasattr(module, n)]
    found = getattr(module, names[0], None) if names else None
    if not isinstance(found, torch.nn.Module):
        children = ", ".join(n for n, _ in module.named_children())
        raise RecordError(f"{type(module).__name__}: its output projection was not found; select one of its "
                          f"modules by --o-proj NAME ({children})")
    weight = getattr(found, "weight", None)
    if isinstance(found, torch.nn.Linear) and weight is not None and weight.is_floating_point():
        if weight.shape[1] != width:
            raise RecordError(f"{names[0]}: expected {width} inputs (query heads x d), got {weight.shape[1]}")
        return weight
    like = next((p for p in [*found.parameters(), *module.parameters()] if p.is_floating_point()), None)
    dtype = like.dtype if like is not None else torch.float32
    device = like.device if like is not None else torch.device("cpu")
    try:
        nothing = found(torch.zeros(1, width, dtype=dtype, device=device))
        rows = [found(torch.eye(width, dtype=dtype, device=device)[i:i + 512]) - nothing for i in range(0, width, 512)]
    except (RuntimeError, TypeError) as error:
        raise RecordError(f"{names[0]}: cannot be read out as a linear map of {width} inputs: {error}") from None
    return torch.cat(rows).T


def rope_metadata(config: Any, style: Optional[str], head_dim: int) -> tuple:
    """Returns (metadata, note): `rope_style` and `rope_theta` only if they fully define the rotation."""
    parameters = getattr(config, "rope_parameters", None) or {}
    scaling = getattr(config, "rope_scaling", None) or parameters
    theta = getattr(config, "rope_theta", None) or parameters.get("rope_theta")
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else "default"
    part = next((float(x) for x in (getattr(config, "partial_rotary_factor", None), parameters.get("partial_rotary_factor"),
                                    getattr(config, "rotary_pct", None)) if x is not None), 1.0)
    model_type = getattr(config, "model_type", "unknown")
    why = None
    if theta is None:
        why = "the configuration has no rope_theta"
    elif kind != "default":
        why = f"its frequencies are scaled ({kind})"
    elif part != 1.0:
        why = f"{part:g} of each head is rotated"
    elif getattr(config, "rope_local_base_freq", None) is not None:
        why = "it differs between layers"
    elif style is None and model_type not in _HALF_SPLIT:
        why = f'how "{model_type}" pairs elements is not known; set --rope-style'
    if why:
        return {"rope": f"as the model has it; not described: {why}"}, f"no rope_style and rope_theta are written: {why}"
    style = style or "half_split"
    pairs = "pairs (i,i+d/2)" if style == "half_split" else "interleaved pairs (2i,2i+1)"
    return {"rope": f"rotary on {pairs}, theta={theta:g}, positions 0..T-1; q and k are stored after rotation",
            "rope_style": style, "rope_theta": repr(float(theta))}, None


def numbers(text: str, what: str) -> list:
    """"0,4,8-11" as a list. Errors: RecordError."""
    found: list = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise RecordError(f'{what}: expected numbers and ranges such as 0,4,8-11, got "{text}"')
        found += range(int(first), int(last or first) + 1)
    if len(set(found)) != len(found):
        raise RecordError(f'{what}: a number is given twice in "{text}"')
    return found


def _chosen(wanted: Optional[Sequence[int]], count: int, what: str) -> list:
    picked = list(range(count)) if wanted is None else list(wanted)
    wrong = [i for i in picked if not 0 <= i < count]
    if wrong or not picked or len(set(picked)) != len(picked):
        raise RecordError(f"{what}: expected different numbers of 0 to {count - 1}, got {picked}")
    return picked


# ---- Recording ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Shape:
    """The tensors to record for a layer, found by a short pass before the file's layout is fixed."""

    heads: int
    kv_heads: int
    head_dim: int
    d_model: int
    scale: float
    dtype: torch.dtype
    module: Optional[torch.nn.Module]


def _forward(model: torch.nn.Module, tokens: Sequence[int], start: Optional[int] = None) -> None:
    """`start`: position of the first token; None: the model's choice, 0."""
    inner = getattr(model, "base_model", model)  # without the head: logits of a long text are large
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    positions = {} if start is None else {"position_ids": torch.arange(start, start + len(tokens), device=device)[None]}
    with torch.no_grad():
        inner(input_ids=torch.tensor([list(tokens)], device=device), use_cache=False, **positions)


def _probe(model: torch.nn.Module, tokens: Sequence[int], stored: Optional[int]) -> list:
    shapes: list = []

    def on_call(call: AttentionCall) -> None:
        key, value = unexpanded(call, stored)
        layer = len(shapes)
        if value.shape[-1] != key.shape[-1]:
            raise RecordError(f"layer {layer}: keys of {key.shape[-1]} and values of {value.shape[-1]} elements; the "
                              "format has one head_dim (latent attention cannot be recorded)")
        if call.query.shape[0] % key.shape[0] != 0:
            raise RecordError(f"layer {layer}: {call.query.shape[0]} query heads on {key.shape[0]} KV heads")
        width = 0 if call.hidden is None else call.hidden.shape[-1]
        shapes.append(_Shape(call.query.shape[0], key.shape[0], key.shape[-1], width, call.scale, key.dtype, call.module))

    with AttentionTap(model, on_call):
        _forward(model, tokens)
    if not shapes:
        raise RecordError(
            f"{type(model).__name__}: no attention was seen. Expected attention through transformers' attention functions "
            "(4.48 and later), torch.nn.functional.scaled_dot_product_attention, or eager_attention_forward; a newer "
            'transformers, or attn_implementation="sdpa", may have it')
    return shapes


def record(model: torch.nn.Module, tokens: Sequence[int], path: str, *, prompt_len: int,
           layers: Optional[Sequence[int]] = None, kv_heads: Optional[Sequence[int]] = None,
           dtype: Optional[torch.dtype] = None, hidden: bool = True, wo: bool = False, o_proj: Optional[str] = None,
           repeat: Optional[tuple] = None, chunks: Optional[Sequence[int]] = None, rope_style: Optional[str] = None,
           metadata: Optional[dict] = None, progress: Optional[Callable[[str], None]] = None) -> dict:
    """Runs `tokens` through `model` once and writes the trace; returns its metadata.

    model       called as model(input_ids=[1, T], use_cache=False); its `base_model` instead, if it has one
    prompt_len  number of leading tokens that form the prompt; the others are decode steps
    layers      in the order of the forward pass, renumbered from 0 in the file; None: all
    kv_heads    stored heads to keep, each with all its query heads; None: all
    dtype       of the file, torch.float16, bfloat16 or float32; None: the model's
    wo          also records the output projections, for KVzip+ and CriticalKV
    repeat      (start, length) of a repeat of tokens 1 … prompt_len - 1, for KVzip
    chunks      first tokens of the prompt's chunks, ascending from 0, each of which also goes through the model
                separately, for CacheBlend; the model must then accept position_ids
    Errors: RecordError; nothing is then written.
    """
    say = progress or (lambda text: None)
    if not 1 <= prompt_len <= len(tokens) or len(tokens) < 2:
        raise RecordError(f"expected a prompt of 1 to {len(tokens)} of at least 2 tokens, got {prompt_len}")
    if chunks is not None and (list(chunks) != sorted(set(chunks)) or list(chunks)[:1] != [0] or chunks[-1] >= prompt_len):
        raise RecordError(f"chunks: expected ascending first tokens from 0 to {prompt_len - 1}, got {list(chunks)}")
    config = getattr(model, "config", None)
    context = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if context and len(tokens) > context:
        raise RecordError(f"{len(tokens)} tokens: more than the {context} positions that the model was trained for")
    stored = getattr(config, "num_key_value_heads", None)
    was_training = model.training
    model.eval()
    shapes = _probe(model, tokens[:8], stored)

    picked = _chosen(layers, len(shapes), "layers")
    first = shapes[picked[0]]
    for layer in picked:
        one = shapes[layer]
        if (one.heads, one.kv_heads, one.head_dim, one.scale) != (first.heads, first.kv_heads, first.head_dim, first.scale):
            raise RecordError(
                f"layer {layer} has {one.heads} query and {one.kv_heads} KV heads of {one.head_dim}, scaled by {one.scale:g}; "
                f"layer {picked[0]} has {first.heads}, {first.kv_heads}, {first.head_dim}, {first.scale:g}: a trace holds "
                "equal layers (--layers chooses)")
        if hidden and one.d_model != first.d_model or (hidden and one.d_model == 0):
            raise RecordError(f"layer {layer}: no hidden states of one width were seen; --no-hidden leaves them out")
    heads = _chosen(kv_heads, first.kv_heads, "kv heads")
    group = first.heads // first.kv_heads
    query_heads = [h * group + g for h in heads for g in range(group)]
    dtype = dtype or (first.dtype if first.dtype in _TYPES else torch.float32)
    n, d = len(tokens), first.head_dim

    plan: dict = {"tokens": (torch.int32, (n,))}
    for i in range(len(picked)):
        plan[f"layers.{i}.q"] = (dtype, (n, len(query_heads), d))
        plan[f"layers.{i}.k"] = plan[f"layers.{i}.v"] = (dtype, (n, len(heads), d))
        if chunks is not None:
            plan[f"layers.{i}.reused.k"] = plan[f"layers.{i}.reused.v"] = (dtype, (n, len(heads), d))
        if hidden:
            plan[f"layers.{i}.hidden"] = (dtype, (n, first.d_model))
    projections = {}
    if wo:
        for i, layer in enumerate(picked):
            owner = shapes[layer].module
            if owner is None:
                raise RecordError(f"layer {layer}: the module of its attention is not known; leave --wo out")
            with torch.no_grad():
                matrix = output_projection(owner, first.heads * d, o_proj)
            projections[i] = owner
            plan[f"layers.{i}.wo"] = (dtype, (matrix.shape[0], len(query_heads) * d))
    rope, note = rope_metadata(config, rope_style, d)
    if note:
        say(f"note: {note}; methods that undo the rotation of keys cannot run on this trace")
    about = {"format": "kv-attention-trace", "version": "1", "model": type(model).__name__,
             "num_layers": str(len(picked)), "num_q_heads": str(len(query_heads)), "num_kv_heads": str(len(heads)),
             "head_dim": str(d), "prompt_len": str(prompt_len), "num_tokens": str(n),
             "trained_context": str(context or "not stated"), **rope, "softmax_scale": repr(first.scale),
             "mask": "causal", "gqa": "query head h uses kv head h // (num_q_heads // num_kv_heads)",
             "dtype": str(dtype).replace("torch.", ""), "recorded_layers": ",".join(map(str, picked)),
             "recorded_kv_heads": ",".join(map(str, heads)),
             "source": f"recorded by traces/record_hf.py with torch {torch.__version__}: {type(model).__name__}"}
    parameters = sum(p.numel() for p in model.parameters())
    if parameters:
        about["parameters"] = str(parameters)
    if chunks is not None:
        about["chunks"] = json.dumps(list(chunks))
    if repeat:
        about.update(repeat_start=str(repeat[0]), repeat_len=str(repeat[1]), repeat_of="tokens 1..context-1")
    about.update(metadata or {})

    file = TensorFile(path, plan, about)
    tolerance = {torch.float32: 1e-4, torch.float16: 1e-2}.get(first.dtype, 3e-2)
    seen = 0

    def on_call(call: AttentionCall) -> None:
        nonlocal seen
        layer, seen = seen, seen + 1
        if layer not in picked:
            return
        for name in ("softcap", "s_aux"):
            if call.extras.get(name) is not None:
                raise RecordError(f"layer {layer}: its attention has {name}, which the trace format does not hold")
        window = call.extras.get("sliding_window")
        if window is not None and window < n:
            raise RecordError(f"layer {layer}: a sliding window of {window} tokens, and {n} to record; --tokens {window}, or "
                              "--layers without it")
        key, value = unexpanded(call, stored)
        apart = disagreement(call, key, value)
        if not apart <= tolerance:
            raise RecordError(
                f"layer {layer}: causal softmax attention of the recorded q, k, v is {apart:.2g} (relative) from the model's "
                f"own, more than {tolerance:g}: its attention has something that the trace format does not hold (a soft cap, "
                "a window, a bias, a sink); --layers may leave such layers out")
        i = picked.index(layer)
        file.write(f"layers.{i}.q", call.query[query_heads].transpose(0, 1))
        file.write(f"layers.{i}.k", key[heads].transpose(0, 1))
        file.write(f"layers.{i}.v", value[heads].transpose(0, 1))
        if chunks is not None:  # tokens after the prompt have no chunk
            file.write(f"layers.{i}.reused.k", key[heads].transpose(0, 1)[prompt_len:], prompt_len)
            file.write(f"layers.{i}.reused.v", value[heads].transpose(0, 1)[prompt_len:], prompt_len)
        if hidden:
            file.write(f"layers.{i}.hidden", call.hidden)
        if i in projections:
            matrix = output_projection(projections[i], first.heads * d, o_proj)
            columns = torch.tensor([h * d + j for h in query_heads for j in range(d)], device=matrix.device)
            file.write(f"layers.{i}.wo", matrix.index_select(1, columns))
        say(f"layer {layer} ({i + 1} of {len(picked)}); attention reproduced within {apart:.1e}")
        if layer == max(picked):
            raise _AllRecorded

    def listen(on_call: Callable[[AttentionCall], None], part: Sequence[int], start: Optional[int] = None) -> None:
        with AttentionTap(model, on_call):
            try:
                _forward(model, part, start)
            except _AllRecorded:
                pass

    def record_chunk(start: int, end: int) -> None:
        passed = 0

        def on_chunk(call: AttentionCall) -> None:
            nonlocal passed
            layer, passed = passed, passed + 1
            if layer not in picked:
                return
            i = picked.index(layer)
            key, value = unexpanded(call, stored)
            file.write(f"layers.{i}.reused.k", key[heads].transpose(0, 1), start)
            file.write(f"layers.{i}.reused.v", value[heads].transpose(0, 1), start)
            if layer == max(picked):
                raise _AllRecorded

        listen(on_chunk, tokens[start:end], start)
        say(f"chunk of tokens {start} to {end - 1}")

    try:
        file.write("tokens", torch.tensor(list(tokens), dtype=torch.int32))
        listen(on_call, tokens)
        for start, end in zip(chunks or [], [*(chunks or [])[1:], prompt_len]):
            record_chunk(start, end)
        file.finish()
    except BaseException:
        file.discard()
        raise
    finally:
        model.train(was_training)
    return about


def continued(model: torch.nn.Module, tokens: Sequence[int], count: int, temperature: float = 0.0,
              seed: int = 0) -> list:
    """Returns `tokens` and `count` more generated by the model: greedily, or sampled at a temperature above 0."""
    out = list(tokens)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    feed, past = out, None
    with torch.no_grad():
        for _ in range(count):
            ids = torch.tensor([feed], device=device)
            result = model(input_ids=ids, use_cache=True, **({} if past is None else {"past_key_values": past}))
            logits = result.logits[0, -1].float().cpu()
            if temperature > 0:
                out.append(int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)))
            else:
                out.append(int(logits.argmax()))
            past = getattr(result, "past_key_values", None)
            feed = out if past is None else out[-1:]
    return out


# ---- The program ----------------------------------------------------------------------------------------------------


def _load(arguments: argparse.Namespace) -> tuple:
    """Returns (model, tokenizer or None, transformers' version)."""
    try:
        import transformers
    except ImportError:
        raise RecordError("transformers is missing (pip install transformers); other modules can be recorded by "
                          "record() of this file") from None
    name = os.path.expanduser(arguments.model)
    local = os.path.isdir(name)
    if not local and (os.path.isabs(name) or name.startswith(".") or name.count("/") > 1):
        raise RecordError(f"{arguments.model}: no such folder")
    common = {"local_files_only": local, "trust_remote_code": arguments.trust_remote_code}
    dtype = "auto" if arguments.compute_dtype is None else _NAMES[arguments.compute_dtype]
    try:
        load = transformers.AutoModelForCausalLM.from_pretrained
        try:
            model = load(name, torch_dtype=dtype, attn_implementation="sdpa", **common)
        except (ValueError, TypeError):  # the architecture or this transformers has no sdpa
            model = load(name, torch_dtype=dtype, **common)
        tokenizer = None
        if arguments.token_ids is None:
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, **common)
    except (OSError, ValueError, ImportError) as error:
        raise RecordError(f"{arguments.model}: cannot be loaded: {str(error).strip()}") from None
    return model.to(arguments.device), tokenizer, transformers.__version__


_SEPARATORS = frozenset(".,?!;:\t\n")


def separator_ids(tokens: Sequence[int], decode: Callable[[list], str]) -> list:
    """Returns the `tokens` whose text is a punctuation mark, tab or newline, with or without spaces, or up to four spaces."""
    found = []
    for token in sorted(set(tokens)):
        text = decode([token])
        rest = text.strip(" ")
        if rest in _SEPARATORS or (not rest and 0 < len(text) <= 4):
            found.append(token)
    return found


def _read_tokens(arguments: argparse.Namespace, tokenizer: Any) -> tuple:
    """Returns (tokens, text or None, name of the file)."""
    path = arguments.token_ids or arguments.text
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
    if arguments.token_ids is None:
        return list(tokenizer(text)["input_ids"]), text, os.path.basename(path)
    try:
        tokens = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{path}: expected a JSON list of token ids: {error}") from None
    if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
        raise RecordError(f"{path}: expected a JSON list of token ids")
    return tokens, None, os.path.basename(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="record_hf.py", description="Record q, k, v and more of a Hugging Face causal language model for kvsim replay.")
    parser.add_argument("model", help="folder of a model, or a name on the hub")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="trace to write (safetensors)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="FILE", help="text of the sequence (UTF-8)")
    source.add_argument("--token-ids", metavar="FILE", help="token ids of the sequence, a JSON list")
    parser.add_argument("--tokens", type=int, metavar="N", help="length in tokens, prompt and decode steps (all of the text)")
    parser.add_argument("--decode", type=int, default=0, metavar="N", help="number of them that are decode steps (0)")
    parser.add_argument("--generate", action="store_true", help="let the model generate the decode steps instead of the text")
    parser.add_argument("--temperature", type=float, default=0.0, help="temperature of --generate; 0: the likeliest token (0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of --generate (0)")
    parser.add_argument("--repeat", action="store_true", help="append a repeat of the prompt, for KVzip and KVzap")
    parser.add_argument("--chunks", metavar="LIST", help="first tokens of the prompt's chunks, such as 0,512,1024; their rows "
                        "are also recorded separately, for CacheBlend")
    parser.add_argument("--separator", default="\n\n", help="text between prompt and repeat (two line ends)")
    parser.add_argument("--question-start", type=int, metavar="TOKEN", help="mark the first token of a question")
    parser.add_argument("--answer-start", type=int, metavar="TOKEN", help="mark the first token of its answer")
    parser.add_argument("--layers", metavar="LIST", help="layers to record, such as 0,4,8-11 (all)")
    parser.add_argument("--kv-heads", metavar="LIST", help="KV heads to record, each with its query heads (all)")
    parser.add_argument("--no-hidden", action="store_true", help="leave the inputs of attention out (KVzap needs them)")
    parser.add_argument("--wo", action="store_true", help="record output projections (KVzip+, CriticalKV)")
    parser.add_argument("--o-proj", metavar="NAME", help="name of the output projection in the attention module")
    parser.add_argument("--dtype", choices=sorted(_NAMES), help="dtype of the file (default: as the model computes)")
    parser.add_argument("--compute-dtype", choices=sorted(_NAMES), help="dtype of the model (default: as it is stored)")
    parser.add_argument("--rope-style", choices=["half_split", "interleaved"], help="if the model type does not imply it")
    parser.add_argument("--device", default="cpu", help="torch device (cpu)")
    parser.add_argument("--no-text", action="store_true", help="leave the text's beginning out of the metadata")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    parser.add_argument("--quiet", action="store_true", help="print only errors")
    return parser


def _sequence(arguments: argparse.Namespace, model: Any, tokenizer: Any, text_tokens: list) -> tuple:
    """Returns (tokens, prompt length, repeat or None, source of the decode tokens)."""
    total = len(text_tokens) if arguments.tokens is None else arguments.tokens
    decode = arguments.decode
    if decode < 0 or total < 2 or decode >= total:
        raise RecordError(f"expected at least 2 tokens, fewer of them decode steps, got --tokens {total}, --decode {decode}")
    taken = total - decode if arguments.generate else total
    if taken > len(text_tokens):
        raise RecordError(f"--tokens {total}: the text has {len(text_tokens)} tokens only")
    tokens = text_tokens[:taken]
    if arguments.repeat:
        if decode:
            raise RecordError("--repeat and --decode are mutually exclusive: the repeat is decoded")
        if tokenizer is not None:
            separator = list(tokenizer(arguments.separator, add_special_tokens=False)["input_ids"])
        else:
            separator = tokens[:1]  # without a tokenizer: the first token, which begins a sequence
        return tokens + separator + tokens[1:], total, (total + len(separator), total - 1), "none: teacher-forced repeat"
    if not arguments.generate:
        return tokens, total - decode, None, "none: teacher-forced"
    how = f"temperature {arguments.temperature:g}, seed {arguments.seed}" if arguments.temperature > 0 else "greedy"
    return continued(model, tokens, decode, arguments.temperature, arguments.seed), total - decode, None, how


def main(words: Optional[Sequence[str]] = None) -> int:
    arguments = _parser().parse_args(words)
    say = (lambda text: None) if arguments.quiet else (lambda text: print(f"record_hf: {text}", file=sys.stderr))
    try:
        layers = None if arguments.layers is None else numbers(arguments.layers, "--layers")
        kv_heads = None if arguments.kv_heads is None else numbers(arguments.kv_heads, "--kv-heads")
        chunks = None if arguments.chunks is None else numbers(arguments.chunks, "--chunks")
        model, tokenizer, version = _load(arguments)
        text_tokens, text, source = _read_tokens(arguments, tokenizer)
        tokens, prompt_len, repeat, sampling = _sequence(arguments, model, tokenizer, text_tokens)
        ids = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
        name = os.path.basename(os.path.normpath(arguments.model)) if os.path.isdir(arguments.model) else arguments.model
        metadata = {"model": name, "sampling": sampling, "token_ids_sha256": ids,
                    "source": f"recorded by traces/record_hf.py (torch {torch.__version__}, transformers {version}) from "
                              f"{name} ({type(model).__name__}), text {source}"}
        for mark in ("question_start", "answer_start"):
            at = getattr(arguments, mark)
            if at is not None:
                if not 0 < at < len(tokens):
                    raise RecordError(f"--{mark.replace('_', '-')}: expected a token in [1, {len(tokens) - 1}], got {at}")
                metadata[mark] = str(at)
        if hasattr(tokenizer, "decode"):
            metadata["separator_ids"] = json.dumps(separator_ids(tokens, tokenizer.decode))
        if text is not None and not arguments.no_text:
            metadata["text"] = text[:1000]
        about = record(model, tokens, arguments.out, prompt_len=prompt_len, layers=layers, kv_heads=kv_heads,
                       dtype=_NAMES.get(arguments.dtype), hidden=not arguments.no_hidden, wo=arguments.wo,
                       o_proj=arguments.o_proj, repeat=repeat, chunks=chunks, rope_style=arguments.rope_style, metadata=metadata,
                       progress=say)
    except RecordError as error:
        print(f"record_hf: {error}", file=sys.stderr)
        return 2
    say(f"wrote {arguments.out}: {about['num_layers']} layers, {about['num_q_heads']} query and {about['num_kv_heads']} KV "
        f"heads of {about['head_dim']}, {about['num_tokens']} tokens, {about['prompt_len']} of them prompt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
