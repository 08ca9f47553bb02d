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


AVX2 = {"SAGE_SNN_MARCH": "x86-64-v3", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


@pytest.mark.parametrize(
    ("held", "name"),
    [
        ({}, "AVX-512 with VNNI"),
        (AVX2, "AVX2 (held to it; the processor has AVX-512 with VNNI)"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "AVX-512 with VNNI (held: oneDNN to AVX2)"),
        (AVX2 | {"SAGE_SNN_MARCH": ""}, "AVX-512 with VNNI (held: torch to AVX2, oneDNN to AVX2)"),
    ],
    ids=["free", "all held", "one held", "kernels free"],
)
def test_a_machine_held_to_avx2_is_named_so(monkeypatch, held, name):
    monkeypatch.setattr(machine, "vectors", lambda: "AVX-512 with VNNI")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")  # torch reads it once, at its start
    for variable in AVX2:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in held.items():
        monkeypatch.setenv(variable, value)
    assert machine.vectors_used() == name


def test_the_cpu_is_always_there_and_first():
    assert machine.devices()[0] == torch.device("cpu")
    assert machine.device_name(torch.device("cpu")) == "cpu"
