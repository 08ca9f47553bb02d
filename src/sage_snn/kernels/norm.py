"""Batch normalisation: what its operators share, and the one without a neuron, for branches that are added up.

x: (N, C, ...), N images of all time steps. Where channels lie last in memory torch's own normalisation loses digits,
and in the order of the axes x and its gradient would have to be copied; the kernel does neither. Its twin is torch's.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .calls import SUFFIX, function, pointer, register
from .kept import STATISTICS, Kept, Momentum, keeps_on
from .path import TRITON_PRECISIONS, path
from .room import room_like


def batch_norm(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    """What `norm(x)` gives, in the memory order of x; a module that scales it by a constant `factor` is known too."""
    mean, var, options = running_statistics(norm)
    factor = getattr(norm, "factor", None)
    weight = norm.weight if factor is None else norm.weight * factor
    if not x.numel() or not _runs_natively(x):
        # In the order of the axes: torch's own normalisation loses digits where channels lie last.
        return plain_norm(x.contiguous(), mean, var, weight, norm.bias, **options)
    require_channels(x, weight, norm.bias, mean, var)
    training, momentum, eps = options["training"], options["momentum"], options["eps"]
    if training:
        require_several_values(x)
    inputs = x, weight, norm.bias, *((None, None) if training else (mean, var))
    kept = Kept(False, momentum, mean, var) if training and keeps_on(x) else None
    normal, used_mean, used_var = NativeNorm.apply(*inputs, eps, kept)  # pyright: ignore[reportGeneralTypeIssues]
    if training and kept is None:
        keep_statistics(x, used_mean, used_var, mean, var, momentum)
    return normal


def plain_norm(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: Momentum,
    eps: float,
) -> Tensor:
    """torch's own normalisation, whose momentum may be a tensor too."""
    if not isinstance(momentum, Tensor):
        return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    if mean is None or var is None:
        return F.batch_norm(x, mean, var, weight, bias, training, 0.0, eps)
    seen = torch.zeros_like(mean), torch.zeros_like(var)
    normal = F.batch_norm(x, *seen, weight, bias, training, 1.0, eps)  # all of what it moves is what x had
    with torch.no_grad():
        mean.lerp_(seen[0], momentum.to(mean.dtype))
        var.lerp_(seen[1], momentum.to(var.dtype))
    return normal


def _runs_natively(x: Tensor) -> bool:
    """Whether a kernel takes this tensor: the C++ is for channels last in memory only."""
    if path(x) == "Triton":
        return x.dtype in TRITON_PRECISIONS
    return path(x) == "C++" and x.dtype in SUFFIX and is_last(x)


class NativeNorm(torch.autograd.Function):
    """Normalised values, mean and biased variance of each channel; with a mean and a variance given, those are used."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        given_mean: Tensor | None,
        given_var: Tensor | None,
        eps: float,
        kept: Kept | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All of x."""
        if kept is None:
            normal, mean, var = torch.ops.sage_snn.norm(x, weight, bias, given_mean, given_var, eps=eps)
        else:
            inputs = x, weight, bias, *kept.statistics
            normal, mean, var = torch.ops.sage_snn.norm_kept(*inputs, eps=eps, **kept.options)
        ctx.mark_non_differentiable(mean, var)
        ctx.save_for_backward(x, weight, bias, mean, var)
        ctx.eps, ctx.training = eps, given_mean is None
        return normal, mean, var

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, _mean: Tensor, _var: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradients of x, weight and bias."""
        x, weight, bias, mean, var = ctx.saved_tensors
        options = {"eps": ctx.eps, "training": ctx.training}
        grad_x, grad_weight, grad_bias = torch.ops.sage_snn.norm_backward(grad, x, weight, mean, var, **options)
        return (
            grad_x,
            None if weight is None else grad_weight.to(weight.dtype),
            None if bias is None else grad_bias.to(bias.dtype),
            *(None, None, None, None),
        )


def running_statistics(
    norm: nn.BatchNorm1d | nn.BatchNorm2d,
) -> tuple[Tensor | None, Tensor | None, dict[str, Any]]:
    """Mean, variance and options for `F.batch_norm`; counts the batch just as the module's own call does.

    The share of this batch in a mean of all is a tensor where it would have to be read from a device.
    """
    averaging: Momentum = 0.0 if norm.momentum is None else norm.momentum
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        count = norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            averaging = 1.0 / (float(count) if reads_counts(count) else count)
    measures = norm.training or (norm.running_mean is None and norm.running_var is None)
    keeps = not norm.training or norm.track_running_stats
    mean, var = (norm.running_mean, norm.running_var) if keeps else (None, None)
    return mean, var, {"training": measures, "momentum": averaging, "eps": norm.eps}


def reads_counts(count: Tensor) -> bool:
    """Is a number of the host's at hand without waiting?"""
    return count.device.type == "cpu" and path(count) != "Triton"


