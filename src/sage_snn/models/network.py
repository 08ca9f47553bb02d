"""What all our networks share: images or events in, an answer per time step, every pass from rest.

T time steps, B batch, C channels.
"""

from abc import abstractmethod

from spikingjelly.activation_based import functional, neuron
from torch import Tensor, nn

from ..inference import Weights, fuse


class SpikingNetwork(nn.Module):
    """Images (B, C, H, W) or events (T, B, C, H, W) -> logits (B, classes), averaged over time.

    A network gives `forward_features(x)`, (T, B, C), and has a linear `head`. `encoding` makes spikes (T, B, C, H, W)
    of images; without it every time step sees the image itself.

    Args:
        time_steps: T, how often the network sees an image.
        num_classes: width of the head.
        image_size: side of the square images, in pixels.
        in_channels: channels of the images or events.
        encoding: makes spikes of images; without it every time step sees the image itself.
    """

    head: nn.Module
    largest_count = 1  # spikes that a number between layers may be the sum of

    def __init__(
        self,
        *,
        time_steps: int,
        num_classes: int,
        image_size: int,
        in_channels: int,
        encoding: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.time_steps, self.num_classes = time_steps, num_classes
        self.image_size, self.in_channels = image_size, in_channels

    @abstractmethod
    def forward_features(self, x: Tensor) -> Tensor:
        """What the head sees of every time step, (T, B, C)."""

    def forward(self, x: Tensor, *, steps: bool = False) -> Tensor:
        """Logits (B, classes), averaged over time; with `steps` those of every time step, (T, B, classes)."""
        return self.forward_steps(x) if steps else self.head(self.forward_features(x).mean(0))

    def forward_steps(self, x: Tensor) -> Tensor:
        """Logits of every time step (T, B, classes); their mean is `model(x)` up to rounding."""
        return self.head(self.forward_features(x))

    def fuse(self, weights: Weights = "float32") -> nn.Module:
        """A copy for inference, with normalisation folded; "int8" counts in whole numbers (see `deploy.fuse`)."""
        return fuse(self, weights)

    def start(self, x: Tensor) -> Tensor:
        """The input, checked, in floating point; all nodes at rest."""
        size = (self.in_channels, self.image_size, self.image_size)
        if x.ndim not in (4, 5) or tuple(x.shape[-3:]) != size:
            raise ValueError(
                f"expected images (B, {', '.join(map(str, size))}) or events (T, B, {', '.join(map(str, size))}), "
                f"got {tuple(x.shape)}; build the model with the right in_channels and image_size"
            )
        for module in self.modules():  # nodes that carry state over (SpikingJelly's own) start from rest too
            if isinstance(module, neuron.BaseNode) and getattr(module, "carry_state", True):
                functional.reset_net(module)
        # Events are counted in whole numbers.
        x = x if x.is_floating_point() else x.to(next(self.parameters()).dtype)
        return x if self.encoding is None else self.encoding(x, self.time_steps)
