"""Cutout (DeVries and Taylor, 2017): a square of one colour somewhere on the picture."""

from dataclasses import dataclass

import torch
from PIL import Image


@dataclass(frozen=True)
class Cutout:
    """A square of `size` pixels around a random pixel, cut off where it leaves the picture."""

    size: int
    colour: tuple[int, ...]

    def __call__(self, picture: Image.Image) -> Image.Image:
        """The picture with its square."""
        x, y = (int(torch.randint(side, ())) - self.size // 2 for side in picture.size)
        covered = picture.copy()
        colour = self.colour if len(self.colour) > 1 else self.colour[0]
        covered.paste(colour, (max(x, 0), max(y, 0), x + self.size, y + self.size))
        return covered
