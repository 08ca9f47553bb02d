"""An LIF node that is a SpikingJelly LIF node and whose surrogate slope may be a tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from spikingjelly.activation_based import neuron, surrogate
from torch import Tensor, nn

from ..compat import forward_hooks, has_input_hooks, memories, precise
from ..kernels.calls import SHAPE_CODES
from ..kernels.lif import Membrane, lif
from ..replay import Starts
from ..surrogate import SHAPES, Slope


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
        self.starts = Starts()

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
        if self.store_v_seq and self.slope is not None:
            with self._slope_step_by_step(self.slope, len(x_seq)):
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

    def dynamics(self, x: Tensor) -> tuple[Tensor, Membrane, str]:
        """Slope, constants of the membrane and surrogate shape, for a pass over currents x."""
        shape = surrogate_shape(self)
        assert shape is not None, "a policy gives a slope only to nodes whose surrogate shape is known"
        alpha: Any = self.surrogate_function.alpha
        # A graph captured in eval mode is for deployment: no policy's tensor may become a constant of it.
        captured = torch.compiler.is_compiling() and not self.training
        slope = torch.tensor(float(alpha), dtype=precise(x.device)) if self.slope is None or captured else self.slope()
        return slope, Membrane(self.tau, self.v_threshold, self.v_reset, self.decay_input, self.detach_reset), shape

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
    def _rest(self) -> float:
        return 0.0 if self.v_reset is None else self.v_reset

    def _uses_spikingjelly(self, x: Tensor) -> bool:
        """Its registered op is the fast path on a GPU; foreign surrogates run through its reference loop."""
        return self.slope is None and (x.is_cuda or surrogate_shape(self) is None)

    def _fire(self, x_seq: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        x_seq = x_seq if x_seq.is_floating_point() else x_seq.to(v.dtype)  # events are counted in whole numbers
        return lif(x_seq, v, *self.dynamics(x_seq))


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
