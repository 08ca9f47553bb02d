"""Synapses that count: bytes in, int8 weights, whole sums, and currents in float32 out.

N images or time steps times images, C channels. What comes in is exact; weights alone are rounded.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.counts import MOST, as_counts
from ..kernels.packed import Packed
from ..kernels.whole import may_pay, pack_whole, whole_conv, whole_map

LARGEST = 127  # weights reach from -127 to 127: the same in both directions


class WholeSynapse(nn.Module):
    """A convolution, a token-wise map or a linear layer with int8 weights, a scale for every output channel.

    Currents are `sum * scale + bias`, the sum exact: over events where those are few, else by oneDNN's integer
    operators where torch has them, else, and for tests, by `simulated`, in plain torch.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Conv1d | nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        largest = weight.abs().flatten(1).amax(1)
        scale = torch.where(largest > 0, largest / LARGEST, 1.0)
        bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach().float().clone()
        self.register_buffer("weight", (weight / _over(scale, weight)).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)
        self.is_image = isinstance(layer, nn.Conv2d)
        self.options = _options(layer) if isinstance(layer, nn.Conv2d) else None
        self._packed, self._listed = Packed(), Packed()  # for oneDNN, and for events

    def forward(self, x: Tensor) -> Tensor:
        """Counts (N, C, ...), or (..., C) of a linear layer, in bytes or as real numbers that are whole -> currents."""
        counts = x if x.dtype == torch.uint8 else as_counts(x)
        if counts is None:
            raise ValueError(
                f"a synapse with int8 weights counts whole numbers from 0 to {MOST}, and was given others; "
                "fuse this network with weights='float32'"
            )
        currents = self._by_events(counts)
        if currents is not None:
            return currents
        return self._by_onednn(counts) if _has_onednn(counts) else self.simulated(counts)

    def simulated(self, counts: Tensor) -> Tensor:
        """The same in plain torch: a sum of whole numbers in float64 is exact, its product rounded to float32."""
        weight, x = self.weight.double(), counts.double()
        if self.options is not None:
            sums = F.conv2d(x, weight, None, **self.options)
        else:
            sums = F.conv1d(x, weight) if weight.ndim == 3 else F.linear(x, weight)
        channel = -1 if weight.ndim == 2 else 1
        shape = [-1 if axis == channel % sums.ndim else 1 for axis in range(sums.ndim)]
        return sums.float() * self.scale.view(shape) + self.bias.view(shape)

    def _by_events(self, counts: Tensor) -> Tensor | None:
        """None where lists would not pay, or the layer is none that the kernel knows."""
        stride = 1 if self.options is None else self.options["stride"][0]
        is_known = self.options is None or (self.weight.shape[2:] == (3, 3) and self.options == _window(stride))
        if not is_known or stride > 2 or not may_pay(counts, self.weight, stride**2):
            return None
        listed = self._listed.of(self.weight, pack_whole)
        assert listed is not None
        operands = listed, self.scale, self.bias
        if self.options is not None:
            return whole_conv(counts.contiguous(memory_format=torch.channels_last), *operands, stride)
        if self.weight.ndim == 2:
            return whole_map(counts.contiguous(), *operands)
        currents = whole_map(counts.transpose(1, 2).contiguous(), *operands)
        return None if currents is None else currents.transpose(1, 2)

    def _by_onednn(self, counts: Tensor) -> Tensor:
        if self.options is not None:
            return self._convolution(counts, **self.options)
        if self.weight.ndim == 2:
            return self._product(counts.reshape(-1, counts.shape[-1])).view(*counts.shape[:-1], -1)
        tokens = counts.transpose(1, 2)
        return self._product(tokens.reshape(-1, tokens.shape[-1])).view(*tokens.shape[:2], -1).transpose(1, 2)

    def _convolution(self, counts: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
        places = stride, padding, dilation, groups

        def pack(weight: Tensor) -> Tensor:
            return torch.ops.onednn.qconv_prepack(weight, self.scale, 1.0, 0, *places, list(counts.shape))

        packed = self._packed.of(self.weight, pack)
        return torch.ops.onednn.qconv2d_pointwise(
            *(counts, 1.0, 0, packed, self.scale, _zeros(self.scale), self.bias, *places),
            *(1.0, 0, torch.float32, "none", [], ""),
        )

    def _product(self, rows: Tensor) -> Tensor:
        def pack(weight: Tensor) -> Tensor:
            return torch.ops.onednn.qlinear_prepack(weight.flatten(1), list(rows.shape))

        packed = self._packed.of(self.weight, pack)
        return torch.ops.onednn.qlinear_pointwise(
            *(rows, 1.0, 0, packed, self.scale, _zeros(self.scale), self.bias),
            *(1.0, 0, torch.float32, "none", [], ""),
        )

    def extra_repr(self) -> str:
        """Sizes."""
        return " x ".join(map(str, self.weight.shape))


def _options(layer: nn.Conv2d) -> dict[str, Any]:
    """Where a convolution looks; a padding in words is not used in our networks."""
    places: list[Any] = [layer.stride, layer.padding, layer.dilation]
    names = "stride", "padding", "dilation"
    return {name: list(place) for name, place in zip(names, places, strict=True)} | {"groups": layer.groups}


def _window(stride: int) -> dict[str, Any]:
    """The places of a kernel of 3 x 3 that walks events."""
    return {"stride": [stride] * 2, "padding": [1, 1], "dilation": [1, 1], "groups": 1}


def _over(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.view(-1, *[1] * (weight.ndim - 1))


def _zeros(scale: Tensor) -> Tensor:
    """Zero points of weights that are symmetric."""
    return torch.zeros_like(scale, dtype=torch.int64)


def _has_onednn(counts: Tensor) -> bool:
    """Not where a graph leaves the process, nor for nothing."""
    is_here = counts.device.type == "cpu" and hasattr(torch.ops.onednn, "qconv2d_pointwise")
    return is_here and torch.backends.mkldnn.is_available() and counts.numel() > 0 and not torch.compiler.is_exporting()
