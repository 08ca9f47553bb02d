"""Freed memory stays with the process, so that the next tensor costs no page faults."""

import ctypes
import subprocess
import sys

import pytest

from sage_snn.kernels import memory

CODE = """
import resource, torch
from sage_snn.kernels.memory import keep_freed_memory
torch.set_num_threads(1)
assert keep_freed_memory()
def work():
    for _ in range(20):
        torch.empty(2**20).fill_(1.0)
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_tensors_reuse_the_pages_of_freed_ones():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # of 20 tensors of 1024 pages each


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.keep_freed_memory() is False
