"""Query and key of spiking attention: the one reader of how they lie, and the one definition of a dead head.

T time steps, B batch, H heads, N tokens, K head width, C = H * K channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

Layout = Literal["TBNC", "TBCN", "TBCHW"]
LAYOUTS = ("TBNC", "TBCN", "TBCHW")
_CHANNEL = {"TBNC": -1, "TBCN": -2, "TBCHW": -3}


@dataclass(eq=False)
class Attention:
    """Where a block's query and key spikes are read; a signal is given (q, k, scale), q and k as (T, B, H, N, K).

    `query` and `key` are modules whose outputs have the given layout (without T in single-step mode). With `parts` > 1
    they are one module whose output holds that many equal parts along the channels, query and key first.
    Or `read_spikes` is called once per policy step and gives (q, k). `channels` is the width of query and key where it
    is known: an output that has another number of them is not what it is taken for. `pool` is what the network does to
    the key's spikes before it uses them.
    """

    query: nn.Module | None = None
    key: nn.Module | None = None
    heads: int = 1
    scale: float = 0.125
    layout: Layout = "TBNC"
    name: str | None = None
    parts: int = 1
    read_spikes: Callable[[], tuple[Tensor, Tensor]] | None = None
    channels: int | None = None
    pool: Callable[[Tensor], Tensor] | None = None
    gives: ClassVar[str] = "attention"

    def __post_init__(self) -> None:
        if self.read_spikes is None and (self.query is None or self.key is None):
            raise ValueError("a Block needs query= and key= modules, or read=callable(block) -> (q, k)")
        for role, module in (("query", self.query), ("key", self.key)):
            if module is not None and not isinstance(module, nn.Module):
                raise ValueError(f"{role} must be a module whose output is read, not {module!r}")
        if self.heads < 1:
            raise ValueError(f"heads must be at least 1, not {self.heads}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be 'TBNC', 'TBCN' or 'TBCHW', not {self.layout!r}")

    @property
    def width(self) -> int:
        """One value per head."""
        return self.heads

    @property
    def read(self) -> Callable[[], tuple[Any, ...]] | None:
        """(q, k, scale) where the user reads the spikes."""
        spikes = self.read_spikes
        return None if spikes is None else lambda: (*spikes(), self.scale)

    def modules(self) -> dict[str, nn.Module]:
        """Whose outputs hold query and key; one module may hold both."""
        assert self.query is not None
        assert self.key is not None
        return {"query": self.query} if self.parts > 1 else {"query": self.query, "key": self.key}

    def arrange(self, outputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, float]:
        """(q, k, scale) from the outputs of the two modules, or of the one that holds both."""
        if self.parts > 1:
            q, k = outputs["query"].chunk(self.parts, dim=_CHANNEL[self.layout])[:2]
        else:
            q, k = outputs["query"], outputs["key"]
        with torch.no_grad():
            k = k if self.pool is None else self.pool(k)
        return self.split(q), self.split(k), self.scale

    def rows(self, q: Tensor, k: Tensor, scale: float) -> int:
        """Query rows of all time steps and images."""
        times, batch, _, tokens, _ = q.shape
        return times * batch * tokens

    def split(self, x: Tensor) -> Tensor:
        """Spikes in the layout -> (T, B, H, N, K)."""
        self._require_fit(x)
        x = x.flatten(-2) if self.layout == "TBCHW" else x
        x = x.unsqueeze(0) if x.ndim == 3 else x
        x = x if self.layout == "TBNC" else x.transpose(-1, -2)
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def _require_fit(self, x: Tensor) -> None:
        """Refuse an output that the layout does not fit: its channels would be read as tokens."""
        about, axes = f"block {self.name}: an output {tuple(x.shape)} read as {self.layout}", len(self.layout)
        if x.ndim not in (axes, axes - 1):
            cure = "; describe it with Block(layout='TBCHW')" if x.ndim == 5 else "; describe it with Block(layout=...)"
            raise ValueError(f"{about} has {x.ndim} axes, not {axes} ({axes - 1} step by step){cure}")
        channels = x.shape[_CHANNEL[self.layout]]
        if self.channels not in (None, channels):
            fits = [name for name in LAYOUTS if x.ndim == len(name) and x.shape[_CHANNEL[name]] == self.channels]
            cure = f"layout={fits[0]!r}" if fits else "layout=..."
            raise ValueError(f"{about} has {channels} channels, its query has {self.channels}: pass Block({cure})")
        if channels % self.heads:
            raise ValueError(
                f"{about}: {self.heads} heads do not divide {channels} channels; "
                "describe it with Block(heads=..., layout=...)"
            )

    def __str__(self) -> str:
        where = "read()" if self.read_spikes is not None else f"{type(self.query).__name__} {self.layout}"
        return f"{self.heads} heads read from {where}"


class LivingHeads:
    """Which heads fired, over all passes seen: a head whose query or key never does is dead, its map is empty."""

    def __init__(self, heads: int) -> None:
        self._fired = torch.zeros(2, heads, dtype=torch.bool)
        self._seen = False

    def see(self, q: Tensor, k: Tensor, scale: float = 0.125) -> None:
        """Count the spikes of a pass, each (T, B, H, N, K)."""
        self._fired |= torch.stack([x.ne(0).any(-1).any(-1).any(1).any(0) for x in (q, k)]).cpu()
        self._seen = True

    @property
    def dead(self) -> list[int]:
        """Indices of the dead heads; none if nothing was seen."""
        return (~self._fired.all(0)).nonzero().flatten().tolist() if self._seen else []
