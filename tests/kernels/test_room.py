"""Large tensors of the kernels lie in memory that others of their size can have again."""

import subprocess
import sys

import pytest
import torch

from sage_snn.kernels.room import room, room_like

CODE = """
import torch
from sage_snn.kernels.memory import keep_freed_memory
from sage_snn.kernels.room import room
keep_freed_memory()
places, small = set(), []
for _ in range(50):
    places.add(room((2**20,), torch.float32).fill_(1.0).data_ptr())
    small.append([torch.empty(n) for n in range(1, 40)])  # where it was, and beside it
print(len(places))
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
@pytest.mark.parametrize(
    ("size", "last"),
    [
        ((3, 5, 7), False),
        ((300, 20, 77), False),
        ((0, 4, 4), False),
        ((64, 48, 16, 16), True),
        ((4, 1, 300, 200), True),
        ((20000, 16, 1, 1), True),
    ],
)
def test_room_lies_as_torchs_own_tensors_do_and_begins_at_a_line_of_the_cache(size, last, dtype):
    mine = room(size, dtype, last)
    theirs = torch.empty(size, dtype=dtype, memory_format=torch.channels_last if last else torch.contiguous_format)
    assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    assert mine.data_ptr() % 64 == 0
    assert mine.fill_(1).sum() == mine.numel()


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_room_like_a_tensor_has_its_axes_in_the_same_order(order):
    like = torch.empty(40, 50, 60).permute(order)
    assert room_like(like).stride() == like.stride()


def test_rooms_do_not_overlap():
    values = [room((2**16 + n,), torch.float32).fill_(n) for n in range(8)]
    assert all(bool((tensor == n).all()) for n, tensor in enumerate(values))


def test_a_tensor_has_the_memory_of_the_one_before_it():
    """Of torch's own fifty tensors each takes memory of its own with glibc 2.36."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2
