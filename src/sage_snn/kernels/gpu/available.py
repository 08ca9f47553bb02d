"""Whether the Triton kernels can run: on CUDA and ROCm devices, and on CPU tensors through Triton's interpreter.

`SAGE_SNN_KERNELS=interpret` in the environment sends CPU tensors through the interpreter, which is slow and for tests.
"""

import os
import re
from functools import cache
from importlib import import_module

import torch

OLDEST = (3, 3)  # the first whose kernels take tuples; torch 2.7 brings it


@cache
def is_interpreting() -> bool:
    """Do CPU tensors go through Triton's interpreter? It has to be told before Triton is imported."""
    if os.environ.get("SAGE_SNN_KERNELS", "").lower() != "interpret":
        return False
    if os.environ.get("TRITON_INTERPRET") != "1":  # set by sage_snn/__init__.py if it could
        raise RuntimeError(
            "Triton was imported before sage-snn could switch its interpreter on; "
            "set TRITON_INTERPRET=1 beside SAGE_SNN_KERNELS=interpret"
        )
    return True


@torch.compiler.assume_constant_result  # pyright: ignore[reportUnknownMemberType]
def why_not(device_type: str) -> str | None:
    """None where the Triton kernels take tensors of this kind of device, else the reason in words."""
    return _why_not(device_type)


@cache  # inside, since torch.compile warns of a cache that it meets itself
def _why_not(device_type: str) -> str | None:
    if device_type == "cpu":
        return None if is_interpreting() else "the Triton kernels are for GPUs"
    if device_type != "cuda":  # torch's word for ROCm too
        return f"there is no kernel for {device_type} devices"
    if (found := version()) is None:
        return "Triton is missing; pip install triton"
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST:
        return f"Triton {found} is older than {'.'.join(map(str, OLDEST))}; pip install -U triton"
    return None


def version() -> str | None:
    """That of Triton, None without it; asked of the module, which packages of several names bring (ROCm's too)."""
    try:
        return import_module("triton").__version__
    except ImportError:
        return None


def status(device_type: str) -> str:
    """One line for people, where the kernels can run."""
    return f"of Triton {version()}, {'interpreted' if device_type == 'cpu' else f'on {device_type}'}"
