"""Cutout (DeVries and Taylor, 2017): a square of one colour somewhere on the picture."""

from dataclasses import dataclass

import torch
from PIL import Image


@dataclass(frozen=True)
class Cutout:
    """A square of `size` pixels around a random pixel, cut off where it leaves the picture."""

    size: int
    colour: tuple[int, ...]  # a value per channel

    def __call__(self, picture: Image.Image) -> Image.Image:
        """The picture with its square."""
        x, y = (int(torch.randint(side, ())) - self.size // 2 for side in picture.size)
        covered = picture.copy()
        covered.paste(
            self.colour if picture.mode == "RGB" else self.colour[0],
            (max(x, 0), max(y, 0), x + self.size, y + self.size),
        )
        return covered
