"""Randomness that belongs to an image, not to the process that happens to load it."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def digest(*numbers: int) -> bytes:
    """24 bytes that depend on these numbers, and differ for others."""
    # As plain integers: numpy's would be spelt otherwise, and so be other numbers.
    return hashlib.blake2b(repr([int(n) for n in numbers]).encode(), digest_size=24).digest()


def reseed(seed: int, epoch: int, index: int) -> None:
    """Seed Python, numpy and torch (CPU) for one image of one epoch; timm's transforms draw from all three."""
    drawn = digest(seed, epoch, index)
    random.seed(int.from_bytes(drawn[:8], "little"))
    np.random.seed(int.from_bytes(drawn[8:12], "little"))
    # torch.manual_seed would visit every accelerator, which takes longer than the augmentation.
    torch.default_generator.manual_seed(int.from_bytes(drawn[12:20], "little"))


@contextmanager
def borrowed() -> Iterator[None]:
    """Leave the global states of the three generators as they were found."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)
