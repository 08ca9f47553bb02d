"""Thresholds and time constants that are trained with the weights."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..compat import precise
from ..control import Group, group_nodes, owners, require_open
from .policy import BASE, Policy, chosen_groups, chosen_nodes

Target = Literal["threshold", "time_constant"]
BUILT_AS = {"threshold": "v_threshold", "time_constant": "tau"}  # names of SpikingJelly's


class LearnableConstants(Policy):
    """Makes a constant of every node a parameter of the network: the threshold, or the membrane's time constant.

    One per node (`per="layer"`) or per group of nodes that start alike (`per="group"`). They are in the network's
    parameters and state dict, so build the optimizer (and DDP) after this; `parameters()` is empty. Changes the
    forward pass, and stays with the network after `remove()`. `step()` keeps thresholds above a tenth of their start
    and time constants at 1, no memory, or more. Slopes stay as they are.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        target: "threshold" or "time_constant".
        per: "layer" or "group".
        blocks: the groups whose nodes are meant, in place of all nodes.
        groups: the same by its general name; pass one of the two.
    """

    def __init__(
        self,
        model: nn.Module,
        target: Target = "threshold",
        *,
        per: Literal["layer", "group"] = "layer",
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        if target not in BUILT_AS:
            raise ValueError(f"target must be 'threshold' or 'time_constant', not {target!r}; slopes: Learnable(model)")
        if per not in ("layer", "group"):
            raise ValueError(f"per must be 'layer' or 'group', not {per!r}")
        _refuse_wrapped(model)
        every = chosen_nodes(model, blocks, groups)
        groups = chosen_groups(model, blocks, groups)
        nodes = group_nodes(groups) if per == "group" else every
        require_open(nodes, f"its {target}")
        owner = owners(groups, nodes) if per == "group" else list(range(len(nodes)))
        starts = _starts(nodes, owner, target, groups)
        super().__init__(model, nodes, groups)
        self.target, self.per = target, per
        like = next(model.parameters())
        self._trained = {i: nn.Parameter(start.to(like)) for i, start in starts.items()}
        for node, i in zip(self._open_nodes, owner, strict=True):
            kept = {"threshold": node.threshold, "time_constant": node.time_constant}
            node.set_constants(**(kept | {target: self._trained[i]}))
        self._lowest = 1.0 if target == "time_constant" else 0.1 * min(n.v_threshold for n in self._open_nodes)

    @property
    def slopes(self) -> Tensor:
        """The base of each group: they are not touched."""
        return torch.full((len(self.groups),), BASE, dtype=precise("cpu"))

    @property
    def values(self) -> list[Tensor]:
        """The constant of each node, or of each group, as it is now."""
        return [value.detach().clone() for value in self._trained.values()]

    @torch.no_grad()
    def step(self) -> None:
        """Keep the constants in their bounds."""
        super().step()
        for value in self._trained.values():
            value.clamp_(min=self._lowest)

    def state_dict(self) -> dict[str, Any]:
        """What is trained besides what every policy has; the values are in the network's state dict."""
        return super().state_dict() | {"target": self.target, "per": self.per}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore: the state must be of the same constants."""
        super().load_state_dict(state)
        saved, mine = (state["target"], state["per"]), (self.target, self.per)
        if saved != mine:
            raise ValueError(f"this state is of a {saved[0]} per {saved[1]}, here it is a {mine[0]} per {mine[1]}")

    def describe(self) -> str:
        """The values, and that the forward pass changes, besides what every policy tells."""
        told = ", ".join(" ".join(f"{x:.3g}" for x in value.flatten()) for value in self.values)
        lines = [super().describe(), f"  {self.target} per {self.per}: {told}"]
        return "\n".join([*lines, *(f"  {line}" for line in self.remarks(0))])

    def remarks(self, steps: int) -> list[str]:
        """That the deployed network differs."""
        constants = "thresholds" if self.target == "threshold" else "time constants"
        kept = f"the {constants} are parameters of the network and stay with it"
        return [f"changes the forward pass: {kept}, so the deployed network differs"]

    @property
    def _open_nodes(self) -> list[Any]:
        return self._nodes.nodes


def _starts(nodes: Sequence[Any], owner: list[int], target: str, groups: Sequence[Group]) -> dict[int, Tensor]:
    """Where each constant starts: where an earlier training left it, or as the node was built."""
    starts: dict[int, Tensor] = {}
    for node, i in zip(nodes, owner, strict=True):
        left = getattr(node, target)
        start = torch.tensor(float(getattr(node, BUILT_AS[target]))) if left is None else left.detach().clone()
        if i in starts and not torch.equal(starts[i], start):
            raise ValueError(
                f"nodes of {groups[i].name} start with {starts[i].tolist()} and {start.tolist()}, so they cannot share "
                f"a {target}; pass per='layer', or groups= of nodes that start alike"
            )
        starts.setdefault(i, start)
    return starts


def _refuse_wrapped(model: nn.Module) -> None:
    if type(model).__name__ == "DistributedDataParallel":
        raise ValueError("DDP knows the parameters that it was given: attach LearnableConstants before wrapping in it")
