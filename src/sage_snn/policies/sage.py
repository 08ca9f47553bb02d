"""SAGE: slopes that follow the disagreement of attention heads."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..compat import precise
from ..control import Group, Tap, group_nodes, nodes_of, owners
from ..laws import DeadZoneTanh, Law
from ..signals import SPREADS, Signal, Spread
from ..statistics import History, Statistics
from .policy import BASE, Policy, device_of, ranks
from .reading import DEFAULTS, SourceName, readable_groups


class SAGE(Policy):
    """Slopes that follow how much the attention heads of each block disagree (docs/equations.md).

    Per step and block: signal per head, averaged over micro-batches and ranks; spread over heads; statistics over
    time and blocks; law. The first `warmup_steps` training steps keep the base slope while statistics accumulate.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        warmup_steps: int,  # Choice: decision 3
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
        source: SourceName = "attention",
        signal: Signal | None = None,  # Choice: decision 17
        spread: str | Spread | None = None,  # Choice: decision 7
        statistics: Statistics = Statistics(decay=0.95),  # noqa: B008 (frozen)
        law: Law = DeadZoneTanh(),  # noqa: B008 (frozen)
        neurons: Literal["block", "attention", "all"] = "block",
        same_step: bool = False,  # Choice: decision 2
        every: int = 1,
        per_rank: bool = False,  # Choice: decision 15
    ) -> None:
        if warmup_steps < 0 or every < 1:
            raise ValueError(f"warmup_steps must be >= 0 and every >= 1, not {warmup_steps} and {every}")
        signal, spread = signal or DEFAULTS[source].signal, spread or DEFAULTS[source].spread
        if isinstance(spread, str) and spread not in SPREADS:
            raise ValueError(f"spread must be one of {', '.join(SPREADS)} or a callable (H,) -> (), not {spread!r}")
        groups = readable_groups(model, blocks if groups is None else groups, source)
        device = device_of(model)
        exact = precise(device)
        _check_law(law, torch.zeros(len(groups), dtype=exact, device=device))
        spread = SPREADS[spread] if isinstance(spread, str) else spread
        _check_spread(spread, {group.width for group in groups})
        nodes, owner = _nodes_and_owners(model, groups, neurons)
        if len(groups) == 1 and statistics.center:
            warnings.warn(
                "one attention block only: centring over blocks makes every score zero, so the slope stays at its "
                "base; pass statistics=Statistics(center=False)",
                stacklevel=2,
            )
        super().__init__(model, nodes, groups)
        self.warmup_steps, self.every, self.same_step, self.per_rank = warmup_steps, every, same_step, per_rank
        self.signal, self.statistics, self.law, self.neurons = signal, statistics, law, neurons
        self.spread = spread
        self._owner = torch.tensor(owner, device=device)
        # Choice: decision 13, relative to the base
        self._ratios = torch.tensor(self._nodes.bases, dtype=exact, device=device) / self._law_base
        self._steps = 0
        self._history = History.start(len(groups), device)
        self._slopes = torch.full((len(groups),), self._law_base, dtype=exact, device=device)
        self._dispersion, self._smoothed, self._zscores = torch.full(
            (3, len(groups)), torch.nan, dtype=exact, device=device
        )
        self._readings = [torch.full((group.width,), torch.nan, dtype=exact, device=device) for group in groups]
        self._taps: list[Tap] = []
        self._names = [group.name for group in groups for _ in group.sources]  # of each tap's group
        try:
            self._attach(device)
        except BaseException:
            self.remove()
            raise

    def _attach(self, device: torch.device) -> None:
        if self.same_step and not all(self._nodes.takes_tensor):
            raise ValueError("same_step=True needs nodes that keep their slope in a tensor: sage_snn.neurons.LIFNode")
        self._nodes.hold(live=self.same_step, device=device)
        for group in self.groups:
            self._taps += [Tap(source, self.signal, device, give_up=self.remove) for source in group.sources]

    @property
    def slopes(self) -> Tensor:
        """Slopes in force (blocks,)."""
        return self._slopes.clone()

    @property
    def dispersion(self) -> Tensor:
        """Spread over heads of the last step (blocks,); NaN before the first."""
        return self._dispersion.clone()

    @property
    def smoothed(self) -> Tensor:
        """Exponential average of the dispersion (blocks,)."""
        return self._smoothed.clone()

    @property
    def zscores(self) -> Tensor:
        """Normalised and centred scores, what the law sees (blocks,)."""
        return self._zscores.clone()

    @property
    def readings(self) -> list[Tensor]:
        """The signal of the last step, a tensor per group: (heads,) for attention, (nodes,) for firing."""
        return [values.clone() for values in self._readings]

    @property
    def head_entropy(self) -> list[Tensor]:
        """The readings, by the name that they have with the paper's signal."""
        return self.readings

    @torch.no_grad()
    def step(self) -> None:
        """Read what the forward passes since the last step left, and write the slopes of the next one."""
        super().step()
        reading = self._steps % self.every == 0
        if reading:
            self._readings = self._read()
            self._control(torch.stack([self.spread(values) for values in self._readings]))
        self._steps += 1
        if self.statistics.restart and self._steps == self.warmup_steps:  # be it a step that reads or not
            self._history = self._history.restarted()
        for tap in self._taps:
            tap.clear()
            tap.active = self._steps % self.every == 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, forward passes are not read."""
        active = [tap.active for tap in self._taps]
        for tap in self._taps:
            tap.active = False
        try:
            yield
        finally:
            for tap, was_active in zip(self._taps, active, strict=True):
                tap.active = was_active

    def _read(self) -> list[Tensor]:
        """What the signal gave of each group, the mean over all rows of all micro-batches and ranks."""
        for tap, name in zip(self._taps, self._names, strict=True):
            if tap.source.read is not None:
                tap.add(*tap.source.read())
            if tap.replayed_after_step and not self.same_step:
                tap.replayed_after_step = False
                warnings.warn(
                    f"step() came between the forward pass and the checkpointed replay of block {name}, "
                    "which then ran with the new slope; call step() after backward()",
                    stacklevel=3,
                )
        if not any(tap.has_read for tap in self._taps):
            raise RuntimeError(
                "step() before any forward pass: run the model on images in training mode with gradients first "
                "(a model compiled and run before the policy was attached needs torch.compiler.reset())"
            )
        if self._slopes.device != self._taps[0].sums.device:
            self._move(self._taps[0].sums.device)
        sums = torch.cat([tap.sums.to(self._slopes.device) for tap in self._taps])
        if ranks() > 1 and not self.per_rank:
            dist.all_reduce(sums)
        means = [part[:-1] / part[-1] for part in sums.split([len(tap.sums) for tap in self._taps])]
        return [torch.cat([means.pop(0) for _ in group.sources]) for group in self.groups]

    def _control(self, dispersion: Tensor) -> None:
        update = self._steps + 1
        self._dispersion = dispersion
        self._history, self._smoothed, self._zscores = self.statistics.update(self._history, dispersion)
        bad = ~dispersion.isfinite()
        # The check reads from the device; on a GPU that would stall every step, so there it is made now and then.
        can_look = dispersion.device.type == "cpu" or update % 100 == 0
        if can_look and bad.any():
            names = [self.groups[i].name for i in bad.nonzero().flatten().tolist()]
            warnings.warn(f"the signal of {', '.join(map(str, names))} is not finite; its slope stays", stacklevel=3)
        # Same-step slopes act on this very step, next-step slopes on the one after: the warm-up ends accordingly.
        if update >= self.warmup_steps + self.same_step:
            slopes = self.law(self._zscores).to(self._slopes)
            keep = bad | self._zscores.isnan()
            if can_look and not (slopes[~keep] > 0).all():
                raise ValueError(
                    f"the law gave {slopes.tolist()} for {self._zscores.tolist()}: slopes must be positive"
                )
            self._slopes = torch.where(keep, self._slopes, slopes)
            self._nodes.write(self._slopes[self._owner] * self._ratios)

    def _move(self, device: torch.device) -> None:
        """Follow a model that was moved after the policy was attached."""
        self._owner, self._ratios, self._slopes = (x.to(device) for x in (self._owner, self._ratios, self._slopes))
        self._history = History(*(x.to(device) for x in self._history))

    @property
    def _settings(self) -> str:
        """What the statistics mean; a state of other settings must not be continued."""
        things = (self.signal, self.spread, self.statistics, self.law)
        return "; ".join(
            [*map(_named, things), f"{self.neurons=}, {self.every=}, {self.warmup_steps=}, {self.same_step=}"]
        )

    @property
    def _law_base(self) -> float:
        return float(getattr(self.law, "base", BASE))

    def state_dict(self) -> dict[str, Any]:
        """Steps, history, last readings and, if it has one, the signal's own state."""
        signal = getattr(self.signal, "state_dict", dict)()
        readings = {"dispersion": self.dispersion, "smoothed": self.smoothed, "zscores": self.zscores}
        history = {name: value.clone() for name, value in self._history._asdict().items()}
        own = {"steps": self._steps, "history": history, "head_entropy": self.readings, "signal": signal}
        return super().state_dict() | {"settings": self._settings} | readings | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to the same bits."""
        super().load_state_dict(state)
        if state["settings"] != self._settings:
            raise ValueError(
                f"this state is of other settings:\n  {state['settings']}\nhere they are\n  {self._settings}\n"
                "attach SAGE with the same signal, statistics and law before loading"
            )
        device = self._slopes.device
        self._steps = int(state["steps"])
        self._history = History(**{name: value.to(device) for name, value in state["history"].items()})
        self._slopes = state["slopes"].to(device, copy=True)
        self._dispersion, self._smoothed = state["dispersion"].to(device), state["smoothed"].to(device)
        self._zscores = state["zscores"].to(device)
        self._readings = [values.to(device) for values in state["head_entropy"]]
        if state["signal"]:
            self.signal.load_state_dict(state["signal"])  # type: ignore[attr-defined]
        for tap in self._taps:
            tap.clear()
            tap.active = self._steps % self.every == 0
        self._nodes.write(self._slopes[self._owner] * self._ratios)

    def describe(self) -> str:
        """A line per block: what is read where, nodes, slope, dispersion, score."""
        lines = [super().describe()]
        lines += [f"  signal {self.signal}, law {self.law}", f"  {self.statistics}"]
        lines += [f"  step {self._steps}, warm-up {self.warmup_steps}, every {self.every}"]
        nodes = torch.bincount(self._owner, minlength=len(self.groups)).tolist()
        for i, group in enumerate(self.groups):
            told = " and ".join(dict.fromkeys(map(str, group.sources)))
            lines.append(
                f"  {group.name or i}: {told}, {nodes[i]} nodes, "
                f"slope {self._slopes[i]:.4f}, dispersion {self._dispersion[i]:.3g}, z {self._zscores[i]:+.3f}"
            )
        return "\n".join(lines)

    def remove(self) -> None:
        """Take hooks and slopes off the model."""
        for tap in self._taps:
            tap.remove()
        super().remove()


def _nodes_and_owners(model: nn.Module, groups: Sequence[Group], neurons: str) -> tuple[list[nn.Module], list[int]]:
    """The nodes to control, and the index of the block that each follows."""
    nodes = group_nodes(groups, neurons)
    owner = owners(groups, nodes)
    if neurons == "all":  # Choice: decision 10, nodes outside the blocks follow the first block
        outside = [node for node in nodes_of(model) if all(node is not n for n in nodes)]
        nodes, owner = outside + nodes, [0] * len(outside) + owner
    return nodes, owner


def _check_law(law: Law, z: Tensor) -> None:
    base = getattr(law, "base", BASE)
    if not isinstance(base, int | float) or not base > 0:
        raise ValueError(f"the base of a law must be a positive number, not {base!r}")
    for score in (-3.0, 0.0, 3.0):  # scores of a normalised series hardly go further
        slopes = law(z + score)
        if slopes.shape != z.shape or not bool((slopes > 0).all()):
            raise ValueError(f"a law must give one positive slope per block, ({len(z)},), not {slopes} for {score}")


def _check_spread(spread: Spread, heads: set[int]) -> None:
    for count in heads:
        value = spread(torch.zeros(count, dtype=torch.float64))
        if not isinstance(value, Tensor) or value.shape != ():
            raise ValueError(f"a spread must give a tensor () for the values ({count},) of all heads, not {value!r}")


def _named(thing: object) -> str:
    """A description without memory addresses."""
    if is_dataclass(thing):
        return repr(thing)
    if hasattr(thing, "__qualname__"):
        return str(thing.__qualname__)  # pyright: ignore[reportAttributeAccessIssue]
    told = {name: value for name, value in vars(thing).items() if isinstance(value, int | float | str)}
    return f"{type(thing).__qualname__}({', '.join(f'{name}={value!r}' for name, value in sorted(told.items()))})"
