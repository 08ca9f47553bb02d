"""The Triton kernels on a CPU, through Triton's interpreter; it has to be on before Triton is imported.

So these tests are collected only where SAGE_SNN_KERNELS=interpret is set: tests/kernels/test_triton.py runs them so.
"""

import itertools
import random

import pytest
from hypothesis import settings

from sage_snn.kernels.gpu.available import is_interpreting

collect_ignore_glob = [] if is_interpreting() else ["test_*.py"]

settings.register_profile("interpreted", deadline=None, derandomize=True, database=None, max_examples=20)
settings.load_profile("interpreted" if is_interpreting() else "default")


class Shuffled:
    """Stands in for the interpreter's `set_grid_idx`: tells every program of a launch that it is another, each once."""

    def __init__(self, builder, seed):
        self.builder, self.random, self.waiting = builder, random.Random(seed), []

    def __call__(self, x, y, z):
        if not self.waiting:
            self.waiting = list(itertools.product(*map(range, self.builder.grid_dim)))
            self.random.shuffle(self.waiting)
        self.builder.grid_idx = self.waiting.pop()


@pytest.fixture
def in_any_order(monkeypatch):
    """Results of something run as it is, and with the programs of every launch in other orders."""
    from triton.runtime.interpreter import interpreter_builder as builder

    def results(compute):
        found = [compute()]
        for seed in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(builder, "set_grid_idx", Shuffled(builder, seed))
                found.append(compute())
        return found

    return results
