"""Handwritten digits: the 1797 real 8x8 images inside scikit-learn, so that something trains anywhere."""

from pathlib import Path
from typing import Any

import torch

from .dataset import Data, Images, moments, split


def load(folder: Path | None = None) -> Data:
    """Digits 0 to 9, 1437 training and 360 test images; there is no file to look for, the folder is not read."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    levels = torch.from_numpy(bunch.images).unsqueeze(1)  # whole numbers 0..16
    pixels = (levels * (255 / 16)).round().to(torch.uint8)
    train, test = split(Images(pixels, torch.from_numpy(bunch.target).long()))
    assert isinstance(train.pixels, torch.Tensor)
    mean, std = moments(train.pixels)
    return Data("digits", train, test, tuple("0123456789"), channels=1, size=8, mean=mean, std=std)
