"""A second, plain SpikingResformer with the authors' module names and layouts, on SpikingJelly's own nodes."""

import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn


class LIF(neuron.LIFNode):
    def __init__(self) -> None:
        super().__init__(tau=2.0, surrogate_function=surrogate.ATan(), detach_reset=True, step_mode="m")


class BN(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.seq_to_ann_forward(x, self.bn)


class SpikingMatmul(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right


def conv(a: int, b: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    padding = 0 if size in (1, stride) else size // 2
    return layer.Conv2d(a, b, size, stride, padding, groups=groups, bias=False, step_mode="m")


class GWFFN(nn.Module):
    def __init__(self, dim: int, group_size: int) -> None:
        super().__init__()
        inner = 4 * dim
        self.up = nn.Sequential(LIF(), conv(dim, inner, 1), BN(inner))
        self.conv = nn.ModuleList([nn.Sequential(LIF(), conv(inner, inner, 3, groups=inner // group_size), BN(inner))])
        self.down = nn.Sequential(LIF(), conv(inner, dim, 1), BN(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        for part in self.conv:
            y = part(y) + y
        return self.down(y) + x


class DSSA(nn.Module):
    def __init__(self, dim: int, heads: int, length: int, patch: int) -> None:
        super().__init__()
        self.dim, self.num_heads, self.lenth, self.momentum = dim, heads, length, 0.999
        self.register_buffer("firing_rate_x", torch.zeros(1, 1, heads, 1, 1))
        self.register_buffer("firing_rate_attn", torch.zeros(1, 1, heads, 1, 1))
        self.activation_in = LIF()
        self.W, self.norm = conv(dim, 2 * dim, patch, patch), BN(2 * dim)
        self.matmul1, self.matmul2 = SpikingMatmul(), SpikingMatmul()
        self.activation_attn, self.activation_out = LIF(), LIF()
        self.Wproj, self.norm_proj = conv(dim, dim, 1), BN(dim)

    def follow(self, name: str, spikes: Tensor) -> Tensor:
        if self.training:
            seen, rate = spikes.detach().mean((0, 1, 3, 4), keepdim=True), getattr(self, name)
            rate = rate if rate.any() else seen
            setattr(self, name, rate * self.momentum + seen * (1 - self.momentum))
        return getattr(self, name)

    def forward(self, x: Tensor) -> Tensor:
        shape, width = x.shape, self.dim // self.num_heads
        spikes = self.activation_in(x)
        y = self.norm(self.W(spikes)).reshape(*shape[:2], self.num_heads, 2 * width, -1)
        y1, y2 = y[:, :, :, :width], y[:, :, :, width:]
        spikes = spikes.reshape(*shape[:2], self.num_heads, width, -1)
        scale = 1 / torch.sqrt(self.follow("firing_rate_x", spikes) * width)
        fired = self.activation_attn(self.matmul1(y1.transpose(-1, -2), spikes) * scale)
        scale = 1 / torch.sqrt(self.follow("firing_rate_attn", fired) * self.lenth)
        out = self.activation_out((self.matmul2(y2, fired) * scale).reshape(shape))
        return self.norm_proj(self.Wproj(out)) + x


class DownsampleLayer(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.conv, self.norm, self.activation = conv(a, b, 3, 2), BN(b), LIF()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.activation(x)))


class SpikingResformerTwin(nn.Module):
    def __init__(
        self, heads: tuple[int, ...], width: int, time_steps: int, classes: int, size: int, imagenet: bool = False
    ) -> None:
        super().__init__()
        self.T = time_steps
        dims = [count * width for count in heads]
        first = [conv(3, dims[0], 7, 2), BN(dims[0]), layer.MaxPool2d(3, 2, 1, step_mode="m")]
        self.prologue = nn.Sequential(*(first if imagenet else [conv(3, dims[0], 3), BN(dims[0])]))
        size = size // 4 if imagenet else size
        self.layers = nn.Sequential()
        for i, (dim, patch) in enumerate(zip(dims, (4, 2, 1), strict=True)):
            stage = nn.Sequential()
            if i:
                stage.append(DownsampleLayer(dims[i - 1], dim))
                size //= 2
            for _ in range(i + 1):
                stage.append(DSSA(dim, heads[i], (size // patch) ** 2, patch))
                stage.append(GWFFN(dim, width))
            self.layers.append(stage)
        self.avgpool = layer.AdaptiveAvgPool2d((1, 1), step_mode="m")
        self.classifier = layer.Linear(dims[-1], classes, bias=False, step_mode="m")

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.prologue(torch.stack([x] * self.T)))
        return self.classifier(self.avgpool(x).flatten(2))


def authors_name(name: str) -> str:
    """Of a tensor of ours."""
    module, _, tensor = name.rpartition(".")
    if module == "head":
        return f"classifier.{tensor}"
    if tensor == "rate":
        stage, block = module.split(".")[1:3]
        kind = {"map": "x", "mixed": "attn"}[module.rsplit(".", 1)[1]]
        return f"layers.{stage}.{_place(stage, block)}.firing_rate_{kind}"
    unit, _, kind = module.rpartition(".")
    is_norm = kind == "norm"
    if unit == "stem":
        return f"prologue.1.bn.{tensor}" if is_norm else f"prologue.0.{tensor}"
    parts = unit.split(".")
    if parts[0] == "downsamplings":
        return f"layers.{int(parts[1]) + 1}.0.{'norm.bn' if is_norm else 'conv'}.{tensor}"
    _, stage, block, layer_name, part = parts[:5]
    place = _place(stage, block) + (layer_name == "mlp")
    theirs = {
        "key_value": ("W", "norm.bn"),
        "projection": ("Wproj", "norm_proj.bn"),
        "up": ("up.1", "up.2.bn"),
        "mix": ("conv.0.1", "conv.0.2.bn"),
        "down": ("down.1", "down.2.bn"),
    }[part][is_norm]
    return f"layers.{stage}.{place}.{theirs}.{tensor}"


def _place(stage: str, block: str) -> int:
    return 2 * int(block) + (stage != "0")
