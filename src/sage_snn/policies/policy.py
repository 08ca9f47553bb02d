"""What all policies share: the nodes they control, who owns them, and how to give them back."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..compat import is_graphed
from ..control import Group, NodeSlopes, code_paths, find_groups, group_nodes, nodes_of
from ..neurons import LIFNode
from ..notebook import html_table

BASE = 4.0  # the slope that everybody uses; policies speak in slopes of a sigmoid with this base
VERSION = 1
LOOK_EVERY = 50  # steps


class _Owner:
    """Who controls a node, noted on the node itself; a copied or unpickled node belongs to nobody."""

    def __init__(self, policy: "Policy | None") -> None:
        self.policy = policy

    def __reduce__(self) -> tuple[Any, ...]:
        return _Owner, (None,)


def policy_of(model: nn.Module) -> "Policy | None":
    """The policy that controls nodes of a model, None if there is none: for when its own reference was lost.

    Args:
        model: a network, or a part of one.
    """
    owners = (module.__dict__.get("_policy") for module in model.modules())
    return next((owner.policy for owner in owners if isinstance(owner, _Owner) and owner.policy is not None), None)


class Policy:
    """A way to decide the slopes of a model during training.

    Args:
        model: the network.
        nodes: of it whose slopes this policy writes.
        groups: what is reported: a slope each.
    """

    needs_batch = False  # does `step` want the batch that was just trained on?
    _has_stepped = False
    shown: ClassVar[tuple[str, ...]] = ("slopes",)  # what a notebook tells of each block

    def __init__(self, model: nn.Module, nodes: Iterable[nn.Module], groups: Sequence[Group]) -> None:
        if not groups:
            raise ValueError("no blocks to control: leave blocks= out to have them found, or name at least one")
        self.groups = list(groups)
        self._model = weakref.ref(model)
        self._nodes = NodeSlopes(nodes)
        if any(policy_of(node) is not None for node in self._nodes.nodes):
            raise RuntimeError(
                f"{type(model).__name__} has a policy already; call remove() on that one before attaching another "
                "(sage_snn.policy_of(model) gives it)"
            )
        self._heed_earlier_capture(model)
        for node in self._nodes.nodes:
            node.__dict__["_policy"] = _Owner(self)
        self._is_attached = True
        self._nodes.restore()  # what a copied or unpickled model kept of its policy

    @property
    def blocks(self) -> list[Group]:
        """The groups, by the name that they have in a transformer."""
        return self.groups

    @property
    def slopes(self) -> Tensor:
        """Slope of each block (blocks,), a detached copy, for nodes whose own slope is 4 (or the law's base)."""
        raise NotImplementedError

    def step(self) -> None:
        """Once per optimizer step: set the slopes of the next forward pass."""
        self._require_attached()
        if not self._has_stepped:
            self._has_stepped = True
            self._heed_capture()

    def step_after(self, batch: Any) -> None:
        """`step()` for trainers that have the batch at hand: with it, if the policy needs it."""
        step: Any = self.step
        step(batch) if self.needs_batch else step()

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the optimizer should train besides the model, without weight decay."""
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs: numbers, names and tensors only."""
        names = [group.name or f"block {i}" for i, group in enumerate(self.groups)]
        heads = [group.width for group in self.groups]
        of = {"policy": type(self).__name__, "version": VERSION, "blocks": names, "heads": heads}
        return of | {"slopes": self.slopes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()` of the same policy on the same model."""
        self._require_attached()
        for key, mine in Policy.state_dict(self).items():
            if key != "slopes" and state.get(key) != mine:
                raise ValueError(
                    f"this state is of other {key}: it has {state.get(key)!r}, here it is {mine!r}; "
                    "attach the same policy to the same model before loading"
                )

    def describe(self) -> str:
        """What is controlled where, in words."""
        counts = Counter(self._nodes.paths()).items()
        paths = [f"  {count} nodes {path}" for path, count in counts]
        paths += [f"  {line}" for line in self._relative_slopes()]
        model = self._model()
        paths += [f"  {line}" for line in code_paths(model)] if model is not None else []
        return "\n".join([f"{type(self).__name__} on {len(self.groups)} blocks", *paths])

    def _repr_html_(self) -> str:
        """For notebooks: a row per block, and the description on a click."""
        told = {name: getattr(self, name).tolist() for name in self.shown}
        rows = [
            (group.name or i, len(group.neurons), *(f"{values[i]:.4g}" for values in told.values()))
            for i, group in enumerate(self.groups)
        ]
        return html_table(("block", "nodes", *told), rows, type(self).__name__, self.describe())

    def remarks(self, steps: int) -> list[str]:
        """What whoever starts a training of so many steps should know."""
        return []

    def remove(self) -> None:
        """Give the model back exactly as it was; harmless the second time."""
        if self._is_attached:
            self._is_attached = False
            self._nodes.restore()
            for node in self._nodes.nodes:
                node.__dict__.pop("_policy", None)

    def _relative_slopes(self) -> list[str]:
        """A line per base slope other than 4: its nodes get that share of what is said for 4."""
        counts = Counter(base for base in self._nodes.bases if base != BASE)
        return [
            f"{count} nodes have a base slope of {base:g}, not {BASE:g}: they get {base / BASE:g} times each slope"
            for base, count in counts.items()
        ]

    @property
    def _why_not_captured(self) -> str | None:
        """None if a graph that is captured with the policy attached follows it, else the reason."""
        if all(self._nodes.takes_tensor):
            return None
        return "SpikingJelly's nodes keep their slope as a number; build the model with sage_snn.LIFNode"

    def _why_unreached(self, inside: set[nn.Module]) -> str | None:
        """None if a policy acts in a graph that was captured before, with these modules inside; else the reason."""
        return "which runs no code of ours: nothing can be read or learnt in it"

    def _heed_earlier_capture(self, model: nn.Module) -> None:
        inside = {part for module in model.modules() if is_graphed(module) for part in module.modules()}
        if not inside:
            return
        reason, nodes = self._why_unreached(inside), [node for node in self._nodes.nodes if node in inside]
        if any(not isinstance(node, LIFNode) for node in nodes):
            reason = "with slopes that are numbers, as SpikingJelly's nodes keep them; build it with sage_snn.LIFNode"
        elif any(getattr(node, "own_slope", None) is None for node in nodes):
            reason = "with its slopes baked in, since no pass on its device came before"
        if reason is not None:
            raise RuntimeError(
                f"the model was captured in a CUDA graph, {reason}; attach the policy first, and capture the model "
                "with it"
            )

    def _heed_capture(self) -> None:
        model, reason = self._model(), self._why_not_captured
        if model is not None and reason is not None and any(map(is_graphed, model.modules())):
            self.remove()
            raise RuntimeError(
                f"the model was captured in a CUDA graph, which cannot follow this {type(self).__name__}: {reason}, or "
                "train without make_graphed_callables"
            )

    def _require_attached(self) -> None:
        if not self._is_attached:
            raise RuntimeError(f"this {type(self).__name__} was removed from its model; attach a new one")

    def __str__(self) -> str:
        return self.describe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def named_groups(blocks: Sequence[Group] | None, groups: Sequence[Group] | None) -> Sequence[Group] | None:
    """Those that a user named, under either name; None if nobody named any."""
    if blocks is not None and groups is not None:
        raise ValueError("blocks= and groups= name the same thing; pass one of them")
    return groups if groups is not None else blocks


def chosen_groups(model: nn.Module, blocks: Sequence[Group] | None, groups: Sequence[Group] | None) -> Sequence[Group]:
    """Those that a user named, under either name, or those that are found: blocks, or layers without attention."""
    named = named_groups(blocks, groups)
    return find_groups(model) if named is None else named


def chosen_nodes(model: nn.Module, blocks: Sequence[Group] | None, groups: Sequence[Group] | None) -> list[nn.Module]:
    """The nodes of the groups that a user named, or else all of the network."""
    named = named_groups(blocks, groups)
    return nodes_of(model) if named is None else group_nodes(named)


def ranks() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def may_look(device: torch.device, step: int) -> bool:
    """May the host ask for values after this step (from 1)? On a device it would wait, so it does now and then only."""
    return device.type == "cpu" or step % LOOK_EVERY == 0


def time_steps_of(model: nn.Module) -> int:
    """The number of time steps that a network says it has."""
    for module in model.modules():
        steps = getattr(module, "time_steps", None) or getattr(module, "T", None)
        if isinstance(steps, int):
            return steps
    raise ValueError("a slope per time step needs the number of time steps; pass time_steps=")


def device_of(model: nn.Module) -> torch.device:
    """Device of the model's first parameter."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