def keep_statistics(
    x: Tensor, mean: Tensor, var: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: Momentum
) -> None:
    """Move the running statistics, if there are any, towards those that x had; `var` is the biased one."""
    if running_mean is None or running_var is None:
        return
    values = x.numel() // x.shape[1]
    weight: Any = momentum.to(running_mean.dtype) if isinstance(momentum, Tensor) else momentum
    running_mean.lerp_(in_precision(mean, running_mean.dtype), weight)
    running_var.lerp_(in_precision(var * (values / (values - 1)), running_var.dtype), weight)


def require_channels(x: Tensor, *given: Tensor | None) -> None:
    """The kernel reads as many values as x has channels, whatever is there."""
    channels = x.shape[1]
    for tensor in given:
        if tensor is not None and tensor.numel() != channels:
            raise ValueError(
                f"the normalisation is for {tensor.numel()} channels, its input has {channels}: {tuple(x.shape)}"
            )


def require_several_values(x: Tensor) -> None:
    """One value has no variance."""
    if x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")


def require_same_shape(x: Tensor, residual: Tensor | None) -> None:
    """The kernel reads as many values as x has."""
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"a residual {tuple(residual.shape)} cannot be added to currents {tuple(x.shape)}: give it their shape"
        )


def precision(x: Tensor) -> torch.dtype:
    """In which the kernel computes."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def ready(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A value per channel as the kernel reads it; nothing of nothing."""
    return None if tensor is None else in_precision(tensor, dtype).contiguous()


def in_precision(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What a kernel reads, converted if it has to be: not even to ask torch is cheaper."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def is_last(x: Tensor) -> bool:
    """Whether the channels of (T*B, C, ...) lie last in memory."""
    return not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def together(x: Tensor) -> int:
    """How many values of (T*B, C, ...), which is not empty, are neighbours in memory: channels, or positions."""
    positions = x.numel() // (x.shape[0] * x.shape[1])
    return x.shape[1] if positions == 1 or is_last(x) else positions


def values_of(tensor: Tensor, dtype: torch.dtype, last: bool) -> Tensor:
    """The values in this precision, their channels last in memory or not."""
    values = in_precision(tensor, dtype)
    if not last:
        return values.contiguous()
    moved = values.movedim(1, -1)
    return values if moved.is_contiguous() else moved.contiguous().movedim(-1, 1)


def step_sizes(x: Tensor, times: int) -> tuple[int, int, int, int, bool]:
    """T, B, C, positions, and whether channels lie last in memory; x is not empty."""
    if x.shape[0] % times:
        raise ValueError(f"{x.shape[0]} images do not divide into {times} time steps; x must be (T*B, C, ...)")
    return times, x.shape[0] // times, x.shape[1], x.numel() // (x.shape[0] * x.shape[1]), is_last(x)


def _norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dtype, channels = precision(x), x.shape[1]
    values, gain, offset = values_of(x, dtype, last=True), ready(weight, dtype), ready(bias, dtype)
    # New tensors also when given: backward needs them as they are now.
    used = [values.new_empty(channels) if t is None else t.to(dtype, copy=True).contiguous() for t in (mean, var)]
    normal = room_like(values)
    function("sage_norm", dtype)(
        *(values.data_ptr(), pointer(gain), pointer(offset), used[0].data_ptr(), used[1].data_ptr()),
        *(normal.data_ptr(), x.numel() // channels, channels, eps, mean is None, torch.get_num_threads()),
    )
    return normal, used[0], used[1]


def _norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor, *, eps: float, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dtype, channels = precision(x), x.shape[1]
    values, gain, grads = values_of(x, dtype, last=True), ready(weight, dtype), values_of(grad, dtype, last=True)
    grad_x, grad_weight, grad_bias = room_like(values), values.new_empty(channels), values.new_empty(channels)
    function("sage_norm_backward", dtype)(
        *(values.data_ptr(), pointer(gain), mean.data_ptr(), var.data_ptr(), grads.data_ptr()),
        *(grad_x.data_ptr(), grad_weight.data_ptr(), grad_bias.data_ptr()),
        *(x.numel() // channels, channels, eps, training, torch.get_num_threads()),
    )
    return grad_x, grad_weight, grad_bias


def _fake_norm(x: Tensor, *_: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    like, dtype = torch.empty_like(values_of(x, x.dtype, is_last(x))), precision(x)
    return like, x.new_empty(x.shape[1], dtype=dtype), x.new_empty(x.shape[1], dtype=dtype)


def _fake_norm_backward(grad: Tensor, x: Tensor, *_: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_norm(x)


register(
    "norm(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? var, *, float eps) -> (Tensor, Tensor, Tensor)",
    _norm,
    _fake_norm,
    "norm",
)
register(
    f"norm_kept(Tensor x, Tensor? weight, Tensor? bias, {STATISTICS}, *, float momentum, float eps) "
    "-> (Tensor, Tensor, Tensor)",
    None,
    _fake_norm,
    "norm",
)
register(
    "norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor mean, Tensor var, *, float eps, bool training) "
    "-> (Tensor, Tensor, Tensor)",
    _norm_backward,
    _fake_norm_backward,
    "norm",
)
