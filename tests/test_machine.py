"""What a machine is called, from what Linux tells of its processor."""

import pytest
import torch

from sage_snn import machine


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"flags": "fpu avx2 avx512f avx512_vnni"}, "AVX-512 with VNNI"),
        ({"flags": "fpu avx2 avx512f"}, "AVX-512"),
        ({"flags": "fpu avx2 avx_vnni"}, "AVX2 with VNNI"),
        ({"flags": "fpu sse2 avx2"}, "AVX2"),
        ({"Features": "fp asimd"}, "NEON"),
        ({"flags": "fpu sse2"}, "vectors unknown"),
        ({}, "vectors unknown"),
    ],
)
def test_the_widest_vectors_are_named(monkeypatch, told, name):
    monkeypatch.setattr(machine, "_line", lambda key: told.get(key, ""))
    assert machine.vectors() == name


def test_the_cpu_is_always_there_and_first():
    assert machine.devices()[0] == torch.device("cpu")
    assert machine.device_name(torch.device("cpu")) == "cpu"
