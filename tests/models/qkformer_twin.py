"""A second, plain QKFormer with the authors' module names and layouts, on SpikingJelly's own nodes."""

import torch
from spikingjelly.activation_based import neuron, surrogate
from torch import Tensor, nn


def lif(threshold: float = 1.0) -> nn.Module:
    return neuron.LIFNode(
        tau=2.0, v_threshold=threshold, detach_reset=True, step_mode="m", surrogate_function=surrogate.Sigmoid(4.0)
    )


class Units(nn.Module):
    """Convolution, normalisation and node under names that begin alike."""

    def unit(self, part: str, conv: nn.Module) -> None:
        norm = nn.BatchNorm1d if isinstance(conv, nn.Conv1d) else nn.BatchNorm2d
        self.add_module(f"{part}_conv", conv)
        self.add_module(f"{part}_bn", norm(conv.out_channels))
        self.add_module(f"{part}_lif", lif())

    def currents(self, part: str, x: Tensor) -> Tensor:
        y = getattr(self, f"{part}_bn")(getattr(self, f"{part}_conv")(x.flatten(0, 1)))
        return y.unflatten(0, x.shape[:2])

    def spikes(self, part: str, x: Tensor) -> Tensor:
        return getattr(self, f"{part}_lif")(self.currents(part, x))


def plane(a: int, b: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(a, b, size, stride, size // 2, bias=False)


class TokenQKAttention(Units):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.dim, self.num_heads = dim, heads
        for part in ("q", "k"):
            self.unit(part, nn.Conv1d(dim, dim, 1, bias=False))
        self.attn_lif = lif(0.5)
        self.unit("proj", nn.Conv1d(dim, dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(3)
        q, k = (self.spikes(part, tokens).unflatten(2, (self.num_heads, -1)) for part in ("q", "k"))
        chosen = self.attn_lif(q.sum(3, keepdim=True)) * k
        return self.spikes("proj", chosen.flatten(2, 3)).reshape(x.shape)


class SpikingSelfAttention(Units):
    """`apart`: the projection's node keeps time steps and images apart, as all others do; in the authors' code not."""

    def __init__(self, dim: int, heads: int, apart: bool) -> None:
        super().__init__()
        self.dim, self.num_heads, self.scale, self.apart = dim, heads, 0.125, apart
        for part in ("q", "k", "v"):
            self.unit(part, nn.Conv1d(dim, dim, 1, bias=False))
        self.attn_lif = lif(0.5)
        self.unit("proj", nn.Conv1d(dim, dim, 1))
        self.qkv_mp = nn.MaxPool1d(4)  # never called

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(3)
        q, k, v = (
            self.spikes(part, tokens).unflatten(2, (self.num_heads, -1)).transpose(-1, -2) for part in ("q", "k", "v")
        )
        mixed = (q @ (k.transpose(-2, -1) @ v)) * self.scale
        fired = self.attn_lif(mixed.transpose(3, 4).reshape(tokens.shape))
        if self.apart:
            return self.spikes("proj", fired).reshape(x.shape)
        return self.proj_lif(self.currents("proj", fired).flatten(0, 1)).reshape(x.shape)


class MLP(Units):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.unit("mlp1", nn.Conv2d(dim, 4 * dim, 1))
        self.unit("mlp2", nn.Conv2d(4 * dim, dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.spikes("mlp2", self.spikes("mlp1", x))


class TokenBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.tssa, self.mlp = TokenQKAttention(dim, heads), MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tssa(x)
        return x + self.mlp(x)


class SelfBlock(nn.Module):
    def __init__(self, dim: int, heads: int, apart: bool) -> None:
        super().__init__()
        self.ssa, self.mlp = SpikingSelfAttention(dim, heads, apart), MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ssa(x)
        return x + self.mlp(x)


class PatchEmbedInit(Units):
    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.unit("proj", plane(channels, dim // 2))
        self.unit("proj1", plane(dim // 2, dim))
        self.unit("proj_res", plane(dim // 2, dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.spikes("proj", x)
        return self.spikes("proj1", x) + self.spikes("proj_res", x)


class PatchEmbeddingStage(Units):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.unit("proj3", plane(dim // 2, dim))
        self.unit("proj4", plane(dim, dim))
        self.proj4_maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.unit("proj_res", plane(dim // 2, dim, 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.currents("proj4", self.spikes("proj3", x))
        y = self.proj4_lif(self.proj4_maxpool(y.flatten(0, 1)).unflatten(0, x.shape[:2]))
        return y + self.spikes("proj_res", x)


class QKFormerTwin(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int, time_steps: int, classes: int, apart: bool = True) -> None:
        super().__init__()
        self.T = time_steps
        self.patch_embed1 = PatchEmbedInit(3, dim // 4)
        self.stage1 = nn.ModuleList([TokenBlock(dim // 4, heads)])
        self.patch_embed2 = PatchEmbeddingStage(dim // 2)
        self.stage2 = nn.ModuleList([TokenBlock(dim // 2, heads)])
        self.patch_embed3 = PatchEmbeddingStage(dim)
        self.stage3 = nn.ModuleList(SelfBlock(dim, heads, apart) for _ in range(depth - 2))
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([x] * self.T)
        for i in (1, 2, 3):
            x = getattr(self, f"patch_embed{i}")(x)
            for block in getattr(self, f"stage{i}"):
                x = block(x)
        return self.head(x.flatten(3).mean(3).mean(0))


_NAMES = {
    "embeddings.0.first": "patch_embed1.proj",
    "embeddings.0.second": "patch_embed1.proj1",
    "embeddings.0.shortcut": "patch_embed1.proj_res",
    "embeddings.1.first": "patch_embed2.proj3",
    "embeddings.1.second": "patch_embed2.proj4",
    "embeddings.1.shortcut": "patch_embed2.proj_res",
    "embeddings.2.first": "patch_embed3.proj3",
    "embeddings.2.second": "patch_embed3.proj4",
    "embeddings.2.shortcut": "patch_embed3.proj_res",
}
_PARTS = {"query": "q", "key": "k", "value": "v", "projection": "proj", "first": "mlp1", "second": "mlp2"}


def authors_name(name: str) -> str:
    """Of a tensor of ours."""
    if name.startswith("head."):
        return name
    unit, kind, tensor = name.rsplit(".", 2)
    kind = {"synapse": "conv", "norm": "bn"}[kind]
    if unit in _NAMES:
        return f"{_NAMES[unit]}_{kind}.{tensor}"
    _, stage, block, module, part = unit.split(".")
    module = {"attention": "ssa" if stage == "2" else "tssa", "mlp": "mlp"}[module]
    return f"stage{int(stage) + 1}.{block}.{module}.{_PARTS[part]}_{kind}.{tensor}"
