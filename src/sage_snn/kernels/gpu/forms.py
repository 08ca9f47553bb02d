"""The forms in which operators launch their kernels, found by asking the operators themselves.

Tensors on torch's "meta" device have a shape and no memory: launched with them, a kernel is written down, not run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .variants import Variant

TYPES = {torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
_written: list[tuple[Any, dict[str, Any], int]] = []


def write_down(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any], num_warps: int) -> None:
    """Remember a launch that is not made."""
    _written.append((kernel, dict(zip(kernel.arg_names, arguments, strict=False)) | options, num_warps))


def forms_of(name: str, call: Callable[[], object], *, forward: bool, wide: bool = True) -> Iterator[Variant]:
    """Every kernel that an operator launches in a call with tensors on the meta device.

    Those that only put partial sums together read little, and may read it in small pieces.
    """
    _written.clear()
    call()
    for kernel, arguments, num_warps in list(_written):
        compiled_in = {p.name for p in kernel.params if p.is_constexpr}
        signature = {key: "constexpr" if key in compiled_in else _type(value) for key, value in arguments.items()}
        constants = {key: arguments[key] for key, kind in signature.items() if kind == "constexpr"}
        much = wide and not kernel.__name__.startswith("settle")
        yield Variant(f"{kernel.__name__}: {name}", kernel, signature, constants, num_warps, forward, much)


def _type(value: Any) -> str:
    if value is None:
        return "constexpr"
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32:1"  # whole numbers are not specialised: known to be whole only
