"""A second, plain Spikformer with the authors' module names and layouts, on SpikingJelly's own nodes."""

import torch
from spikingjelly.activation_based import neuron, surrogate
from torch import Tensor, nn


def lif(threshold: float = 1.0) -> nn.Module:
    return neuron.LIFNode(
        tau=2.0, v_threshold=threshold, detach_reset=True, step_mode="m", surrogate_function=surrogate.Sigmoid(4.0)
    )


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, imagenet: bool) -> None:
        super().__init__()
        self.num_heads, self.scale, self.imagenet = heads, 0.125, imagenet
        for part in ("q", "k", "v", "proj"):
            if imagenet:
                setattr(self, f"{part}_conv", nn.Conv1d(dim, dim, 1, bias=part == "proj"))
            else:
                setattr(self, f"{part}_linear", nn.Linear(dim, dim))
            setattr(self, f"{part}_bn", nn.BatchNorm1d(dim))
            setattr(self, f"{part}_lif", lif())
        self.attn_lif = lif(0.5)

    def spikes(self, part: str, x: Tensor) -> Tensor:
        """(T, B, N, C) spikes of one projection in the CIFAR form, (T, B, C, N) in the ImageNet form."""
        flat = x.flatten(0, 1)
        norm, fire = getattr(self, f"{part}_bn"), getattr(self, f"{part}_lif")
        if self.imagenet:
            return fire(norm(getattr(self, f"{part}_conv")(flat)).reshape(x.shape))
        y = getattr(self, f"{part}_linear")(flat)
        return fire(norm(y.transpose(-1, -2)).transpose(-1, -2).reshape(x.shape).contiguous())

    def split(self, x: Tensor) -> Tensor:
        x = x.transpose(-1, -2) if self.imagenet else x
        times, batch, tokens, dim = x.shape
        return x.reshape(times, batch, tokens, self.num_heads, dim // self.num_heads).permute(0, 1, 3, 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(self.spikes(part, x)) for part in ("q", "k", "v"))
        if self.imagenet:
            mixed = (q @ (k.transpose(-2, -1) @ v)) * self.scale
            mixed = mixed.transpose(3, 4).reshape(x.shape)
        else:
            mixed = ((q @ k.transpose(-2, -1)) * self.scale) @ v
            mixed = mixed.transpose(2, 3).reshape(x.shape)
        return self.spikes("proj", self.attn_lif(mixed))


class Mlp(nn.Module):
    def __init__(self, dim: int, imagenet: bool) -> None:
        super().__init__()
        self.imagenet = imagenet
        for part, (a, b) in {"fc1": (dim, 4 * dim), "fc2": (4 * dim, dim)}.items():
            if imagenet:
                setattr(self, f"{part}_conv", nn.Conv2d(a, b, 1))
                setattr(self, f"{part}_bn", nn.BatchNorm2d(b))
            else:
                setattr(self, f"{part}_linear", nn.Linear(a, b))
                setattr(self, f"{part}_bn", nn.BatchNorm1d(b))
            setattr(self, f"{part}_lif", lif())

    def forward(self, x: Tensor) -> Tensor:
        for part in ("fc1", "fc2"):
            norm, fire, lead = getattr(self, f"{part}_bn"), getattr(self, f"{part}_lif"), x.shape[:2]
            if self.imagenet:
                y = norm(getattr(self, f"{part}_conv")(x.flatten(0, 1).unsqueeze(-1))).squeeze(-1)
            else:
                y = norm(getattr(self, f"{part}_linear")(x.flatten(0, 1)).transpose(-1, -2)).transpose(-1, -2)
            x = fire(y.unflatten(0, lead).contiguous())
        return x


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, imagenet: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)  # never called
        self.attn, self.mlp = Attention(dim, heads, imagenet), Mlp(dim, imagenet)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class PatchEmbed(nn.Module):
    def __init__(self, dim: int, channels: int, pooled: tuple[bool, ...]) -> None:
        super().__init__()
        widths = [channels, dim // 8, dim // 4, dim // 2, dim]
        self.pooled = pooled
        for i, suffix in enumerate(("", "1", "2", "3")):
            setattr(self, f"proj_conv{suffix}", nn.Conv2d(widths[i], widths[i + 1], 3, padding=1, bias=False))
            setattr(self, f"proj_bn{suffix}", nn.BatchNorm2d(widths[i + 1]))
            setattr(self, f"proj_lif{suffix}", lif())
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.rpe_conv, self.rpe_bn = nn.Conv2d(dim, dim, 3, padding=1, bias=False), nn.BatchNorm2d(dim)
        self.rpe_lif = lif()

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[:2]
        for i, suffix in enumerate(("", "1", "2", "3")):
            y = getattr(self, f"proj_bn{suffix}")(getattr(self, f"proj_conv{suffix}")(x.flatten(0, 1)))
            x = getattr(self, f"proj_lif{suffix}")(y.unflatten(0, lead))
            if self.pooled[i]:
                x = self.maxpool(x.flatten(0, 1)).unflatten(0, lead)
        return x + self.rpe_lif(self.rpe_bn(self.rpe_conv(x.flatten(0, 1))).unflatten(0, lead))


class OfficialTwin(nn.Module):
    def __init__(self, depth: int, dim: int, heads: int, time_steps: int, classes: int, form: str, patch: int) -> None:
        super().__init__()
        self.T, self.imagenet = time_steps, form == "imagenet"
        pools = {4: (False, False, True, True), 16: (True,) * 4}[patch]
        self.patch_embed = PatchEmbed(dim, 3, pools)
        self.block = nn.ModuleList(Block(dim, heads, self.imagenet) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(torch.stack([x] * self.T)).flatten(-2)
        x = x if self.imagenet else x.transpose(-1, -2)
        for block in self.block:
            x = block(x)
        return self.head(x.mean(-1 if self.imagenet else -2).mean(0))
