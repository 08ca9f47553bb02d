"""What a network carries besides its weights, kept while passes are made that must leave no trace."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ..compat import memories
from ..replay import Starts
from .tap import unread


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Inside, passes start from rest, with the random numbers that come next, and nobody reads them.

    Afterwards buffers, membranes, other attributes of modules and all generators are what they were, to the bit.
    Parameters and their gradients are not looked after.
    """
    kept = [_Snapshot(module) for module in model.modules()]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with unread(model), _same_numbers(device):
        try:
            for module in model.modules():
                _rest(module)
            yield
        finally:
            for snapshot in kept:
                snapshot.put_back()


class _Snapshot:
    """One module's own state, without what is inside of it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.attributes = dict(vars(module))
        self.membranes = dict(memories(module))
        self.buffers = [(name, held, held.clone()) for name, held in module.named_buffers(recurse=False)]
        generators = [value for value in vars(module).values() if isinstance(value, torch.Generator)]
        self.generators = [(generator, generator.get_state()) for generator in generators]

    @torch.no_grad()
    def put_back(self) -> None:
        now = vars(self.module)
        for name in now.keys() - self.attributes.keys():
            del now[name]
        now.update(self.attributes)
        membranes = memories(self.module)
        membranes.clear()
        membranes.update(self.membranes)
        for name, held, value in self.buffers:
            held.copy_(value)
            if getattr(self.module, name) is not held:
                setattr(self.module, name, held)
        for generator, state in self.generators:
            generator.set_state(state)


def _rest(module: Any) -> None:
    """Membranes at rest; a reset of ours empties what it knows of checkpointed passes, so it gets another to empty."""
    if memories(module):
        if hasattr(module, "starts"):
            module.starts = Starts()
        module.reset()


@contextmanager
def _same_numbers(device: torch.device) -> Iterator[None]:
    """Python's, numpy's and torch's generators go on afterwards as if nothing had been drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
