"""A small Llama-like model with the interface that traces/record_hf.py expects.

RMSNorm, grouped queries, rotary embedding on pairs (i, i + d/2), a gated MLP; random weights. `attention` selects the
implementation: "eager" (this module's eager_attention_forward), "sdpa" (torch's function, K and V expanded to the query
heads), or the name of a function in transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.
"""

import sys
import types

import torch


def expanded(x, groups):
    """Repeats [1, Hkv, T, d] to [1, Hkv * groups, T, d], with adjacent copies."""
    return x.repeat_interleave(groups, dim=1)


def eager_attention_forward(module, query, key, value, attention_mask=None, scaling=None, softcap=None, **kwargs):
    key, value = expanded(key, module.num_key_value_groups), expanded(value, module.num_key_value_groups)
    logits = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    tokens = query.shape[2]
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    if module.config.hidden_window is not None:  # a window that is not declared by a configuration key
        future = future | torch.ones(tokens, tokens, dtype=torch.bool).tril(-module.config.hidden_window)
    weights = logits.masked_fill(future, float("-inf")).float().softmax(-1).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


def causal_sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Replaces torch.nn.functional.scaled_dot_product_attention in versions of torch without it."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = query @ key.transpose(2, 3) * scale
    assert is_causal
    future = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
    return logits.masked_fill(future, float("-inf")).softmax(-1) @ value


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TinyAttention(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim ** -0.5
        d, width = config.head_dim, config.hidden_size
        self.q_proj = torch.nn.Linear(width, config.num_attention_heads * d, bias=False)
        self.k_proj = torch.nn.Linear(width, config.num_key_value_heads * d, bias=False)
        self.v_proj = torch.nn.Linear(width, config.num_key_value_heads * d, bias=False)
        self.o_proj = torch.nn.Linear(config.num_attention_heads * d, width, bias=True)

    def rotated(self, x, start):
        d, tokens = x.shape[-1], x.shape[2]
        frequencies = self.config.rope_theta ** (-torch.arange(0, d, 2) / d)
        angles = torch.arange(start, start + tokens)[:, None] * frequencies[None]
        cos, sin = angles.cos().repeat(1, 2).to(x.dtype), angles.sin().repeat(1, 2).to(x.dtype)
        half = torch.cat([-x[..., d // 2:], x[..., :d // 2]], -1)
        return x * cos + half * sin

    def forward(self, hidden_states, start=0):
        _, tokens, _ = hidden_states.shape
        heads = (1, tokens, -1, self.config.head_dim)
        q = self.rotated(self.q_proj(hidden_states).view(heads).transpose(1, 2), start)
        k = self.rotated(self.k_proj(hidden_states).view(heads).transpose(1, 2), start)
        v = self.v_proj(hidden_states).view(heads).transpose(1, 2)
        if self.config.attention == "eager":
            out, _ = eager_attention_forward(self, q, k, v, None, scaling=self.scaling, softcap=self.config.softcap)
        elif self.config.attention == "sdpa":
            k, v = expanded(k, self.num_key_value_groups), expanded(v, self.num_key_value_groups)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        else:
            registry = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS
            out, _ = registry[self.config.attention](self, q, k, v, None, dropout=0.0, scaling=self.scaling)
        return self.o_proj(out.reshape(1, tokens, -1))


class TinyLayer(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size)
        self.self_attn = TinyAttention(config)
        self.post_attention_layernorm = Norm(config.hidden_size)
        self.up = torch.nn.Linear(config.hidden_size, 2 * config.hidden_size)
        self.down = torch.nn.Linear(2 * config.hidden_size, config.hidden_size)

    def forward(self, x, start):
        x = x + self.self_attn(hidden_states=self.input_layernorm(x), start=start)
        return x + self.down(torch.nn.functional.silu(self.up(self.post_attention_layernorm(x))))


class TinyLlama(torch.nn.Module):
    def __init__(self, attention="eager", layers=3, heads=6, kv_heads=2, head_dim=8, seed=1, **more):
        super().__init__()
        torch.manual_seed(seed)
        values = dict(model_type="llama", num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                      hidden_size=heads * head_dim, rope_theta=10000.0, max_position_embeddings=256, attention=attention,
                      softcap=None, hidden_window=None, vocab=64)
        values.update(more)
        self.config = types.SimpleNamespace(**values)
        self.embedding = torch.nn.Embedding(self.config.vocab, self.config.hidden_size)
        self.layers = torch.nn.ModuleList(TinyLayer(self.config) for _ in range(layers))
        self.norm = Norm(self.config.hidden_size)

    def forward(self, input_ids, use_cache=False, position_ids=None):
        x = self.embedding(input_ids)
        start = 0 if position_ids is None else int(position_ids[0, 0])
        for layer in self.layers:
            x = layer(x, start)
        return types.SimpleNamespace(logits=self.norm(x) @ self.embedding.weight.T)
