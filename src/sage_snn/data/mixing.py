"""Mixup and CutMix of a batch with its own reverse, and soft targets: timm's semantics, draw for draw."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from .augmentation import Augmentation

BATCH = -4  # its axis, whether time comes before it or not


def mix(
    images: Tensor, labels: Tensor, classes: int, augmentation: "Augmentation", epoch: int, generator_seed: int
) -> tuple[Tensor, Tensor]:
    """Mixed images (B, C, H, W) or events (T, B, C, H, W), and soft targets (B, classes), smoothed.

    The seed alone decides the mixture.
    timm's class refuses odd batches and draws from numpy's global state; seeded alike, it gives the same bits.
    """
    draw = np.random.RandomState((generator_seed ^ generator_seed >> 32) % 2**32)
    share, is_cutmix = _share(augmentation, epoch, draw)
    if is_cutmix and share < 1:
        images, share = _paste(images, share, draw)
    elif share < 1:
        images = images.mul(share).add_(images.flip(BATCH).mul_(1 - share))
    low = augmentation.smoothing / classes
    targets = torch.full((len(labels), classes), low, device=images.device)
    targets.scatter_(1, labels.view(-1, 1), 1 - augmentation.smoothing + low)
    return images, targets * share + targets.flip(0) * (1 - share)


def _share(augmentation: "Augmentation", epoch: int, draw: np.random.RandomState) -> tuple[float, bool]:
    """How much of each image stays, and whether the rest is pasted rather than blended; one draw for the batch."""
    mixup, cutmix = augmentation.mixup, augmentation.cutmix
    is_off = augmentation.mixup_off_epoch is not None and epoch >= augmentation.mixup_off_epoch
    if is_off or mixup == cutmix == 0 or draw.rand() >= augmentation.mixup_probability:
        return 1.0, False
    is_cutmix = cutmix > 0 and (mixup == 0 or draw.rand() < 0.5)
    alpha = cutmix if is_cutmix else mixup
    return float(draw.beta(alpha, alpha)), is_cutmix


def _paste(images: Tensor, share: float, draw: np.random.RandomState) -> tuple[Tensor, float]:
    """A box of the reversed batch pasted in, and the share that is left: a box cut by the border is smaller."""
    height, width = images.shape[-2:]
    cut = np.sqrt(1 - share)
    cut_height, cut_width = int(height * cut), int(width * cut)
    row, column = draw.randint(0, height), draw.randint(0, width)
    top, bottom = max(row - cut_height // 2, 0), min(row + (cut_height + 1) // 2, height)
    left, right = max(column - cut_width // 2, 0), min(column + (cut_width + 1) // 2, width)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.flip(BATCH)[..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
