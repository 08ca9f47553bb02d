"""What SAGE reads by default: the groups of a model with the sources that a name stands for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ..control import Firing, Group, find_blocks, find_groups
from ..signals import FiringRate, HeadEntropy

SourceName = Literal["attention", "firing"]


@dataclass(frozen=True)
class Reading:
    """The signal and the spread that go with a source."""

    signal: Any
    spread: str


DEFAULTS: dict[str, Reading] = {
    "attention": Reading(HeadEntropy(temperature=0.25), "std"),
    "firing": Reading(FiringRate(), "mean"),
}


def readable_groups(model: nn.Module, groups: Sequence[Group] | None, source: SourceName) -> list[Group]:
    """The given groups, or those found in the model, each with something to read."""
    if source == "firing":
        chosen = find_groups(model) if groups is None else groups
        return [Group(group.neurons, group.name, [Firing(node) for node in group.neurons]) for group in chosen]
    chosen = list(find_blocks(model)) if groups is None else list(groups)
    empty = [str(group.name or i) for i, group in enumerate(chosen) if not group.sources]
    if empty:
        raise ValueError(
            f"group {', '.join(empty)} has nothing to read; pass source='firing', or give it sources=[...]"
        )
    return chosen
