"""Groups: nodes that share a value. A block of a transformer is a group whose attention can be read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from .attention import Attention, Layout
from .source import Source


@dataclass(eq=False)
class Group:
    """Nodes that share a value, with a name; `sources` is what a policy may read of them.

    Args:
        neurons: the nodes.
        name: for tables and saved states.
        sources: what may be read of them.
    """

    neurons: Sequence[nn.Module]  # Choice: decision 11, all with one slope
    name: str | None = None
    sources: Sequence[Source] = ()

    @property
    def width(self) -> int:
        """Values that are read of it: heads of attention, nodes whose spikes are counted."""
        return sum(source.width for source in self.sources)

    def nodes(self, which: str = "block") -> Sequence[nn.Module]:
        """All nodes; a Block knows those of its attention too."""
        if which == "attention":
            raise ValueError(f"group {self.name} has no attention of its own; pass neurons='block'")
        return self.neurons


class Block(Group):
    """One transformer block: the nodes that share a slope, and where its query and key spikes are read.

    `query` and `key` are modules whose outputs have the given layout (without T in single-step mode). With `parts` > 1
    they are one module whose output holds that many equal parts along the channels, query and key first.
    Or `read` is called once per policy step and gives (q, k), each (T, B, H, N, K).
    `attention` names the nodes among `neurons` that belong to the attention, `by_head` those whose channels are those
    of the heads, head after head: query, key, value and what they come to. `channels` is the width of query and key,
    if outputs are to be checked against it; `pool` is what the network does to the key's spikes before it uses them.
    In place of all that is about query and key, `source` is an attention that is read in a way of its own.

    Args:
        neurons: the nodes of the block.
        query: module whose output is the query's spikes.
        key: module whose output is the key's spikes.
        heads: of the attention.
        scale: of the scores, as the network has it.
        layout: axes of these outputs: "TBNC", "TBCN" or "TBCHW".
        name: for tables and saved states.
        read: a callable (block) -> (q, k), in place of `query` and `key`.
        parts: of the output of one module that gives query and key together.
        attention: nodes that belong to the attention.
        channels: width of query and key, to check outputs against.
        pool: what the network does to the key's spikes first.
        source: an attention that is read in a way of its own.
        by_head: nodes whose channels are those of the heads.
    """

    def __init__(
        self,
        neurons: Sequence[nn.Module],
        query: nn.Module | None = None,
        key: nn.Module | None = None,
        heads: int = 1,
        scale: float = 0.125,
        layout: Layout = "TBNC",
        name: str | None = None,
        read: Callable[["Block"], tuple[Tensor, Tensor]] | None = None,
        parts: int = 1,
        attention: Sequence[nn.Module] = (),
        channels: int | None = None,
        pool: Callable[[Tensor], Tensor] | None = None,
        source: Attention | None = None,
        by_head: Sequence[nn.Module] = (),
    ) -> None:
        spikes = None if read is None else partial(read, self)
        self.source = source or Attention(query, key, heads, scale, layout, name, parts, spikes, channels, pool)
        super().__init__(neurons, name, (self.source,))
        self.attention, self.by_head = attention, by_head

    def __getattr__(self, name: str) -> Any:
        """`query`, `key`, `heads`, `scale`, `layout` and `parts` are those of its attention."""
        if name in ("query", "key", "heads", "scale", "layout", "parts"):
            return getattr(self.source, name)
        raise AttributeError(f"a Block has no {name!r}")

    def nodes(self, which: str = "block") -> Sequence[nn.Module]:
        """All nodes, or those of the attention only."""
        return self.attention if which == "attention" else self.neurons


def group_nodes(groups: Sequence[Group], which: str = "block") -> list[nn.Module]:
    """The nodes that groups control: all of theirs, or those of their attention only."""
    if which not in ("block", "attention", "all"):
        raise ValueError(f"neurons must be 'block', 'attention' or 'all', not {which!r}")
    nodes = [node for group in groups for node in group.nodes(which)]
    empty = [str(group.name or i) for i, group in enumerate(groups) if not group.nodes(which)]
    kind = "Block" if all(isinstance(group, Block) for group in groups) else "Group"
    if empty:
        field = "attention" if which == "attention" else "neurons"
        raise ValueError(f"{kind.lower()} {', '.join(empty)} names no nodes; pass {kind}({field}=[...])")
    if len({id(node) for node in nodes}) < len(nodes):
        raise ValueError(f"a neuron belongs to two {kind.lower()}s; give every {kind} its own neurons")
    return nodes


def owners(groups: Sequence[Group], nodes: Sequence[nn.Module]) -> list[int]:
    """Index of each node's group."""
    owner = {id(node): i for i, group in enumerate(groups) for node in _all_nodes(group)}
    return [owner[id(node)] for node in nodes]


def _all_nodes(group: Group) -> list[nn.Module]:
    return [*group.neurons, *(group.attention if isinstance(group, Block) else ())]
