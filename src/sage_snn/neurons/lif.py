"""An LIF node that is a SpikingJelly LIF node and whose surrogate slope may be a tensor."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from spikingjelly.activation_based import neuron, surrogate
from torch import Tensor, nn

from ..compat import forward_hooks, has_input_hooks, is_capturing, may_be_captured, memories, precise
from ..kernels.calls import SHAPE_CODES
from ..kernels.lif import lif
from ..kernels.membrane import UNWATCHED, Membrane, Watch
from ..kernels.native import is_switched_off
from ..kernels.slopes import extents, steps_of
from ..replay import Starts
from ..surrogate import SHAPES, OwnSlope, Slope

CONSTANTS = ("threshold", "time_constant")


def surrogate_shape(node: nn.Module) -> str | None:
    """Name of the node's surrogate if it is one of SpikingJelly's own that we know with a tensor slope, else None."""
    function = getattr(node, "surrogate_function", None)
    known = type(function).__module__ == surrogate.__name__ and type(function).__name__ in SHAPES
    return type(function).__name__ if known and getattr(function, "spiking", True) else None


class LIFNode(neuron.LIFNode):
    """SpikingJelly's LIFNode with its own surrogate object, float32 membranes under autocast, and a tensor slope.

    `carry_state=False` starts every multi-step call from rest and keeps nothing afterwards, so that nobody has to call
    `reset_net`. What a policy may put on a node (T time steps, B batch, C channels, N positions):

    - `slope`: None (the surrogate's own alpha), or a callable that gives (), (T,), or (t, b, c, n), each 1 or full, to
      broadcast over the currents. If it has a method `begin`, that is called with (T, B, C, N) instead.
    - `threshold` () or (T,) and `time_constant` (), by `set_constants`: part of the network and of its state dict, in
      place of `v_threshold` and `tau`. None where there are none.
    - `membranes`: None, or a callable that is given (T, 4) by every pass in training mode: per step the count, the sum
      and the sum of squares of charged membrane - threshold, and how many are nearer than `near`. In single-step mode
      (1, 4) at every step.
    - `gradients`: None, or a leaf (2,) that wants a gradient, not a Parameter. Every backward pass adds to its `.grad`
      the sums of squares of the gradients of spikes and of currents.

    Args:
        tau: time constant of the membrane, in steps.
        decay_input: divide the current by `tau` too.
        v_threshold: where it fires.
        v_reset: where it falls to after a spike; None: by the threshold.
        surrogate_function: SpikingJelly's; by default a `Sigmoid` of its own, slope 4.
        detach_reset: no gradient through the reset.
        step_mode: "s" a step at a time, "m" (T, B, ...) at once.
        store_v_seq: keep the membranes of all steps in `v_seq`.
        carry_state: from one multi-step call to the next.
    """

    threshold: Tensor | None
    time_constant: Tensor | None
    own_slope: OwnSlope | None = None  # where graphs may be captured, from the first pass on
    _steps: Iterator[tuple[Tensor, Membrane, str]] | None = None

    def __init__(
        self,
        tau: float = 2.0,
        decay_input: bool = True,
        v_threshold: float = 1.0,
        v_reset: float | None = 0.0,
        surrogate_function: nn.Module | None = None,
        detach_reset: bool = False,
        step_mode: str = "s",
        store_v_seq: bool = False,
        *,
        carry_state: bool = True,
    ) -> None:
        # SpikingJelly's default argument is one object for every node of the process; each of ours has its own.
        function: Any = surrogate.Sigmoid() if surrogate_function is None else surrogate_function
        super().__init__(tau, decay_input, v_threshold, v_reset, function, detach_reset, step_mode, store_v_seq)
        self.equip(carry_state=carry_state)

    def equip(self, *, carry_state: bool) -> None:
        """Attributes that SpikingJelly's node has not."""
        self.carry_state = carry_state
        self.slope: Slope | None = None
        self.membranes: Callable[[Tensor], object] | None = None
        self.near = 0.5
        self.gradients: Tensor | None = None
        self.starts = Starts()
        self.register_buffer("threshold", None)
        self.register_buffer("time_constant", None)
        self.register_load_state_dict_pre_hook(_bring_constants)

    def set_constants(self, threshold: Tensor | None = None, time_constant: Tensor | None = None) -> None:
        """Let tensors take the place of `v_threshold` and `tau`, as parameters if they are; None gives those back."""
        if (threshold is not None or time_constant is not None) and surrogate_shape(self) is None:
            kind = type(self.surrogate_function).__name__
            raise ValueError(
                f"a node with {kind} runs in SpikingJelly's loop, which takes numbers for constants; "
                f"give it one of the surrogates {', '.join(SHAPES)}"
            )
        _require_constant("threshold", threshold, least=0.0, most_axes=1)
        _require_constant("time_constant", time_constant, least=1.0, most_axes=0)
        for name, value in zip(CONSTANTS, (threshold, time_constant), strict=True):
            delattr(self, name)
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    @property
    def constants(self) -> tuple[float | list[float], float]:
        """Threshold, or one per time step, and time constant, as numbers."""
        threshold: Any = self.v_threshold if self.threshold is None else self.threshold.tolist()
        return threshold, self.tau if self.time_constant is None else self.time_constant.item()

    def __init_subclass__(cls) -> None:
        unheard = [name for name in ("neuronal_charge", "neuronal_fire", "neuronal_reset") if name in cls.__dict__]
        if unheard:
            raise TypeError(
                f"{cls.__name__}.{unheard[0]} would never be called: override single_step_functional_forward and "
                "multi_step_functional_forward, or derive from SpikingJelly's LIFNode, which policies control too"
            )

    def materialize_states(self, inputs: tuple[Any, ...], states: tuple[Any, ...], step_mode: str) -> tuple[Any, ...]:
        """Membrane to start from, never in half precision."""
        x = inputs[0][0] if step_mode == "m" else inputs[0]
        v, dtype = states[0], torch.promote_types(x.dtype, torch.float32)
        if isinstance(v, Tensor) and v.shape == x.shape and (self.carry_state or step_mode == "s"):
            return (v.to(dtype=dtype, device=x.device), *states[1:])
        return (x.new_full(x.shape, self._rest, dtype=dtype), *states[1:])

    def single_step_functional_forward(
        self, inputs: tuple[Any, ...], states: tuple[Any, ...], **kwargs: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """One time step."""
        if self._uses_spikingjelly(inputs[0]):
            outputs, states = super().single_step_functional_forward(inputs, states, **kwargs)
            return (outputs[0].to(inputs[0].dtype),), states  # its loop gives spikes in the membrane's precision
        spikes, v = self._fire(inputs[0].unsqueeze(0), states[0])
        return (spikes[0],), (v, *states[1:])

    def multi_step_functional_forward(
        self, inputs: tuple[Any, ...], states: tuple[Any, ...], **kwargs: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """All time steps at once."""
        if self._uses_spikingjelly(inputs[0]):
            outputs, states = super().multi_step_functional_forward(inputs, states, **kwargs)
            return (outputs[0].to(inputs[0].dtype),), states  # its loop gives spikes in the membrane's precision
        spikes, v = self._fire(inputs[0], states[0])
        return (spikes,), (v, *states[1:])

    def single_step_forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Spikes (...) of the currents (...) of one time step."""
        self._begin()
        return super().single_step_forward(x, *args, **kwargs)

    def reset(self) -> None:
        """Back to rest."""
        super().reset()
        self.starts.clear()

    def _begin(self) -> None:
        """A pass that activation checkpointing runs again begins with the membrane that it began with at first."""
        if (self.carry_state or self.step_mode == "s") and not torch.compiler.is_compiling():
            self.v = self.starts.begin(self.v, training=self.training, every_step=self.step_mode == "s")

    def multi_step_forward(self, x_seq: Tensor, *args: Any, fired: bool = False, **kwargs: Any) -> Any:
        """Spikes (T, ...) of the currents (T, ...).

        `fired`: x_seq are spikes that a layer's kernel made in this node's place; they pass, so that hooks see them.
        """
        if fired:
            return x_seq
        self._begin()
        if self.store_v_seq and not self._uses_spikingjelly(x_seq):
            with self._step_by_step(x_seq):
                spikes = super().multi_step_forward(x_seq, *args, **kwargs)
        else:
            spikes = super().multi_step_forward(x_seq, *args, **kwargs)
        if not self.carry_state:
            memories(self)["v"] = self._rest
        return spikes

    def why_not_fused(self) -> str | None:
        """None if a kernel may do this node's work together with the normalisation before it; else the reason."""
        if type(self).multi_step_functional_forward is not LIFNode.multi_step_functional_forward:
            return f"{type(self).__name__} has a forward pass of its own"
        if has_input_hooks(self) or not all(getattr(h, "reads_output_only", False) for h in forward_hooks(self)):
            return "hooks on the node ask for its inputs"
        if self.carry_state or self.store_v_seq or self.step_mode != "m":
            return "the node keeps its membrane"
        if surrogate_shape(self) not in SHAPE_CODES:
            return "the kernel lacks the surrogate's shape"
        return None

    def dynamics(self, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Membrane, str]:
        """Slope, constants and surrogate shape, for a pass over currents x of the sizes (T, B, C, ...)."""
        shape = surrogate_shape(self)
        assert shape is not None, "a policy gives a slope only to nodes whose surrogate shape is known"
        # A graph captured in eval mode is for deployment: no policy's tensor may become a constant of it.
        captured = torch.compiler.is_compiling() and not self.training
        own = self.slope is None or captured
        slope = self._slope_of_its_own(x) if own else self._given_slope(sizes)
        return slope, self.membrane(x.device), shape

    def _slope_of_its_own(self, x: Tensor) -> Tensor:
        alpha = float(self.surrogate_function.alpha)  # pyright: ignore[reportArgumentType]
        if may_be_captured(x):
            held = self.own_slope
            if held is not None and held.tensor.device == x.device:
                held.rest(alpha)
                return held()
            # Not in the middle of a capture: replays would fill it again. Whoever captures has made a pass before.
            if not is_capturing(x):
                self.own_slope = OwnSlope(alpha, x.device)
                return self.own_slope()
        return torch.full((), alpha, dtype=precise(x.device), device=x.device)  # a copy would wait for the device

    def _given_slope(self, sizes: Sequence[int]) -> Tensor:
        slope: Any = self.slope
        return slope.begin(extents(sizes)) if hasattr(slope, "begin") else slope()

    def membrane(self, device: torch.device) -> Membrane:
        """Constants of a pass on a device."""
        # Copies: backward uses the constants that its forward pass had, whenever a policy writes the next ones.
        threshold = self.v_threshold if self.threshold is None else self.threshold.to(device=device, copy=True)
        tau = self.tau if self.time_constant is None else self.time_constant.to(device=device, copy=True)
        return Membrane(tau, threshold, self.v_reset, self.decay_input, self.detach_reset)

    @property
    def watch(self) -> Watch:
        """What is read of a pass."""
        membranes = self.membranes if self.training else None
        return (
            UNWATCHED if membranes is None and self.gradients is None else Watch(membranes, self.near, self.gradients)
        )

    @contextmanager
    def _step_by_step(self, x_seq: Tensor) -> Iterator[None]:
        """To store membranes, SpikingJelly asks for one step after the other: each gets what belongs to it."""
        slope, membrane, shape = self.dynamics(x_seq, x_seq.shape)
        membranes, seen, steps = self.membranes, list[Tensor](), len(x_seq)
        each = [membrane.at(t, *membrane.tensors) for t in range(steps)]
        self._steps = iter((*now, shape) for now in zip(steps_of(slope, steps), each, strict=True))
        self.membranes = None if membranes is None else seen.append
        try:
            yield
        finally:
            self._steps, self.membranes = None, membranes
        if membranes is not None and seen:
            membranes(torch.cat(seen))

    @property
    def _rest(self) -> float:
        return 0.0 if self.v_reset is None else self.v_reset

    def _uses_spikingjelly(self, x: Tensor) -> bool:
        """Foreign surrogates run through its loop, on CUDA shapes that our kernels lack through its registered op."""
        held = (self.slope, self.threshold, self.time_constant, self.membranes, self.gradients)
        shape = surrogate_shape(self)
        is_faster = x.is_cuda and torch.version.hip is None and shape not in SHAPE_CODES and not is_switched_off()
        return all(value is None for value in held) and (shape is None or is_faster)

    def _fire(self, x_seq: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        x_seq = x_seq if x_seq.is_floating_point() else x_seq.to(v.dtype)  # events are counted in whole numbers
        dynamics = self.dynamics(x_seq, x_seq.shape) if self._steps is None else next(self._steps)
        return lif(x_seq, v, *dynamics, self.watch)


def _bring_constants(node: LIFNode, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """A state dict brings constants with it where the node has none."""
    own = {name: getattr(node, name) for name in CONSTANTS}
    missing = [name for name in CONSTANTS if own[name] is None and prefix + name in state_dict]
    if missing:
        node.set_constants(**own | {name: state_dict[prefix + name].detach().clone() for name in missing})


def _require_constant(name: str, value: Tensor | None, *, least: float, most_axes: int) -> None:
    if value is None:
        return
    if value.ndim > most_axes or not value.numel() or not value.is_floating_point():
        shapes = "() or (T,)" if most_axes else "()"
        raise ValueError(f"a {name} is a floating-point tensor {shapes}, not {tuple(value.shape)} of {value.dtype}")
    if not (value.detach() >= least).all():  # NaN too
        raise ValueError(f"a {name} of {value.min().item():.4g} is too small: it must be {least:.4g} or more")


@contextmanager
def spikingjelly_nodes(network: nn.Module) -> Iterator[nn.Module]:
    """Inside, the network's nodes are plain SpikingJelly ones: its NIR export looks nodes up by exact type.

    Constants in tensors are numbers there; a threshold per time step has no such form.
    """
    nodes: list[Any] = [node for node in network.modules() if type(node) is LIFNode]
    numbers = [(node.v_threshold, node.tau) for node in nodes]
    for node in nodes:
        node.v_threshold, node.tau = node.constants
        node.__class__ = neuron.LIFNode
    try:
        yield network
    finally:
        for node, (threshold, tau) in zip(nodes, numbers, strict=True):
            node.__class__ = LIFNode
            node.v_threshold, node.tau = threshold, tau
