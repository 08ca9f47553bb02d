"""Typed entry points of the C++ library: tensors in, pointers out."""

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import has_dispatch_mode, is_profiling
from . import native
from .gpu.available import is_interpreting

POINTER, LONG, DOUBLE, INT, WORD = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int, ctypes.c_uint64
MEMBRANE = [DOUBLE, DOUBLE, DOUBLE, INT, INT, POINTER]  # tau, threshold, reset, hard, decays_input, thresholds
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
# Of the surrogate shapes that the C++ knows: `Shape` in membrane.h.
SHAPE_CODES = {"Sigmoid": 0, "ATan": 1, "Rect": 2, "PiecewiseQuadratic": 3}

# Bits of 1 in every dtype that spikes come in.
ONES = {
    torch.bool: 1,
    torch.uint8: 1,
    torch.int8: 1,
    torch.int16: 1,
    torch.int32: 1,
    torch.int64: 1,
    torch.float16: 0x3C00,
    torch.bfloat16: 0x3F80,
    torch.float32: 0x3F800000,
    torch.float64: 0x3FF0000000000000,
}

_ARGUMENTS: dict[str, list[Any]] = {
    "sage_lif": [POINTER, POINTER, LONG, POINTER, POINTER, LONG, LONG, *MEMBRANE, DOUBLE, POINTER, INT],
    "sage_lif_backward": [POINTER, POINTER, LONG, *[POINTER] * 10, LONG, LONG, *MEMBRANE, INT, INT, INT],
    "sage_norm_lif": [*[POINTER] * 7, *[LONG] * 4, INT, DOUBLE, INT, *MEMBRANE, DOUBLE, POINTER, INT],
    "sage_norm_lif_backward": [*[POINTER] * 17, *[LONG] * 4, INT, DOUBLE, INT, *MEMBRANE, INT, INT, INT],
    "sage_norm": [*[POINTER] * 6, LONG, LONG, DOUBLE, INT, INT],
    "sage_norm_backward": [*[POINTER] * 8, LONG, LONG, DOUBLE, INT, INT],
    "sage_attention": [*[POINTER, POINTER, INT, WORD] * 2, POINTER, POINTER, LONG, POINTER, POINTER, POINTER, INT],
    "sage_pool": [POINTER, *[LONG] * 4, POINTER, POINTER, INT],
    "sage_pool_backward": [POINTER, POINTER, *[LONG] * 4, POINTER, INT],
    "sage_event_size": [LONG, LONG, LONG],
    "sage_event_pack": [POINTER, *[LONG] * 6, POINTER, INT],
    "sage_event_conv": [POINTER, POINTER, *[LONG] * 3, POINTER, POINTER, *[LONG] * 7, POINTER, INT],
    "sage_event_conv_weight": [*[POINTER] * 3, *[LONG] * 7, POINTER, INT],
    "sage_event_map": [*[POINTER] * 4, *[LONG] * 3, INT, LONG, POINTER, INT],
    "sage_event_map_weight": [*[POINTER] * 3, *[LONG] * 4, POINTER, INT],
    "sage_pack_bits": [POINTER, INT, WORD, LONG, POINTER, INT],
    "sage_unpack_bits": [POINTER, LONG, POINTER, INT],
    "sage_fire": [POINTER, LONG, POINTER, INT, LONG, LONG, *MEMBRANE, INT],
    "sage_count": [POINTER, LONG, INT, POINTER, INT],
    "sage_whole_size": [LONG, LONG, LONG],
    "sage_whole_pack": [POINTER, LONG, LONG, LONG, POINTER],
    "sage_whole_conv": [*[POINTER] * 4, *[LONG] * 7, POINTER, INT],
    "sage_whole_map": [*[POINTER] * 4, *[LONG] * 4, POINTER, INT],
    "sage_mix": [*[POINTER] * 3, *[LONG] * 4, DOUBLE, POINTER, INT],
    "sage_mix_backward": [*[POINTER] * 4, INT, *[LONG] * 4, DOUBLE, *[POINTER] * 3, INT],
    "sage_pool_counts": [POINTER, *[LONG] * 4, POINTER, INT],
}
_RESULTS: dict[str, Any] = {
    "sage_attention": INT,
    "sage_pack_bits": INT,
    "sage_count": INT,
    "sage_whole_size": LONG,
    "sage_event_size": LONG,
} | {
    f"sage_{name}": INT
    for name in (
        *("event_pack", "event_conv", "event_conv_weight", "event_map", "event_map_weight"),
        *("whole_conv", "whole_map", "mix", "mix_backward"),
    )
}
# A third of the overhead of torch.library.custom_op at every call; autograd is in the Functions that call them.
_OPERATORS = torch.library.Library("sage_snn", "FRAGMENT")
_on_cpu: dict[str, Callable[..., Any]] = {}
_functions: dict[tuple[ctypes.CDLL, str, torch.dtype | None], Callable[..., Any]] = {}


