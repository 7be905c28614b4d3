"""flow.models.gpt in PyTorch, with the same parameter names: the reference for training."""
import json
import math
import struct

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width)})
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, t, width = x.shape
        q, k, v = (part.view(batch, t, self.heads, -1).transpose(1, 2)
                   for part in self.attention["qkv"](x).split(width, dim=2))
        if hasattr(functional, "scaled_dot_product_attention"):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            later = torch.ones(t, t, dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).masked_fill(later, -torch.inf)
            y = scores.softmax(-1) @ v
        return self.attention["out"](y.transpose(1, 2).reshape(batch, t, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, width, heads, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, index, targets):
        x = self.tokens(index) + self.positions(torch.arange(index.shape[1], device=index.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def flow_name(name):
    """blocks.0.up.weight is blocks.1.up.weight in Lua."""
    return ".".join(str(int(part) + 1) if part.isdigit() else part for part in name.split("."))


def write_safetensors(path, tensors):
    """Written without the library, so that no package is needed; a separate test uses the real
    library."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            out.write(tensor.detach().contiguous().float().numpy().tobytes())
