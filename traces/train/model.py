"""A decoder of the Llama architecture in plain PyTorch, with the tensor names of Hugging Face, and its files."""
import json
import math
import pathlib
import struct

import torch
from torch import nn


class Config:
    def __init__(self, **keys):
        self.model_type = "llama"
        self.architectures = ["LlamaForCausalLM"]
        self.vocab_size, self.hidden_size, self.intermediate_size = 256, 128, 192
        self.num_hidden_layers, self.num_attention_heads, self.num_key_value_heads, self.head_dim = 8, 4, 2, 32
        self.max_position_embeddings, self.rope_theta, self.rms_norm_eps = 2048, 1e6, 1e-5
        self.hidden_act, self.tie_word_embeddings, self.torch_dtype = "silu", True, "bfloat16"
        self.attention_bias = self.mlp_bias = False
        self.__dict__.update(keys)


class Norm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)

    def forward(self, x, cos, sin, mask):
        batch, tokens, _ = x.shape
        c = self.c

        def heads(y, n):
            return y.view(batch, tokens, n, c.head_dim).transpose(1, 2)

        def rotated(y):
            half = c.head_dim // 2
            return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin

        group = c.num_attention_heads // c.num_key_value_heads
        q = rotated(heads(self.q_proj(x), c.num_attention_heads))
        k = rotated(heads(self.k_proj(x), c.num_key_value_heads)).repeat_interleave(group, 1)
        v = heads(self.v_proj(x), c.num_key_value_heads).repeat_interleave(group, 1)
        scores = q @ k.transpose(2, 3) / math.sqrt(c.head_dim) + mask
        out = scores.softmax(-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(c.hidden_size, c.rms_norm_eps), Attention(c)
        self.post_attention_layernorm, self.mlp = Norm(c.hidden_size, c.rms_norm_eps), Mlp(c)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.model.norm = Norm(config.hidden_size, config.rms_norm_eps)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = 0.02 / math.sqrt(2 * config.num_hidden_layers) if "o_proj" in name or "down" in name else 0.02
                nn.init.normal_(weight, std=scale)

    @torch.no_grad()
    def seed_retrieval(self):
        """Initialises the two kinds of heads that retrieval requires, for the default shape. A small model otherwise finds them
        only after millions of tokens. Heads of layer 0 attend to 1, 2 and 3 tokens before (a constant dimension and the fast
        rotations). Heads of layers 1, 3 and 5 compare a token with the tokens found by these (slow rotations). Training
        changes them freely."""
        c, pairs = self.config, self.config.head_dim // 2
        half = c.hidden_size // 2
        embed = self.model.embed_tokens.weight
        nn.init.normal_(embed, std=0.25)
        embed[:, half:] *= 0.1
        self.model.norm.weight.fill_(0.5)
        embed[:, 0] = 0.75
        fast = [3.0, 2.5, 2.0, 1.5, 1.0]
        theta = c.rope_theta ** (-torch.arange(pairs).float() / pairs)
        first = self.model.layers[0].self_attn
        for kv in range(2):
            rows = slice(kv * c.head_dim, (kv + 1) * c.head_dim)
            first.k_proj.weight[rows] = 0
            for i, size in enumerate(fast):
                first.k_proj.weight[kv * c.head_dim + i, 0] = size
        for head, offset in enumerate((1, 2, 3)):
            rows = slice(head * c.head_dim, (head + 1) * c.head_dim)
            first.q_proj.weight[rows] = 0
            for i, size in enumerate(fast):
                # The score is a sum of cos(theta (distance - offset)).
                first.q_proj.weight[head * c.head_dim + i, 0] = size * math.cos(offset * theta[i])
                first.q_proj.weight[head * c.head_dim + i + pairs, 0] = -size * math.sin(offset * theta[i])
        # A random projection of a token's half copies it; the found tokens get places in the other half.
        slow = [i for i in range(pairs) if theta[i] < 2.5e-3]
        dims = slow + [i + pairs for i in slow]
        n = len(dims)
        projection = torch.randn(n, half) / math.sqrt(half)
        for kv in range(2):
            first.v_proj.weight[kv * c.head_dim:kv * c.head_dim + n] = 0
            first.v_proj.weight[kv * c.head_dim:kv * c.head_dim + n, 1:half] = projection[:, 1:]
        for head, place in enumerate((0, 1, 2)):
            for j in range(n):
                first.o_proj.weight[half + place * n + j, head * c.head_dim + j] = 0.4
        # (place read by the query, place of its keys), by layer and KV head; place -1: the token.
        copies = torch.randn(c.head_dim, half) / math.sqrt(half)
        for layer, kinds in {1: ((-1, 0), (0, 1)), 3: ((0, 1), (1, 2)), 5: ((0, 1), (1, 2))}.items():
            attention = self.model.layers[layer].self_attn
            for kv, (query, key) in enumerate(kinds):
                for j, dim in enumerate(dims):
                    attention.k_proj.weight[kv * c.head_dim + dim, half + key * n + j] = 1.5
                    for head in (2 * kv, 2 * kv + 1):
                        row = attention.q_proj.weight[head * c.head_dim + dim]
                        if query < 0:
                            row[1:half] = 1.5 * projection[j, 1:]
                        else:
                            row[half + query * n + j] = 1.5
                attention.v_proj.weight[kv * c.head_dim:(kv + 1) * c.head_dim, 1:half] = copies[:, 1:]
                for head in (2 * kv, 2 * kv + 1):
                    attention.o_proj.weight[1:half, head * c.head_dim:(head + 1) * c.head_dim] = copies.t()[1:]

    def forward(self, tokens):
        c, n = self.config, tokens.shape[1]
        angles = torch.outer(torch.arange(n).float(),
                             c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim))
        angles = torch.cat((angles, angles), -1)
        mask = torch.full((n, n), -math.inf).triu(1)
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, angles.cos(), angles.sin(), mask)
        return self.model.norm(x) @ self.model.embed_tokens.weight.t()

    def parameters_count(self):
        return sum(p.numel() for p in self.parameters())


def save(model, folder, dtype=torch.bfloat16):
    """Writes config.json and model.safetensors."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = {torch.bfloat16: "BF16", torch.float32: "F32"}
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in model.state_dict().items():
        data = tensor.detach().to(dtype).contiguous()
        raw = bytes(data.view(torch.int16 if dtype == torch.bfloat16 else torch.int32).flatten().numpy().tobytes())
        header[name] = {"dtype": names[dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        blobs.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = folder / "model.safetensors.partial"
    temporary.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    temporary.rename(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(vars(model.config), indent=2) + "\n")


def load(folder):
    """Returns a model written by `save`."""
    folder = pathlib.Path(folder)
    model = Llama(Config(**json.loads((folder / "config.json").read_text())))
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, state = json.loads(raw[8:8 + size]), {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        kind = {"BF16": torch.bfloat16, "F32": torch.float32}[entry["dtype"]]
        state[name] = torch.frombuffer(bytearray(raw[begin:end]), dtype=kind).view(entry["shape"]).float()
    model.load_state_dict(state)
    return model
