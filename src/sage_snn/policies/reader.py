"""What SAGE reads: the groups of a model with the sources that a name stands for, and the taps on them."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..control import (
    Block,
    Channels,
    Firing,
    Gradient,
    Group,
    Membrane,
    Source,
    Tap,
    around,
    carries_foreign_state,
    find_blocks,
    find_groups,
)
from ..signals import SPREADS, FiringRate, GradientGain, HeadEntropy, NearThreshold, Signal, Spread
from .grain import PerGroup
from .policy import ranks

SourceName = Literal["attention", "firing", "membrane", "gradient"]


@dataclass(frozen=True)
class Usual:
    """The signal and the spread that go with a source."""

    signal: Any
    spread: str


DEFAULTS: dict[str, Usual] = {
    "attention": Usual(HeadEntropy(temperature=0.25), "std"),
    "firing": Usual(FiringRate(), "mean"),
    "membrane": Usual(NearThreshold(), "mean"),
    "gradient": Usual(GradientGain(), "mean"),
}
# A source for each node of a group; attention belongs to the group as a whole.
OF_NODES: dict[str, Callable[[nn.Module], Any]] = {"firing": Firing, "membrane": Membrane, "gradient": Gradient}


def chosen_reading(source: str, signal: Signal | None, spread: str | Spread | None) -> tuple[Signal, Spread]:
    """The signal and the spread that were asked for, or those that go with the source."""
    if source not in DEFAULTS:
        raise ValueError(f"source must be one of {', '.join(DEFAULTS)}, not {source!r}")
    usual = DEFAULTS[source]
    spread = usual.spread if spread is None else spread
    if isinstance(spread, str) and spread not in SPREADS:
        raise ValueError(f"spread must be one of {', '.join(SPREADS)} or a callable (H,) -> (), not {spread!r}")
    return usual.signal if signal is None else signal, SPREADS[spread] if isinstance(spread, str) else spread


def readable_groups(model: nn.Module, groups: Sequence[Group] | None, source: SourceName) -> list[Group]:
    """The given groups, or those found in the model, each with something to read."""
    if source in OF_NODES:
        found = find_groups(model) if groups is None else groups
        return [Group(g.neurons, g.name, [_of_node(source, node, g) for node in g.neurons]) for g in found]
    chosen: list[Group] = [*(find_blocks(model) if groups is None else groups)]
    empty = [str(group.name or i) for i, group in enumerate(chosen) if not group.sources]
    if empty:
        raise ValueError(
            f"group {', '.join(empty)} has nothing to read; pass source='firing', or give it sources=[...]"
        )
    return chosen


def require_readable(signal: Signal, groups: Sequence[Group]) -> None:
    """Refuse a signal that is made for another source; one of a user's own that does not say may read anything."""
    wanted = getattr(signal, "reads", None)
    for group in groups:
        for source in group.sources:
            given = getattr(source, "gives", wanted)
            if wanted not in (None, given):
                fits = [type(usual.signal).__name__ for name, usual in DEFAULTS.items() if name == given]
                raise ValueError(
                    f"{type(signal).__name__} reads {wanted}, and group {group.name} gives {given} ({source}); "
                    f"pass source={wanted!r} where the network has it, or a signal of {given} such as {fits[0]}"
                )


def _of_node(source: SourceName, node: nn.Module, group: Group) -> Source:
    if source == "firing":
        return Firing(node, channels_last=isinstance(group, Block) and group.layout == "TBNC")
    return OF_NODES[source](node)


