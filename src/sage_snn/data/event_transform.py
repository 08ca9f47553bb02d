"""What happens to the frames of a recording in training: to all of them alike, so that what moves goes on moving."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

STRENGTHS = 31  # equally spaced, from one end to the other
ENDS = {"ShearX": 0.3, "TranslateX": 5.0, "TranslateY": 5.0, "Rotate": 30.0}  # a slope, pixels, pixels, degrees
CUTOUT = (0.001, 0.11)  # area of the square, as a share


@dataclass(frozen=True)
class EventTransform:
    """Frames (T, 2, H, W) -> flipped left to right, or not -> one of the operations, all equally likely.

    Draws come from torch's global generator. Operations are those of the official code of Spikformer for CIFAR10-DVS.
    """

    flip: float = 0.0
    operations: tuple[str, ...] = ()

    def __call__(self, frames: Tensor) -> Tensor:
        """The changed frames."""
        if self.flip and float(torch.rand(())) < self.flip:
            frames = frames.flip(-1)
        if not self.operations:
            return frames
        name = self.operations[int(torch.randint(len(self.operations), ()))]
        return _operation(name)(frames)

    def in_words(self) -> list[str]:
        """A line for each thing that is done."""
        flipped = [f"flip left to right with probability {self.flip}"] * (self.flip > 0)
        told = [f"{name} up to ±{ENDS[name]:g}" if name in ENDS else name for name in self.operations]
        return flipped + [f"one of {', '.join(told)}, the same for all frames of a recording"] * bool(told)


def _operation(name: str) -> Callable[[Tensor], Tensor]:
    from torchvision.transforms import RandomErasing, functional

    if name == "Identity":
        return lambda frames: frames
    if name == "Cutout":
        return RandomErasing(1.0, CUTOUT, (1.0, 1.0))
    drawn = int(torch.randint(STRENGTHS, ()))
    strength = ENDS[name] * (2 * drawn / (STRENGTHS - 1) - 1)
    if name == "Rotate":
        return partial(functional.rotate, angle=strength)
    shift = {"TranslateX": [int(strength), 0], "TranslateY": [0, int(strength)]}.get(name, [0, 0])
    shear = [math.degrees(strength), 0.0] if name == "ShearX" else [0.0, 0.0]
    return partial(functional.affine, angle=0.0, translate=shift, scale=1.0, shear=shear)
