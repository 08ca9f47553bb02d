"""MPD-AGL: a surrogate as wide as the membranes are spread, known from the normalisation before them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import precise, sent
from ..control import Group, find_groups, find_norms, gain_of, group_nodes, nodes_of, unwrapped
from ..surrogate import slope_of_width
from .per_node import PerNode
from .policy import named_groups, time_steps_of

NARROWEST = 0.01  # the slope of a layer whose normalisation has shrunk to nothing stays finite


class MPD_AGL(PerNode):  # noqa: N801 (its published name)
    """Membrane potential distribution-aware surrogates (Jiang et al., 2025): the width follows the normalisation.

    A rectangle as wide as two deviations of the membrane: `2 * gain` in the first time step, `sqrt(1 + decay^2)` times
    that in later ones; `gain` is the mean of |weight| of the BatchNorm before the node (times the threshold in tdBN),
    `decay` what the membrane keeps. A node of another shape gets the slope that makes it as high as that rectangle.
    All nodes with a BatchNorm directly before them, or those of the groups that are named.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        blocks: the groups whose nodes are meant, in place of all nodes.
        groups: the same by its general name; pass one of the two.
        time_steps: T, where the model does not say it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
        time_steps: int | None = None,
    ) -> None:
        norms, named = find_norms(model), named_groups(blocks, groups)
        nodes = [node for node in nodes_of(model) if node in norms] if named is None else group_nodes(named)
        _require_norms(model, nodes, norms)
        self.time_steps = time_steps or time_steps_of(model)
        self._norms = [norms[node] for node in nodes]
        self._left_alone = len(nodes_of(model)) - len(nodes)
        chosen = [g for g in (find_groups(model) if named is None else named) if any(n in norms for n in g.neurons)]
        super().__init__(model, nodes, chosen, time_steps=self.time_steps)
        self._update()

    @torch.no_grad()
    def step(self) -> None:
        """Follow the normalisation as the optimizer has left it."""
        super().step()
        self._update()

    def _update(self) -> None:
        gains = [sent(gain_of(norm), self._device) for norm in self._norms]  # one without weights has it on the host
        each = zip(self._nodes.nodes, gains, self._nodes.shapes(), strict=True)
        slopes = [slope_of_width(widths(gain, _decay(node), self.time_steps), shape) for node, gain, shape in each]
        self._write(torch.stack(slopes).to(self._bases))

    def describe(self) -> str:
        """The rule, and what is left alone, besides what every policy tells."""
        alone = f"; {self._left_alone} others keep their own" if self._left_alone else ""
        rule = f"slopes of {len(self._norms)} nodes, one per time step, from the weights of the BatchNorm before each"
        return f"{super().describe()}\n  {rule}{alone}"

    def _relative_slopes(self) -> list[str]:
        return []  # heights, whatever the base


def widths(gain: Tensor, decay: float | Tensor, steps: int) -> Tensor:
    """Of the rectangle, in each time step (T,)."""
    first = (2 * gain.to(precise(gain.device))).clamp_min(NARROWEST)
    later = first * (1 + decay * decay) ** 0.5
    return torch.stack([first, *[later.to(first)] * (steps - 1)])


def _decay(node: Any) -> float | Tensor:
    constant = getattr(node, "time_constant", None)
    return 1 - 1 / (node.tau if constant is None else constant.detach())


def _require_norms(model: nn.Module, nodes: Sequence[nn.Module], norms: dict[nn.Module, Any]) -> None:
    if not nodes:
        raise ValueError(
            f"no BatchNorm stands directly before a spiking node in {type(unwrapped(model)).__name__}: MPD_AGL takes "
            "its widths from it; build the network with one (norm=batch_norm), or use another policy"
        )
    names = {id(module): name for name, module in model.named_modules()}
    bare = [names.get(id(node), type(node).__name__) for node in nodes if node not in norms]
    if bare:
        raise ValueError(f"no BatchNorm stands directly before {', '.join(bare)}; leave such nodes out of groups=")
