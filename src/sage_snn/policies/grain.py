"""In which size SAGE controls: which values are compared with each other, and the slopes that come of them."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from ..compat import precise
from ..control import Group, NodeSlopes, Source
from ..laws import Law
from ..signals import SPREADS, Signal, Spread
from ..statistics import History, Statistics
from .policy import BASE


class Method(Protocol):
    """From readings to slopes, as a policy has it."""

    signal: Signal
    spread: Spread
    statistics: Statistics
    law: Law


class Track:
    """Values that are compared with each other, (values,): their history and their slopes.

    `alone` are those that say nothing by themselves; whether there are any is told, as asking a device would wait.
    """

    def __init__(self, alone: Tensor, base: float, *, are_some_alone: bool) -> None:
        self.alone, self._are_some_alone = alone, are_some_alone
        self.history = History.start(len(alone), alone.device)
        self.slopes = torch.full((len(alone),), base, dtype=precise(alone.device), device=alone.device)
        self.smoothed = self.zscores = self.slopes * torch.nan

    def observe(self, statistics: Statistics, observed: Tensor) -> None:
        """Take the values of a step."""
        if self._are_some_alone:
            observed = observed.masked_fill(self.alone, torch.nan)
        self.history, self.smoothed, self.zscores = statistics.update(self.history, observed)
        if self._are_some_alone:
            self.zscores = self.zscores.masked_fill(self.alone, 0.0)

    def decide(self, law: Law, *, can_look: bool) -> None:
        """Let the law have the scores; values without one keep their slopes."""
        slopes = law(self.zscores).to(self.slopes)
        keep = self.alone | self.zscores.isnan()
        if can_look and not ((slopes > 0) | keep).all():
            raise ValueError(f"the law gave {slopes.tolist()} for {self.zscores.tolist()}: slopes must be positive")
        self.slopes = torch.where(keep, self.slopes, slopes)

    def to(self, device: torch.device) -> Self:
        """Follow a model that was moved."""
        self.history = History(*(x.to(device) for x in self.history))
        self.slopes, self.alone = self.slopes.to(device), self.alone.to(device)
        return self


class PerGroup:
    """One slope per group, compared with the other groups: the paper's way, and what the finer ones are made from.

    `extra` is how many numbers a signal gives besides its readings; `may_move`, whether the warm-up is over; `give_up`
    is called before an error leaves a forward pass.
    """

    extra = 0
    may_move = False

    @staticmethod
    def give_up() -> None:
        """Take the policy off the model, once there is one."""

    def __init__(
        self, method: Method, groups: Sequence[Group], nodes: NodeSlopes, owner: Sequence[int], device: torch.device
    ) -> None:
        self.method, self.groups, self.nodes, self.owner = method, list(groups), nodes, list(owner)
        self._owner = torch.tensor(self.owner, device=device)
        self.base = float(getattr(method.law, "base", BASE))
        # Choice: decision 13, relative to the base
        self._ratios = torch.tensor(nodes.bases, dtype=precise(device), device=device) / self.base
        self.tracks = self._start(device)
        count, exact = len(groups), precise(device)
        self.dispersion, self.smoothed, self.zscores = torch.full((3, count), torch.nan, dtype=exact, device=device)
        self.readings = [torch.full((group.width,), torch.nan, dtype=exact, device=device) for group in groups]

    def _start(self, device: torch.device) -> list[Track]:
        # Without two values to spread, a deviation says nothing: such a group keeps its base and stays out of the mean.
        is_deviation = self.method.spread in (SPREADS["std"], SPREADS["sample_std"])
        alone = [is_deviation and group.width == 1 for group in self.groups]
        return [Track(torch.tensor(alone, device=device), self.base, are_some_alone=any(alone))]

    @property
    def slopes(self) -> Tensor:
        """Of each group (groups,), in units of the law."""
        return self.tracks[0].slopes.clone()

    @property
    def fine_slopes(self) -> list[Tensor]:
        """In the size in which they are."""
        return list(self.slopes.unbind())

    @property
    def keeps_base(self) -> list[bool]:
        """Groups that have nothing to compare."""
        return self.tracks[0].alone.tolist()

    def sources(self, index: int) -> Sequence[Source]:
        """What is read of a group."""
        return self.groups[index].sources

    def signal(self, index: int) -> Signal:
        """What is made of it."""
        return self.method.signal

    def hold(self, *, live: bool, device: torch.device) -> None:
        """Give the nodes slopes that can be written."""
        self.nodes.hold(live=live, device=device)

    def observe(self, readings: Sequence[Tensor]) -> None:
        """Take what was read in a step, a tensor per group."""
        self.readings = list(readings)
        self.dispersion = torch.stack([self.method.spread(values) for values in self.readings])
        self.tracks[0].observe(self.method.statistics, self.dispersion)
        self.smoothed, self.zscores = self.tracks[0].smoothed, self.tracks[0].zscores

    def decide(self, *, can_look: bool) -> None:
        """Set the slopes by the law, and write them."""
        for track in self.tracks:
            track.decide(self.method.law, can_look=can_look)
        self.write()

    def write(self) -> None:
        """Give every node the slope of its group."""
        self.nodes.write(self.tracks[0].slopes[self._owner] * self._ratios)

    def begin_step(self, *, may_move: bool) -> None:
        """The passes of the next step come now."""
        self.may_move = may_move

    def restart(self) -> None:
        """Forget mean and deviation."""
        for track in self.tracks:
            track.history = track.history.restarted()

    def to(self, device: torch.device) -> None:
        """Follow a model that was moved after the policy was attached."""
        if self._ratios.device == device:
            return
        self._owner, self._ratios = self._owner.to(device), self._ratios.to(device)
        self.tracks = [track.to(device) for track in self.tracks]

    def state_dict(self) -> dict[str, Any]:
        """History and last readings."""
        told = {name: getattr(self, name).clone() for name in ("dispersion", "smoothed", "zscores")}
        parts = [track.history._asdict() for track in self.tracks]
        history = {name: torch.cat([part[name] for part in parts]) for name in History._fields} if parts else {}
        return {**told, "history": history, "readings": [values.clone() for values in self.readings]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to the same bits."""
        device = self._ratios.device
        for name in ("dispersion", "smoothed", "zscores"):
            setattr(self, name, state[name].to(device))
        readings = state["readings"] if "readings" in state else state["head_entropy"]  # its name before
        self.readings = [values.to(device) for values in readings]
        self._load_slopes(state, device)
        sizes = [len(track.slopes) for track in self.tracks]
        parts = {name: values.to(device).split(sizes) for name, values in state["history"].items()}
        for i, track in enumerate(self.tracks):
            track.history = History(**{name: each[i] for name, each in parts.items()})
        self.write()

    def _load_slopes(self, state: dict[str, Any], device: torch.device) -> None:
        self.tracks[0].slopes = state["slopes"].to(device, copy=True)
