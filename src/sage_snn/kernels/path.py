"""Which code an operator runs: the one question, asked by all of them."""

from typing import Literal

import torch
from torch import Tensor

from . import native
from .gpu import available

# Arithmetic, membranes and moments are in float32 there; what is float64 runs in the twin.
TRITON_PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)

Path = Literal["C++", "Triton", "twin"]


def path(x: Tensor) -> Path:
    """C++ for tensors on a CPU where it could be compiled, Triton on CUDA and ROCm, else the twin in plain torch.

    A graph that leaves the process (torch.export) is made of torch only.
    """
    if torch.compiler.is_exporting() or _reason(x.device.type) is not None:
        return "twin"
    return "Triton" if available.why_not(x.device.type) is None else "C++"


def why_twin(x: Tensor | None = None) -> str | None:
    """None where a kernel runs (without a tensor: on a CPU), else the reason in words."""
    return _reason("cpu" if x is None else x.device.type)


def code_on(x: Tensor) -> str:
    """One line for people: which kernels run where this tensor is, or why none do."""
    if (reason := why_twin(x)) is not None:
        return reason if x.device.type == "cpu" or native.is_switched_off() else f"none: {reason}"
    return available.status(x.device.type) if path(x) == "Triton" else native.status()


def _reason(device_type: str) -> str | None:
    if native.is_switched_off():
        return native.status()
    if (reason := available.why_not(device_type)) is None or device_type != "cpu":
        return reason
    return None if native.is_available() else native.status()
