"""ASGL: in training, some spikes are replaced by the smooth step that their gradient belongs to."""

from collections.abc import Sequence
from typing import Any

from spikingjelly.activation_based import neuron
from torch import nn

from ..control import Group
from ..neurons import surrogate_shape
from ..surrogate import PRIMITIVES, LearntSlope, Masks, MixedSurrogate
from .learnable import Learnable
from .policy import BASE, chosen_nodes, device_of


class ASGL(Learnable):
    """Adaptive smoothing gradient learning (Wang et al., 2023): spikes mixed with smooth values, slopes per layer.

    In training a neuron gives, with probability `p`, the smooth step of its surrogate in place of its spike; the
    gradient is always that of the smooth step. Slopes are trained as `Learnable(per="layer")` does. In eval mode the
    network spikes. The masks come from a generator of the policy's own, alike on all ranks.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        p: share of the spikes that are smooth in training, 0 to 1.
        slope: where it starts, for a node whose own slope is 4; another gets the same share of its own.
        seed: of the masks.
        blocks: the groups whose nodes are meant, in place of all nodes.
        groups: the same by its general name; pass one of the two.
    """

    def __init__(
        self,
        model: nn.Module,
        p: float = 0.2,  # the authors' letter
        *,
        slope: float = BASE,
        seed: int = 0,
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p is a probability, from 0 (spikes only) to 1 (no spikes), not {p}")
        if p:
            _require_mixable(chosen_nodes(model, blocks, groups))
        self.p, self._masks = p, Masks(p, seed, device_of(model))
        super().__init__(model, "layer", slope=slope, blocks=blocks, groups=groups)

    def _put(self, slopes: list[LearntSlope]) -> None:
        if not self.p:
            return super()._put(slopes)
        each = zip(self._nodes.shapes(), slopes, strict=True)
        return self._nodes.replace(MixedSurrogate(shape, slope, self._masks) for shape, slope in each)

    def state_dict(self) -> dict[str, Any]:
        """p and the state of the generator besides what Learnable has."""
        return super().state_dict() | {"p": self.p, "generator": self._masks.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the masks that come next."""
        if state.get("p", self.p) != self.p:
            raise ValueError(f"this state is of ASGL(p={state['p']}), here it is p={self.p}")
        super().load_state_dict(state)
        self._masks.generator.set_state(state["generator"].cpu())

    def describe(self) -> str:
        """How much is smooth, and when, besides what every policy tells."""
        return "\n".join([super().describe(), *(f"  {line}" for line in self.remarks(0))])

    def remarks(self, steps: int) -> list[str]:
        """That the forward pass differs in training, and in training only."""
        if not self.p:
            return []
        told = f"a share of {self.p:g} of the values is smooth there, none in eval mode and in the deployed network"
        return [f"changes the forward pass in training only: {told}"]


def _require_mixable(nodes: Sequence[nn.Module]) -> None:
    for node in nodes:
        shape, kind = surrogate_shape(node), type(node).__name__
        if shape is not None and shape not in PRIMITIVES:
            raise ValueError(f"{shape} is not the derivative of a step; use one of {', '.join(PRIMITIVES)}")
        if not isinstance(node, neuron.BaseNode):
            raise ValueError(f"{kind} fires by a rule of its own; use a SpikingJelly node or sage_snn.LIFNode")
        if getattr(node, "threshold", None) is not None or getattr(node, "time_constant", None) is not None:
            raise ValueError(
                "the network has thresholds or time constants of its own, which the loop of ASGL does not know; "
                "train it with another policy, or with p=0"
            )
