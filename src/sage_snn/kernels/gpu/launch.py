"""How kernels are launched: on the device of their tensors, and rounding every operation."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from .forms import write_down


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, threads: int = 128, **constants: Any) -> None:
    """Run as many programs as the grid has, where the first argument lies; Triton itself would take the current device.

    No product is fused with a sum: the twins round both.
    """
    first = arguments[0]
    assert isinstance(first, Tensor)
    devices = {t.device for t in (*arguments, *constants.values()) if isinstance(t, Tensor)}
    if len(devices) > 1:
        raise ValueError(f"tensors on {' and '.join(sorted(map(str, devices)))} in one call; move them to one device")
    if first.is_meta:
        write_down(kernel, arguments, constants, threads)
        return
    options = room(kernel, has_scratch=constants.get("scratch") is not None) if _is_nvidias(first.device) else {}
    options["num_warps"] = threads // _together(first.device)
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, **constants, **options, enable_fp_fusion=False)


def room(kernel: Any, *, has_scratch: bool) -> dict[str, int]:
    """Registers that a thread may have, for kernels that need few.

    Left to itself NVIDIA's compiler aims at many programs at a time, and puts a value of some forms into memory for it.
    """
    is_light = kernel.__name__ == "fire_kernel" or (kernel.__name__ == "back_kernel" and has_scratch)
    return {"maxnreg": 168} if is_light else {}


def _is_nvidias(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None


@cache
def _together(device: torch.device) -> int:
    """Threads of a warp: 64 on AMD's accelerators, where half as many warps leave each thread as much to load."""
    if device.type != "cuda":
        return 32
    return torch.cuda.get_device_properties(device).warp_size  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
