"""What torch, SpikingJelly and Lightning do not promise: private names and missing types, in this one place.

Each has a test in tests/test_compat.py, which fails first when a new version of theirs moves it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

WITHOUT_FLOAT64 = ("mps",)  # Apple's


def precise(device: torch.device | str) -> torch.dtype:
    """float64, or float32 on devices that lack it."""
    return torch.float32 if torch.device(device).type in WITHOUT_FLOAT64 else torch.float64


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device: the host goes on at once, and what the device is asked for next finds it."""
    pinned = tensor.pin_memory() if device.type == "cuda" and not tensor.is_cuda else tensor
    # Apple's device may read the host's memory when it is something else already.
    return pinned.to(device, non_blocking=device.type != "mps")


def is_in_backward() -> bool:
    """Does a backward pass run right now? A forward pass inside it is a replay of activation checkpointing."""
    return torch._C._current_graph_task_id() != -1


def packing_hook() -> object | None:
    """The function that is asked what autograd keeps, if there is one."""
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)  # pyright: ignore
    return None if top is None else top[0]


def has_saved_tensor_hooks() -> bool:
    """Is somebody else asked already what autograd keeps (activation checkpointing, offloading)?"""
    return packing_hook() is not None


def has_dispatch_mode() -> bool:
    """Does somebody look at every operation of torch (SpikingJelly's counters, torch's own for FLOPs)?"""
    return torch._C._len_torch_dispatch_stack() > 0  # pyright: ignore[reportPrivateUsage]


def is_profiling() -> bool:
    """Does torch's profiler write down what is called?"""
    return torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def checkpointed_region() -> object | None:
    """What tells one region of (non-reentrant) activation checkpointing from another, or its replay; None outside."""
    hook: Any = packing_hook()
    return hook if hook is not None and hook.__module__ == torch.utils.checkpoint.__name__ else None


def version_of(tensor: Tensor) -> int:
    """How often the tensor was changed in place."""
    return tensor._version


def copy_each(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy every value into its target, in one launch."""
    torch._foreach_copy_(list(targets), list(values))  # pyright: ignore[reportPrivateImportUsage]


def norms(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Euclidean norm of each tensor, in one launch."""
    return tuple(torch._foreach_norm(list(tensors)))  # pyright: ignore[reportPrivateImportUsage]


def precision_of(fabric: Any) -> Any:
    """Lightning's plugin for mixed precision, with `state_dict()` and `load_state_dict()`."""
    return fabric.strategy.precision


def scales_gradients(fabric: Any) -> bool:
    """Does Lightning scale the loss (fp16)? Infinite gradients are then expected, and handled by its scaler."""
    return getattr(precision_of(fabric), "scaler", None) is not None


def forward_hooks(module: nn.Module) -> list[Any]:
    """Hooks that see a module's inputs and outputs."""
    return list(module._forward_hooks.values())


def has_input_hooks(module: nn.Module) -> bool:
    """Has the module hooks that see inputs, or gradients of them?"""
    return bool(module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def memories(module: nn.Module) -> dict[str, Any]:
    """What a SpikingJelly module carries over to the next pass, by name; writable."""
    return module.__dict__.get("_memories", {})


def entries(container: nn.Sequential) -> Mapping[str, nn.Module | None]:
    """The parts of a sequential container by name."""
    return container._modules


def is_graphed(module: nn.Module) -> bool:
    """Was the module captured by torch.cuda.make_graphed_callables?"""
    return "graphed" in getattr(module.__dict__.get("forward"), "__qualname__", "")


def may_be_captured(tensor: Tensor) -> bool:
    """Could what is asked of the tensor's device be recorded in a CUDA graph, now or when it is asked for again?"""
    return tensor.is_cuda and not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled()


def is_capturing(tensor: Tensor) -> bool:
    """Is what is asked of the tensor's device recorded in a CUDA graph at this moment, to be done later?"""
    may_be = tensor.is_cuda and torch.cuda.is_initialized() and not torch.compiler.is_compiling()
    return may_be and torch.cuda.is_current_stream_capturing()


# What the batch normalisations of all dimensions have in common.
AnyBatchNorm = nn.modules.batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage]

# Attribute that holds the network, by the wrapper's name: they need not be imported to be known.
WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "AveragedModel": "module",
    "_FabricModule": "module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