class Reader:
    """The taps on all groups: what was read since the last step, averaged over passes and ranks."""

    def __init__(
        self,
        model: nn.Module,
        grain: PerGroup,
        device: torch.device,
        give_up: Callable[[], None],
    ) -> None:
        self.groups = grain.groups
        self.taps: list[list[Tap]] = []
        for i in range(len(self.groups)):
            sources, options = grain.sources(i), {"extra": grain.extra, "give_up": give_up, "spoil": self.forget}
            holders = [None if s.read is not None else around(model, s.modules().values()) for s in sources]
            pairs = zip(sources, holders, strict=True)
            self.taps.append([Tap(s, grain.signal(i), device, **options, holder=holder) for s, holder in pairs])
        self._have_agreed = False

    @property
    def all_taps(self) -> list[Tap]:
        """Of all groups, in order."""
        return [tap for taps in self.taps for tap in taps]

    @property
    def device(self) -> torch.device:
        """Where the readings are."""
        return self.taps[0][0].sums.device

    @property
    def is_compiled(self) -> bool:
        """Has a pass shown that the model runs under torch.compile?"""
        return any(tap.is_compiled for tap in self.all_taps)

    def read(self, *, per_rank: bool, can_look: bool) -> list[Tensor]:
        """A tensor per group of what the signal gave, the mean over all rows; NaN for a group that was not read.

        Whether the other ranks have read anything is known when the host may look.
        """
        try:
            for tap in self.all_taps:
                if tap.source.read is not None:
                    tap.add(*tap.source.read())
        except Exception:
            self.forget()
            raise
        has_read = any(tap.has_read for tap in self.all_taps)
        if ranks() > 1 and not per_rank:
            self._agree_on_widths()
        sums = torch.cat([tap.sums.to(self.device) for tap in self.all_taps])
        everybody = has_read
        if ranks() > 1 and not per_rank:
            sums = torch.cat([sums, sums.new_tensor([float(has_read)])])
            dist.all_reduce(sums)
            sums, readers = sums[:-1], sums[-1]
            everybody = float(readers) == ranks() if can_look else has_read
        # Every rank raises, or those that did read would wait for the others in their next collective call.
        if not everybody:
            raise RuntimeError(_nothing_read(has_read))
        means = iter(_means(sums, [len(tap.sums) for tap in self.all_taps]))
        return [next(means) if len(taps) == 1 else torch.cat([next(means) for _ in taps]) for taps in self.taps]

    def _agree_on_widths(self) -> None:
        """A rank that did not reach a node has not seen its channels, and learns from the others how many there are."""
        taps = [tap for tap in self.all_taps if isinstance(tap.source, Channels)]
        if not taps or self._have_agreed:
            return
        widths = torch.tensor([tap.source.width for tap in taps], device=self.device)
        dist.all_reduce(widths, op=dist.ReduceOp.MAX)
        for tap, width in zip(taps, widths.tolist(), strict=True):
            tap.set_width(width)
        self._have_agreed = True

    @property
    def unread(self) -> list[int]:
        """Groups that no pass in training mode reached, on this rank."""
        return [i for i, taps in enumerate(self.taps) if not any(tap.has_read for tap in taps)]

    def warn_of_replays(self, *, same_step: bool) -> None:
        """Say what activation checkpointing ran again in another state than at first."""
        for group, taps in zip(self.groups, self.taps, strict=True):
            for tap in taps:
                if tap.replayed_after_step and not same_step:
                    tap.replayed_after_step = False
                    warnings.warn(
                        f"step() came between the forward pass and the checkpointed replay of block {group.name}, "
                        "which then ran with the new slope; call step() after backward()",
                        stacklevel=4,
                    )
                if tap.replayed is not None and carries_foreign_state(tap.replayed):
                    warnings.warn(
                        f"{type(tap.replayed).__name__} nodes of block {group.name} carry their membranes into the "
                        "replay of activation checkpointing, so gradients are wrong; build the model with "
                        "spiking_neuron=sage_snn.LIFNode, or call sage_snn.deploy.accelerate(model)",
                        stacklevel=4,
                    )
                tap.replayed = None

    def forget(self) -> None:
        """Forget what was read since the last step: a pass broke off where some groups had been read and others not."""
        for tap in self.all_taps:
            tap.forget()

    def clear(self, *, active: bool) -> None:
        """Forget what was read; listen to the next passes or not."""
        for tap in self.all_taps:
            tap.clear()
            tap.active = active

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, forward passes are not read."""
        active = [tap.active for tap in self.all_taps]
        for tap in self.all_taps:
            tap.active = False
        try:
            yield
        finally:
            for tap, was_active in zip(self.all_taps, active, strict=True):
                tap.active = was_active

    def remove(self) -> None:
        """Take the hooks off."""
        for tap in self.all_taps:
            tap.remove()


def _means(sums: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
    """Of sums that are followed by their number of rows, a tensor per width; all at once where they are alike."""
    if len({*widths}) == 1:
        table = sums.view(len(widths), -1)
        return (table[:, :-1] / table[:, -1:]).unbind()
    return [part[:-1] / part[-1] for part in sums.split(widths)]


def _nothing_read(here: bool) -> str:
    if here:
        return "another rank called step() without a forward pass in training mode: all ranks make both equally often"
    return (
        "step() before any forward pass: run the model on images in training mode with gradients first "
        "(a model compiled and run before the policy was attached needs torch.compiler.reset())"
    )