def function(name: str, dtype: torch.dtype | None = None) -> Callable[..., Any]:
    """Entry point `name` for tensors of `dtype`; only where `native.is_available()`."""
    library = native.library()
    assert library is not None
    try:
        return _functions[library, name, dtype]
    except KeyError:
        entry = getattr(library, f"{name}_{SUFFIX[dtype]}" if dtype else name)
        entry.argtypes, entry.restype = _ARGUMENTS[name], _RESULTS.get(name)
        return _functions.setdefault((library, name, dtype), entry)


def pointer(tensor: Tensor | None) -> int | None:
    """Address of the first value; None for no tensor."""
    return None if tensor is None else tensor.data_ptr()


def memory_order(tensor: Tensor) -> list[int]:
    """Axes from the slowest to the fastest in memory: permuted so, a tensor without gaps is contiguous."""
    strides = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda axis: -strides[axis])


def inverse(order: list[int]) -> list[int]:
    """The permutation that undoes this one."""
    return sorted(range(len(order)), key=order.__getitem__)


def register(schema: str, run: Callable[..., Any] | None, fake: Callable[..., Any], home: str | None = None) -> None:
    """Give torch the operator `sage_snn::...`: `run` on the CPU if it has it, and what a graph capture runs instead.

    On GPUs, and on CPUs with the interpreter, runs the function of the same name in `gpu/{home}.py`, if there is one.
    """
    name = schema.partition("(")[0]

    def on_device(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(f".gpu.{home}", __package__), name)(*arguments, **options)

    _define(schema, name, fake)
    on_cpu = on_device if home is not None and is_interpreting() else run
    if on_cpu is not None:
        _on_cpu[name] = on_cpu
        _OPERATORS.impl(name, on_cpu, "CPU")  # pyright: ignore[reportUnknownMemberType]
    if home is not None:
        _OPERATORS.impl(name, on_device, "CUDA")  # pyright: ignore[reportUnknownMemberType]


def operator(name: str, x: Tensor) -> Callable[..., Any]:
    """The operator `sage_snn::name` for a tensor like x, below autograd.

    On a CPU what it runs, where nobody looks at operators (a compiler, a profiler, whoever counts): torch takes as long
    to hand over a call with many options as a small kernel for its work.
    """
    is_seen = torch.compiler.is_compiling() or has_dispatch_mode() or is_profiling()
    if is_seen or x.device.type != "cpu" or type(x) not in (Tensor, nn.Parameter):
        return getattr(torch.ops.sage_snn, name)
    return _on_cpu[name]


def register_everywhere(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Give torch an operator of tensors without gradients that finds its way on every device by itself."""
    name = schema.partition("(")[0]
    _define(schema, name, fake)
    _OPERATORS.impl(name, run, "CompositeExplicitAutograd")  # pyright: ignore[reportUnknownMemberType]


def _define(schema: str, name: str, fake: Callable[..., Any]) -> None:
    _OPERATORS.define(schema)  # pyright: ignore[reportUnknownMemberType]
    torch.library.register_fake(f"sage_snn::{name}", fake, lib=_OPERATORS)  # pyright: ignore[reportUnknownMemberType]
