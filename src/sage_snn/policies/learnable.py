"""Slopes trained with the weights."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..compat import precise
from ..control import Group, group_nodes, owners
from ..surrogate import LearntSlope, log_slope
from .policy import BASE, Policy, chosen_groups, chosen_nodes, device_of, ranks, time_steps_of


class Learnable(Policy):
    """Trainable slopes, positive by construction: one for all nodes, or one per block, layer or time step.

    Choice: decision 18, for the slope's gradient the spike counts as the smooth function that the surrogate is the
    derivative of. "block" trains the blocks' nodes; the others train all nodes, the stem's included, unless groups are
    named.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        per: "network" (one slope), "block", "layer" or "time" (one for each).
        slope: where it starts, for a node whose own slope is 4; another gets the same share of its own.
        blocks: the groups whose nodes are meant; by default all nodes, or, per "block", the attention blocks (all
            layers without attention).
        groups: the same by its general name; pass one of the two.
        time_steps: T, where the model does not say it.
    """

    def __init__(
        self,
        model: nn.Module,
        per: Literal["network", "block", "layer", "time"] = "network",
        *,
        slope: float = BASE,
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
        time_steps: int | None = None,
    ) -> None:
        if per not in ("network", "block", "layer", "time"):
            raise ValueError(f"per must be 'network', 'block', 'layer' or 'time', not {per!r}")
        every = chosen_nodes(model, blocks, groups)
        groups = chosen_groups(model, blocks, groups)
        nodes = group_nodes(groups) if per == "block" else every
        steps = (time_steps or time_steps_of(model)) if per == "time" else None
        count = {"network": 1, "time": 1, "block": len(groups), "layer": len(nodes)}[per]
        parameters = [log_slope(slope, steps) for _ in range(count)]
        super().__init__(model, nodes, groups)
        try:
            self._nodes.require_shapes(every_step=per == "time")
        except ValueError:
            self.remove()
            raise
        self.per = per
        self._parameters = [nn.Parameter(p.to(device_of(model))) for p in parameters]
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(_average_gradient)
        owner = owners(groups, nodes) if per == "block" else [i if per == "layer" else 0 for i in range(len(nodes))]
        self._of_node = [self._parameters[i] for i in owner]
        ratios = [base / BASE for base in self._nodes.bases]
        self._put([LearntSlope(p, r) for p, r in zip(self._of_node, ratios, strict=True)])

    def _put(self, slopes: list[LearntSlope]) -> None:
        self._nodes.learn(slopes)

    @property
    def slopes(self) -> Tensor:
        """Mean slope of each block's nodes."""
        of = {id(node): p for node, p in zip(self._nodes.nodes, self._of_node, strict=True)}
        means = [torch.stack([of[id(n)].detach().exp().mean() for n in g.neurons]).mean() for g in self.groups]
        return torch.stack(means).to(precise(means[0].device))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Logarithms of the slopes."""
        return iter(self._parameters)

    @property
    def _why_not_captured(self) -> str:
        return "its parameters are not the model's, and get no gradient there; learn slopes without a graph"

    def state_dict(self) -> dict[str, Any]:
        """The logarithms besides what every policy has."""
        return super().state_dict() | {"per": self.per, "log_slopes": [p.detach().clone() for p in self._parameters]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the logarithms in place, so that the optimizer keeps its parameters."""
        super().load_state_dict(state)
        if state["per"] != self.per:
            raise ValueError(f"this state is of Learnable(per={state['per']!r}), here it is per={self.per!r}")
        shapes = [[tuple(p.shape) for p in side] for side in (state["log_slopes"], self._parameters)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"this state has slopes of shapes {shapes[0]}, here they are {shapes[1]}: same T and blocks?"
            )
        with torch.no_grad():
            for mine, saved in zip(self._parameters, state["log_slopes"], strict=True):
                mine.copy_(saved)


def _average_gradient(parameter: Tensor) -> None:
    """The policy's parameters are outside DDP's reach."""
    if ranks() > 1 and parameter.grad is not None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks()
