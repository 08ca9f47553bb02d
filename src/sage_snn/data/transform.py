"""From a picture to a normalised tensor, one at a time or, where nothing else is to be done, a batch at once."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor

Step = Callable[[Image.Image], Image.Image]


@dataclass(frozen=True)
class Fit:
    """Pictures brought to `size` pixels by `resize`, left alone when `exact` ones have that size already."""

    size: int
    resize: Step
    exact: bool = True

    def __call__(self, picture: Image.Image) -> Image.Image:
        """The picture in its final size."""
        return picture if self.exact and picture.size == (self.size, self.size) else self.resize(picture)


@dataclass(frozen=True, eq=False)
class Transform:
    """Picture -> `fit` -> `steps` -> tensor (C, size, size) in 0..1 -> normalised."""

    fit: Step
    steps: tuple[Step, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # Kept as tensors: making them anew for each small image would take as long as using them.
    _mean: Tensor = field(init=False, repr=False)
    _std: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, f"_{name}", torch.tensor(getattr(self, name)).view(-1, 1, 1))

    def __call__(self, picture: Image.Image) -> Tensor:
        """The normalised float tensor (C, size, size)."""
        picture = self.fit(picture)
        for step in self.steps:
            picture = step(picture)
        pixels = torch.from_numpy(np.array(picture))
        return self.batch(pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1))

    def batch(self, pixels: Tensor) -> Tensor:
        """uint8 (..., C, H, W) normalised, in the operations of torchvision's ToTensor and Normalize."""
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        return values.div_(255).sub_(self._mean).div_(self._std)

    def is_plain_for(self, pixels: object) -> bool:
        """Whether such pixels only need to be normalised: in memory, of the right size, nothing random."""
        if self.steps or not isinstance(pixels, Tensor) or not isinstance(self.fit, Fit):
            return False
        return self.fit.exact and tuple(pixels.shape[-2:]) == (self.fit.size, self.fit.size)
