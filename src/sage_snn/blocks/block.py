"""A transformer block as policies see it: nodes that share a slope, and spikes of query and key.

T time steps, B batch, H heads, N tokens, K head width, C = H * K channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

Layout = Literal["TBNC", "TBCN", "TBCHW"]


@dataclass(eq=False)
class Block:
    """One transformer block: the nodes that share a slope, and where its query and key spikes are read.

    `query` and `key` are modules whose outputs have the given layout (without T in single-step mode). With `parts` > 1
    they are one module whose output holds that many equal parts along the channels, query and key first.
    Or `read` is called once per policy step and gives (q, k), each (T, B, H, N, K).
    """

    neurons: Sequence[nn.Module]  # Choice: decision 11, all with one slope
    query: nn.Module | None = None
    key: nn.Module | None = None
    heads: int = 1
    scale: float = 0.125
    layout: Layout = "TBNC"
    name: str | None = None
    read: Callable[["Block"], tuple[Tensor, Tensor]] | None = None
    parts: int = 1
    attention: Sequence[nn.Module] = ()  # the nodes among `neurons` that belong to the attention

    def __post_init__(self) -> None:
        if self.read is None and (self.query is None or self.key is None):
            raise ValueError("a Block needs query= and key= modules, or read=callable(block) -> (q, k)")
        for role, module in (("query", self.query), ("key", self.key)):
            if module is not None and not isinstance(module, nn.Module):
                raise ValueError(f"{role} must be a module whose output is read, not {module!r}")
        if self.heads < 1:
            raise ValueError(f"heads must be at least 1, not {self.heads}")
        if self.layout not in ("TBNC", "TBCN", "TBCHW"):
            raise ValueError(f"layout must be 'TBNC', 'TBCN' or 'TBCHW', not {self.layout!r}")

    def split(self, x: Tensor) -> Tensor:
        """Spikes in the block's layout -> (T, B, H, N, K)."""
        x = x.flatten(-2) if self.layout == "TBCHW" else x
        x = x.unsqueeze(0) if x.ndim == 3 else x
        x = x if self.layout == "TBNC" else x.transpose(-1, -2)
        if x.ndim != 4 or x.shape[-1] % self.heads:
            raise ValueError(
                f"block {self.name}: {self.heads} heads do not divide {x.shape[-1]} channels of an output read as "
                f"{self.layout}; describe it with Block(heads=..., layout=...)"
            )
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def query_and_key(self, outputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(q, k), each (T, B, H, N, K), from the outputs of the two modules, or of the one that holds both."""
        if self.parts > 1:
            channel = -1 if self.layout == "TBNC" else (-3 if self.layout == "TBCHW" else -2)
            q, k = outputs["query"].chunk(self.parts, dim=channel)[:2]
        else:
            q, k = outputs["query"], outputs["key"]
        return self.split(q), self.split(k)


def block_nodes(blocks: Sequence[Block], neurons: str) -> list[nn.Module]:
    """The nodes that blocks control: all of theirs, or those of their attention only."""
    if neurons not in ("block", "attention", "all"):
        raise ValueError(f"neurons must be 'block', 'attention' or 'all', not {neurons!r}")
    nodes = [node for b in blocks for node in (b.attention if neurons == "attention" else b.neurons)]
    empty = [
        str(b.name or i) for i, b in enumerate(blocks) if not (b.attention if neurons == "attention" else b.neurons)
    ]
    if empty:
        field = "attention" if neurons == "attention" else "neurons"
        raise ValueError(f"block {', '.join(empty)} names no nodes; pass Block({field}=[...])")
    if len({id(node) for node in nodes}) < len(nodes):
        raise ValueError("a neuron belongs to two blocks; give every Block its own neurons")
    return nodes


def owners(blocks: Sequence[Block], nodes: Sequence[nn.Module]) -> list[int]:
    """Index of each node's block."""
    owner = {id(node): i for i, block in enumerate(blocks) for node in (*block.neurons, *block.attention)}
    return [owner[id(node)] for node in nodes]
