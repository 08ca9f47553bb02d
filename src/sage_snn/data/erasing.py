"""Rectangles of training images set to zero, after they were mixed: the order of timm's loader and of the authors."""

from typing import Any

import torch
from torch import Tensor

from ..compat import sent
from .randomness import borrowed, reseed


def erased(images: Tensor, indices: Tensor, probability: float, seed: int, epoch: int) -> Tensor:
    """Normalised images (B, C, H, W), each with one rectangle erased or not; seed, epoch and index alone decide."""
    if not probability:
        return images
    # Drawn on the host and written at once: on a device every rectangle by itself would be a launch.
    kept, erase = torch.ones(len(images), 1, *images.shape[2:], dtype=torch.bool), eraser(probability)
    with borrowed():
        for image, index in zip(kept, indices.tolist(), strict=True):
            reseed(seed, epoch, -1 - index)  # other numbers than those that the image's own transform drew
            erase(image)  # in place
    return images.clone().masked_fill_(sent(kept.logical_not_(), images.device), 0)  # the copy keeps their order


def eraser(probability: float) -> Any:
    """timm's, which draws the rectangle; zero is the mean of normalised images."""
    from timm.data.random_erasing import RandomErasing

    return RandomErasing(probability, mode="const", device="cpu")
