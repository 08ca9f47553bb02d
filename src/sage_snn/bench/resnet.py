"""ResNet-19 of SpikingJelly's layers, which has no such network: in multi-step mode, as its own residual networks."""

from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn


class SpikingJellyResNet19(nn.Module):
    """Images (B, 3, H, W) -> logits of every time step (T, B, 10)."""

    def __init__(self, width: float, time_steps: int) -> None:
        super().__init__()
        self.time_steps = time_steps
        stem, *widths, hidden = (round(width * channels) for channels in (64, 128, 256, 512, 256))
        self.stem = nn.Sequential(layer.Conv2d(3, stem, 3, padding=1, bias=False), layer.BatchNorm2d(stem), _lif())
        blocks: list[nn.Module] = []
        channels = stem
        for stage, (outputs, count) in enumerate(zip(widths, (3, 3, 2), strict=True)):
            for index in range(count):
                blocks.append(_Block(channels, outputs, stride=2 if stage and not index else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.pool = layer.AdaptiveAvgPool2d((1, 1))
        self.hidden = nn.Sequential(layer.Linear(channels, hidden), _lif())
        self.head = layer.Linear(hidden, 10)
        functional.set_step_mode(self, "m")

    def forward(self, x: Tensor) -> Tensor:
        """The image is repeated at the input."""
        x = x.unsqueeze(0).repeat(self.time_steps, 1, 1, 1, 1)
        x = self.pool(self.blocks(self.stem(x))).flatten(2)
        return self.head(self.hidden(x))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = layer.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1, self.sn1 = layer.BatchNorm2d(outputs), _lif()
        self.conv2 = layer.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2, self.sn2 = layer.BatchNorm2d(outputs), _lif()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            short = layer.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(short, layer.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.sn1(self.bn1(self.conv1(x)))
        return self.sn2(self.bn2(self.conv2(y)) + self.shortcut(x))


def _lif() -> nn.Module:
    return neuron.LIFNode(tau=2.0, decay_input=False, surrogate_function=surrogate.Sigmoid(), detach_reset=True)
