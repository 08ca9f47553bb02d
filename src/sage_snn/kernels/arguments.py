"""What the operators with an LIF neuron share: schemas, arguments as the C++ takes them, results nobody may ask for."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .calls import SHAPE_CODES, pointer
from .membrane import Membrane
from .path import TRITON_PRECISIONS, path, why_twin
from .slopes import slope_gradient, slope_values

_MEMBRANE = "float tau, float threshold, float? reset, bool decay_input"
_CONSTANTS = "Tensor? thresholds=None, Tensor? time_constant=None"  # in place of the numbers
FORWARD = f"{_MEMBRANE}, {_CONSTANTS}, float? near=None"
BACKWARD = (
    f"{_MEMBRANE}, bool detach_reset, str shape, bool wants_slope, {_CONSTANTS}, "
    "bool wants_constants=False, bool wants_squares=False"
)


def why_not_native(x: Tensor) -> str | None:
    """None if a kernel takes a tensor of this device and precision, else the reason in words."""
    if (reason := why_twin(x)) is not None:
        return reason
    return None if _computes_in(x, path(x)) else f"no kernel on {x.device.type} computes in {x.dtype}"


def runs_natively(x: Tensor, slope: Tensor, shape: str) -> bool:
    """Whether a kernel takes this tensor and surrogate; slopes of neurons that want gradients have them in the twin."""
    learns_each, code = slope.ndim > 1 and slope.requires_grad, path(x)
    return code != "twin" and _computes_in(x, code) and shape in SHAPE_CODES and not learns_each


def _computes_in(x: Tensor, code: str) -> bool:
    return x.dtype in TRITON_PRECISIONS if code == "Triton" else x.is_floating_point()


def wants_gradients(*tensors: Tensor | None) -> bool:
    """Whether autograd has to know what is done to these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def forward_options(
    membrane: Membrane, threshold: Tensor | None, tau: Tensor | None, near: float | None
) -> dict[str, Any]:
    """What forward operators take by name; what is not asked for is left out, which makes the call cheaper."""
    asked = {"thresholds": threshold, "time_constant": tau, "near": near}
    return membrane.options | {name: value for name, value in asked.items() if value is not None}


def backward_options(
    membrane: Membrane, threshold: Tensor | None, tau: Tensor | None, wants_slope: bool, wants: Sequence[bool]
) -> dict[str, Any]:
    """What backward operators take by name, without the surrogate's shape; `wants`: threshold, tau, sums of squares."""
    options = {**membrane.options, "detach_reset": membrane.detach_reset, "wants_slope": wants_slope}
    if threshold is not None or tau is not None:
        options |= {"thresholds": threshold, "time_constant": tau, "wants_constants": wants[0] or wants[1]}
    return options | {"wants_squares": True} if wants[2] else options


def extra_gradients(
    sums: Sequence[Tensor], threshold: Tensor | None, wants: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of threshold and tau, and the sums of squares, from what a backward operator added up."""
    constants, squares = sums
    of_threshold = slope_gradient(constants[:-1], threshold) if wants[0] and threshold is not None else None
    return of_threshold, constants[-1] if wants[1] else None, squares if wants[2] else None


class Constants:
    """Constants of a membrane as the C++ takes them, alive while it reads them; other options are passed over."""

    def __init__(
        self,
        times: int,
        *,
        tau: float,
        threshold: float,
        reset: float | None,
        decay_input: bool,
        detach_reset: bool = False,
        thresholds: Tensor | None = None,
        time_constant: Tensor | None = None,
        **_: Any,
    ) -> None:
        if thresholds is not None and thresholds.ndim == 0:  # a number, for which the loops have no branch
            threshold, thresholds = float(thresholds), None
        tau = tau if time_constant is None else float(time_constant)
        self.numbers = tau, threshold, reset or 0.0, reset is not None, decay_input
        self.detach_reset = detach_reset
        self.thresholds = None if thresholds is None else slope_values(thresholds, times)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Numbers, and where the thresholds are."""
        return *self.numbers, pointer(self.thresholds)


class Sums:
    """Room for what backward adds up, in double precision; other options are passed over."""

    def __init__(
        self, times: int, *, wants_slope: bool, wants_constants: bool = False, wants_squares: bool = False, **_: Any
    ) -> None:
        self.slopes = torch.empty(times, dtype=torch.float64) if wants_slope else None
        self.constants = torch.empty(times + 1, dtype=torch.float64) if wants_constants else None
        self.squares = torch.empty(2, dtype=torch.float64) if wants_squares else None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Where they are."""
        return pointer(self.slopes), pointer(self.constants), pointer(self.squares)

    def results(self, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The slope's gradient in its shape, and the other sums."""
        return slope_gradient(self.slopes, slope), or_nothing(self.constants, slope), or_nothing(self.squares, slope)


def or_nothing(tensor: Tensor | None, like: Tensor) -> Tensor:
    """What an operator gives where nobody asked: an empty tensor on the device of another."""
    return like.new_empty(0, dtype=torch.float64) if tensor is None else tensor


def room_for_moments(x: Tensor, times: int, near: float | None) -> Tensor | None:
    """(T, 4), if somebody asks."""
    return None if near is None else x.new_empty(times, 4, dtype=torch.float64)


def fake_sums(
    slope: Tensor,
    times: int,
    *,
    wants_slope: bool,
    wants_constants: bool = False,
    wants_squares: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Like the results of `Sums`."""
    constants, squares = (
        slope.new_empty(count if wanted else 0, dtype=torch.float64)
        for count, wanted in ((times + 1, wants_constants), (2, wants_squares))
    )
    return slope.new_empty(slope.shape if wants_slope else 0), constants, squares


def fake_moments(x: Tensor, times: int, near: float | None) -> Tensor:
    """Like the moments that a forward operator gives."""
    return x.new_empty(0 if near is None else (times, 4), dtype=torch.float64)
