"""Which code an operator runs: the one question, asked by all of them."""

from typing import Literal

import torch
from torch import Tensor

from . import native

Path = Literal["C++", "twin"]


def path(x: Tensor) -> Path:
    """The C++ kernel for tensors on a CPU where it could be compiled, else the twin in plain torch.

    A graph that leaves the process (torch.export) is made of torch only.
    """
    is_cpp = x.device.type == "cpu" and not torch.compiler.is_exporting() and native.is_available()
    return "C++" if is_cpp else "twin"


def why_twin(x: Tensor | None = None) -> str | None:
    """None where the C++ kernel runs (on a CPU, without a tensor), else the reason in words."""
    if x is not None and x.device.type != "cpu":
        return "the kernel is for CPUs"
    return None if native.is_available() else native.status()
