"""SAGE with a slope per head of a block, or per channel of a node."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..control import Block, Channels, Group, Source
from ..signals import Signal
from ..surrogate import ChannelSlopes
from .grain import PerGroup, Track

T = TypeVar("T")


class _Finer(PerGroup):
    """Several values per group; what is told of a group is their mean."""

    of_group: list[int]  # the group of each track

    def _by_group(self, things: Sequence[T]) -> list[list[T]]:
        """A thing per track, group by group."""
        pairs = list(zip(things, self.of_group, strict=True))
        return [[thing for thing, group in pairs if group == i] for i in range(len(self.groups))]

    def _means(self, values: Sequence[Tensor]) -> Tensor:
        """(groups,) of a tensor per track."""
        return torch.stack([torch.cat(part).mean() for part in self._by_group(values)])

    @property
    def slopes(self) -> Tensor:
        """Mean slope of each group (groups,)."""
        return self._means([track.slopes for track in self.tracks])

    @property
    def fine_slopes(self) -> list[Tensor]:
        """A tensor per track."""
        return [track.slopes.clone() for track in self.tracks]

    def _compare(self, values: Sequence[Tensor]) -> None:
        for track, observed in zip(self.tracks, values, strict=True):
            track.observe(self.method.statistics, observed)
        self.smoothed = self._means([track.smoothed for track in self.tracks])
        self.zscores = self._means([track.zscores for track in self.tracks])

    def _new_track(self, count: int, device: torch.device) -> Track:
        return Track(torch.full((count,), count == 1, device=device), self.base, are_some_alone=count == 1)

    def state_dict(self) -> dict[str, Any]:
        """The finer slopes too."""
        return super().state_dict() | {"fine_slopes": self.fine_slopes}


class PerHead(_Finer):
    """A slope per head, compared with the other heads of its block; nodes that have no heads take the mean."""

    def _start(self, device: torch.device) -> list[Track]:
        self.of_group = list(range(len(self.groups)))
        return [self._new_track(group.width, device) for group in self.groups]

    @property
    def keeps_base(self) -> list[bool]:
        """Blocks with one head."""
        return [group.width == 1 for group in self.groups]

    def hold(self, *, live: bool, device: torch.device) -> None:
        """Slopes of channels for the nodes whose channels are those of the heads, one number for the others."""
        super().hold(live=live, device=device)
        finer: dict[int, ChannelSlopes] = {}
        blocks = _with_heads(self.groups)
        for index, (node, base) in enumerate(zip(self.nodes.nodes, self.nodes.bases, strict=True)):
            block = blocks[self.owner[index]]
            if any(node is other for other in block.by_head):
                repeats, last = block.parts if node is block.query else 1, block.layout == "TBNC"
                finer[index] = ChannelSlopes(base, live=live, device=device, repeats=repeats, channels_last=last)
        self._by_head = set(finer)
        self.nodes.refine(finer)

    def observe(self, readings: Sequence[Tensor]) -> None:
        """A reading per head, each with a history of its own."""
        self.readings = list(readings)
        self.dispersion = torch.stack([self.method.spread(values) for values in self.readings])
        self._compare(self.readings)

    def write(self) -> None:
        """Heads to the nodes that have them, their mean to the others."""
        slopes, means = [track.slopes for track in self.tracks], self.slopes
        pairs = enumerate(zip(self.owner, self._ratios, strict=True))
        self.nodes.write([(slopes[o] if i in self._by_head else means[o]) * ratio for i, (o, ratio) in pairs])

    def _load_slopes(self, state: dict[str, Any], device: torch.device) -> None:
        for track, slopes in zip(self.tracks, state["fine_slopes"], strict=True):
            track.slopes = slopes.to(device, copy=True)


def _with_heads(groups: Sequence[Group]) -> list[Block]:
    blocks = [group for group in groups if isinstance(group, Block) and group.by_head]
    if len(blocks) < len(groups):
        name = next(group.name for group in groups if group not in blocks)
        raise ValueError(
            f"block {name} does not say which of its nodes have heads; pass Block(by_head=[...]) with those of query, "
            "key and value, or per='group'"
        )
    return blocks


class PerChannel(_Finer):
    """A slope per channel of each node, compared with the other channels of that node."""

    def _start(self, device: torch.device) -> list[Track]:
        self.of_group = self.owner  # nodes come group by group
        sources: list[Any] = [source for group in self.groups for source in group.sources]
        self._channels = [Channels(source.node, channels_last=source.channels_last) for source in sources]
        return []  # how many channels there are shows in the first pass

    @property
    def slopes(self) -> Tensor:
        """Mean slope of each group (groups,)."""
        return super().slopes if self.tracks else torch.full_like(self.dispersion, self.base)

    @property
    def keeps_base(self) -> list[bool]:
        """Groups of one channel in all."""
        return [sum(channels.width for channels in part) == 1 for part in self._by_group(self._channels)]

    def sources(self, index: int) -> Sequence[Source]:
        """The channels of the group's nodes."""
        return self._by_group(self._channels)[index]

    def signal(self, index: int) -> Signal:
        """A value per channel."""
        return self.method.signal.each_channel  # type: ignore[attr-defined]

    def hold(self, *, live: bool, device: torch.device) -> None:
        """Slopes of channels for every node."""
        super().hold(live=live, device=device)
        pairs = enumerate(zip(self.nodes.bases, self._channels, strict=True))
        options: dict[str, Any] = {"live": live, "device": device}
        self.nodes.refine({i: ChannelSlopes(base, channels_last=c.channels_last, **options) for i, (base, c) in pairs})

    def observe(self, readings: Sequence[Tensor]) -> None:
        """A reading per channel; a node's own reading is their mean."""
        widths = [channels.width for channels in self._channels]
        if not all(widths):
            raise RuntimeError(
                f"group {self.groups[self.owner[widths.index(0)]].name} has a node that no pass in training mode "
                "reached, so nobody knows its channels; name the groups that run with groups=[...]"
            )
        values = torch.cat(list(readings)).split(widths)
        self.tracks = self.tracks or [self._new_track(width, values[0].device) for width in widths]
        self.readings = [torch.stack([v.mean() for v in part]) for part in self._by_group(values)]
        self.dispersion = torch.stack([self.method.spread(values) for values in self.readings])
        self._compare(values)

    def write(self) -> None:
        """Every node its own."""
        if self.tracks:
            pairs = zip(self.tracks, self._ratios, strict=True)
            self.nodes.write([track.slopes * ratio for track, ratio in pairs])

    def _load_slopes(self, state: dict[str, Any], device: torch.device) -> None:
        self.tracks = [self._new_track(len(slopes), device) for slopes in state["fine_slopes"]]
        for track, channels, slopes in zip(self.tracks, self._channels, state["fine_slopes"], strict=False):
            track.slopes, channels.width = slopes.to(device, copy=True), len(slopes)  # none of either before a step
