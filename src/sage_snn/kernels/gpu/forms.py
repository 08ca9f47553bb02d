"""The forms in which operators launch their kernels, found by asking the operators themselves.

Tensors on torch's "meta" device have a shape and no memory: launched with them, a kernel is written down, not run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .variants import Variant

TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
}
WIDE = 16  # bytes, the most that most devices load at once
_written: list[tuple[Any, dict[str, Any], int]] = []


def write_down(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any], threads: int) -> None:
    """Remember a launch that is not made."""
    _written.append((kernel, dict(zip(kernel.arg_names, arguments, strict=False)) | options, threads))


def forms_of(name: str, call: Callable[[], object], *, forward: bool) -> Iterator[Variant]:
    """Every kernel that an operator launches in a call with tensors on the meta device."""
    _written.clear()
    call()
    for kernel, arguments, threads in list(_written):
        compiled_in = {p.name for p in kernel.params if p.is_constexpr}
        signature = {key: "constexpr" if key in compiled_in else _type(value) for key, value in arguments.items()}
        constants = {key: arguments[key] for key, kind in signature.items() if kind == "constexpr"}
        wide = _should_be_wide(kernel, arguments, threads)
        yield Variant(f"{kernel.__name__}: {name}", kernel, signature, constants, threads, forward, wide)


def _should_be_wide(kernel: Any, arguments: dict[str, Any], threads: int) -> bool:
    """Whether a thread has 16 neighbouring bytes of its tile to load, and not more of slopes that lie anywhere.

    Kernels that only put partial sums together read little, and may read it in small pieces.
    """
    if kernel.__name__.startswith("settle"):
        return False
    values = arguments["ROWS"] * arguments["LANES"] // threads
    return values * arguments["x"].element_size() >= WIDE and not arguments.get("EACH_SLOPE")


def _type(value: Any) -> str:
    if value is None:
        return "constexpr"
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32:1"  # whole numbers are not specialised: known to be whole only
