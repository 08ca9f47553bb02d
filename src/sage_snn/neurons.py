"""An LIF node that is a SpikingJelly LIF node and whose surrogate slope may be a tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from spikingjelly.activation_based import neuron, surrogate
from torch import Tensor, nn

from .kernels import native
from .kernels.lif import Membrane, lif
from .kernels.norm_lif import batch_norm_lif
from .surrogate import SHAPES, Slope

FUSED_SHAPES = ("Sigmoid", "ATan")


def surrogate_shape(node: nn.Module) -> str | None:
    """Name of the node's surrogate if it is one of SpikingJelly's own that we know with a tensor slope, else None."""
    function = getattr(node, "surrogate_function", None)
    known = type(function).__module__ == surrogate.__name__ and type(function).__name__ in SHAPES
    return type(function).__name__ if known and getattr(function, "spiking", True) else None


class LIFNode(neuron.LIFNode):
    """SpikingJelly's LIFNode with its own surrogate object, float32 membranes under autocast, and a tensor slope.

    `slope` is None (the surrogate's own alpha), or what a policy put there. `carry_state=False` starts every
    multi-step call from rest and keeps nothing afterwards, so that nobody has to call `reset_net`.
    """

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
        self.carry_state = carry_state
        self.slope: Slope | None = None

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

    def multi_step_forward(self, x_seq: Tensor, *args: Any, norm: Any = None, **kwargs: Any) -> Any:
        """Spikes (T, ...) of the currents (T, ...), or of `norm(currents)` in one kernel: see `why_not_fused`."""
        if norm is not None:
            spikes = batch_norm_lif(norm, x_seq.flatten(0, 1), *self._constants(), len(x_seq), self._shape)
            return spikes.unflatten(0, (len(x_seq), -1))
        if self.store_v_seq and self.slope is not None:
            with self._slope_step_by_step(self.slope, len(x_seq)):
                spikes = super().multi_step_forward(x_seq, *args, **kwargs)
        else:
            spikes = super().multi_step_forward(x_seq, *args, **kwargs)
        if not self.carry_state:
            self._memories["v"] = self._rest
        return spikes

    def why_not_fused(self, norm: nn.Module, x: Tensor | None = None) -> str | None:
        """None if this node may normalise its currents itself, from rest and in one kernel; else the reason."""
        if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d):
            return f"{type(norm).__name__} is not a plain BatchNorm"
        if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks:
            return "the BatchNorm has hooks"
        if type(self).multi_step_functional_forward is not LIFNode.multi_step_functional_forward:
            return f"{type(self).__name__} has a forward pass of its own"
        if self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks or self._shows_inputs:
            return "hooks on the node ask for its inputs"
        if self.carry_state or self.store_v_seq or self.step_mode != "m":
            return "the node keeps its membrane"
        if surrogate_shape(self) not in FUSED_SHAPES:
            return "the kernel lacks the surrogate's shape"
        if x is not None and x.device.type != "cpu":
            return "the kernel is for CPUs"
        return None if native.is_available() else native.status()

    @contextmanager
    def _slope_step_by_step(self, slope: Slope, steps: int) -> Iterator[None]:
        """To store membranes, SpikingJelly asks for one step after the other: each gets its own slope."""
        each = iter(slope().expand(steps))
        self.slope = lambda: next(each)
        try:
            yield
        finally:
            self.slope = slope

    @property
    def _shows_inputs(self) -> bool:
        return not all(getattr(hook, "reads_output_only", False) for hook in self._forward_hooks.values())

    @property
    def _rest(self) -> float:
        return 0.0 if self.v_reset is None else self.v_reset

    def _uses_spikingjelly(self, x: Tensor) -> bool:
        """Its registered op is the fast path on a GPU; foreign surrogates run through its reference loop."""
        return self.slope is None and (x.is_cuda or surrogate_shape(self) is None)

    def _fire(self, x_seq: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        slope, membrane = self._constants()
        x_seq = x_seq if x_seq.is_floating_point() else x_seq.to(v.dtype)  # events are counted in whole numbers
        return lif(x_seq, v, slope, membrane, self._shape)

    @property
    def _shape(self) -> str:
        shape = surrogate_shape(self)
        assert shape is not None, "a policy gives a slope only to nodes whose surrogate shape is known"
        return shape

    def _constants(self) -> tuple[Tensor, Membrane]:
        alpha: Any = self.surrogate_function.alpha
        # A graph captured in eval mode is for deployment: no policy's tensor may become a constant of it.
        captured = torch.compiler.is_compiling() and not self.training
        slope = torch.tensor(float(alpha), dtype=torch.float64) if self.slope is None or captured else self.slope()
        return slope, Membrane(self.tau, self.v_threshold, self.v_reset, self.decay_input, self.detach_reset)


@contextmanager
def spikingjelly_nodes(network: nn.Module) -> Iterator[nn.Module]:
    """Inside, the network's nodes are plain SpikingJelly ones: its NIR export looks nodes up by exact type."""
    nodes: list[Any] = [node for node in network.modules() if type(node) is LIFNode]
    for node in nodes:
        node.__class__ = neuron.LIFNode
    try:
        yield network
    finally:
        for node in nodes:
            node.__class__ = LIFNode
