"""Rectangles of training images set to zero, after they were mixed: the order of timm's loader and of the authors."""

from typing import Any

from torch import Tensor

from .randomness import borrowed, reseed


def erased(images: Tensor, indices: Tensor, probability: float, seed: int, epoch: int) -> Tensor:
    """Normalised images (B, C, H, W), each with one rectangle erased or not; seed, epoch and index alone decide."""
    if not probability:
        return images
    images, erase = images.clone(), eraser(probability, str(images.device))
    with borrowed():
        for image, index in zip(images, indices.tolist(), strict=True):
            reseed(seed, epoch, -1 - index)  # other numbers than those that the image's own transform drew
            erase(image)  # in place
    return images


def eraser(probability: float, device: str = "cpu") -> Any:
    """timm's, which draws the rectangle; zero is the mean of normalised images."""
    from timm.data.random_erasing import RandomErasing

    return RandomErasing(probability, mode="const", device=device)
