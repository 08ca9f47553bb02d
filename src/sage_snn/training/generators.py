"""The random generators of a process: seeded at the start of a run, kept with every checkpoint."""

import random
from typing import Any

import numpy as np
import torch

from ..data.randomness import digest


def seed_generators(seed: int, rank: int = 0) -> None:
    """Of Python, numpy and torch on all devices; ranks above the first draw numbers of their own."""
    drawn = seed if rank == 0 else int.from_bytes(digest(seed, rank)[:7], "little")
    random.seed(drawn)
    np.random.seed(drawn % 2**32)
    torch.manual_seed(drawn)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Where they stand, in tensors and plain data, which a checkpoint is read back from without executing code."""
    _, keys, *position = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": [torch.tensor(np.asarray(keys).astype(np.int64)), *position],
        "torch": torch.get_rng_state(),
    }
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_generators(states: dict[str, Any], device: torch.device) -> None:
    """Go on where `generator_states()` was taken."""
    version, keys, gauss = states["python"]
    random.setstate((version, tuple(keys), gauss))
    keys, *position = states["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *position))
    torch.set_rng_state(states["torch"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
