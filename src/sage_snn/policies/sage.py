"""SAGE: slopes that follow the disagreement of attention heads."""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..compat import precise
from ..control import Group, group_nodes, is_compiled, nodes_of, owners
from ..laws import DeadZoneTanh, Law, check_law
from ..signals import SPREADS, Signal, Spread, check_spread
from ..statistics import History, Statistics
from .policy import BASE, Policy, device_of
from .reader import Reader, SourceName, chosen_reading, readable_groups, require_readable
from .settings import differences, functions_among, parse_settings, settings_of

RECOMPILES = (
    "SpikingJelly's nodes keep their slope as a number: each new slope compiles the model anew, and after a few it "
    "runs uncompiled; build it with spiking_neuron=sage_snn.LIFNode, whose slope is a tensor"
)


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
        if blocks is not None and groups is not None:
            raise ValueError("blocks= and groups= name the same thing; pass one of them")
        self.signal, self.spread = chosen_reading(source, signal, spread)
        groups = readable_groups(model, blocks if groups is None else groups, source)
        require_readable(self.signal, groups)
        check_spread(self.spread, {group.width for group in groups})
        check_law(law, torch.zeros(len(groups), dtype=precise(device_of(model)), device=device_of(model)))
        nodes, owner = _nodes_and_owners(model, groups, neurons)
        if len(groups) == 1 and statistics.center:
            warnings.warn(
                f"one {'attention block' if source == 'attention' else 'group'} only: centring over blocks makes every "
                "score zero, so the slope stays at its base; pass statistics=Statistics(center=False)",
                stacklevel=2,
            )
        super().__init__(model, nodes, groups)
        self.warmup_steps, self.every, self.same_step, self.per_rank = warmup_steps, every, same_step, per_rank
        self.statistics, self.law, self.neurons = statistics, law, neurons
        self._reader: Reader | None = None
        self._has_warned_of_compiling = False
        self._start(owner, device_of(model))
        try:
            self._attach(device_of(model))
        except BaseException:
            self.remove()
            raise

    def _start(self, owner: list[int], device: torch.device) -> None:
        """What is known before the first step."""
        count, exact = len(self.groups), precise(device)
        self._steps = 0
        self._history = History.start(count, device)
        self._owner = torch.tensor(owner, device=device)
        # Choice: decision 13, relative to the base
        self._ratios = torch.tensor(self._nodes.bases, dtype=exact, device=device) / self._law_base
        self._slopes = torch.full((count,), self._law_base, dtype=exact, device=device)
        self._dispersion, self._smoothed, self._zscores = torch.full((3, count), torch.nan, dtype=exact, device=device)
        self._readings = [torch.full((group.width,), torch.nan, dtype=exact, device=device) for group in self.groups]
        # Without two values to spread, a deviation says nothing: such a group keeps its base and stays out of the mean.
        is_deviation = self.spread in (SPREADS["std"], SPREADS["sample_std"])
        self._alone = torch.tensor([is_deviation and group.width == 1 for group in self.groups], device=device)

    def _attach(self, device: torch.device) -> None:
        if self.same_step and not all(self._nodes.takes_tensor):
            raise ValueError("same_step=True needs nodes that keep their slope in a tensor: sage_snn.neurons.LIFNode")
        if self.same_step and any(getattr(s, "gives", None) == "gradient" for g in self.groups for s in g.sources):
            raise ValueError("gradients are there after backward(), too late for same_step=True; leave it out")
        self._nodes.hold(live=self.same_step, device=device)
        model = self._model()
        assert model is not None
        self._reader = Reader(model, self.groups, self.signal, device, self.remove)
        if is_compiled(model):
            self._warn_of_compiling()

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
        reader = self._reader
        assert reader is not None
        if self._steps % self.every == 0:
            reader.warn_of_replays(same_step=self.same_step)
            self._readings = reader.read(per_rank=self.per_rank)
            if self._slopes.device != reader.device:
                self._move(reader.device)
            self._control(torch.stack([self.spread(values) for values in self._readings]), reader.unread)
        if reader.is_compiled:
            self._warn_of_compiling()
        self._steps += 1
        if self.statistics.restart and self._steps == self.warmup_steps:  # be it a step that reads or not
            self._history = self._history.restarted()
        reader.clear(active=self._steps % self.every == 0)

    def paused(self) -> AbstractContextManager[None]:
        """Inside, forward passes are not read."""
        assert self._reader is not None
        return self._reader.paused()

    def _control(self, dispersion: Tensor, unread: list[int]) -> None:
        update = self._steps + 1
        self._dispersion = dispersion
        observed = dispersion.masked_fill(self._alone, torch.nan)
        self._history, self._smoothed, scores = self.statistics.update(self._history, observed)
        self._zscores = scores.masked_fill(self._alone, 0.0)
        bad = ~dispersion.isfinite()
        # The check reads from the device; on a GPU that would stall every step, so there it is made now and then.
        can_look = dispersion.device.type == "cpu" or update % 100 == 0
        if can_look and bad.any():
            self._warn_of_gaps(bad.nonzero().flatten().tolist(), unread)
        # Same-step slopes act on this very step, next-step slopes on the one after: the warm-up ends accordingly.
        if update >= self.warmup_steps + self.same_step:
            slopes = self.law(self._zscores).to(self._slopes)
            keep = bad | self._alone | self._zscores.isnan()
            if can_look and not (slopes[~keep] > 0).all():
                raise ValueError(
                    f"the law gave {slopes.tolist()} for {self._zscores.tolist()}: slopes must be positive"
                )
            self._slopes = torch.where(keep, self._slopes, slopes)
            self._nodes.write(self._slopes[self._owner] * self._ratios)

    def _warn_of_gaps(self, bad: list[int], unread: list[int]) -> None:
        for indices, why in (
            (
                [i for i in bad if i in unread],
                "was not read: no pass in training mode reached it (is it in eval mode?)",
            ),
            ([i for i in bad if i not in unread], "is not finite"),
        ):
            if indices:
                names = ", ".join(str(self.groups[i].name or i) for i in indices)
                warnings.warn(f"the signal of {names} {why}; its slope stays", stacklevel=4)

    def _warn_of_compiling(self) -> None:
        if not self._has_warned_of_compiling and not all(self._nodes.takes_tensor):
            self._has_warned_of_compiling = True
            warnings.warn(f"the model is compiled, and {RECOMPILES}", stacklevel=4)

    def _move(self, device: torch.device) -> None:
        """Follow a model that was moved after the policy was attached."""
        for name in ("_owner", "_ratios", "_slopes", "_alone"):
            setattr(self, name, getattr(self, name).to(device))
        self._history = History(*(x.to(device) for x in self._history))

    @property
    def _settings(self) -> dict[str, Any]:
        """What the statistics mean; a state of other settings must not be continued."""
        named = {spread: name for name, spread in SPREADS.items()}
        return {
            "signal": self.signal,
            "spread": named.get(self.spread, self.spread),
            "statistics": self.statistics,
            "law": self.law,
            **{name: getattr(self, name) for name in ("neurons", "every", "warmup_steps", "same_step")},
        }

    @property
    def _law_base(self) -> float:
        return float(getattr(self.law, "base", BASE))

    def state_dict(self) -> dict[str, Any]:
        """Steps, history, last readings and, if it has one, the signal's own state."""
        signal = getattr(self.signal, "state_dict", dict)()
        readings = {"dispersion": self.dispersion, "smoothed": self.smoothed, "zscores": self.zscores}
        history = {name: value.clone() for name, value in self._history._asdict().items()}
        own = {"steps": self._steps, "history": history, "readings": self.readings, "signal": signal}
        settings = {name: settings_of(thing) for name, thing in self._settings.items()}
        return super().state_dict() | {"settings": settings} | readings | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to the same bits."""
        super().load_state_dict(state)
        self._require_same_settings(state["settings"])
        device = self._slopes.device
        self._steps = int(state["steps"])
        self._history = History(**{name: value.to(device) for name, value in state["history"].items()})
        self._slopes = state["slopes"].to(device, copy=True)
        self._dispersion, self._smoothed = state["dispersion"].to(device), state["smoothed"].to(device)
        self._zscores = state["zscores"].to(device)
        readings = state["readings"] if "readings" in state else state["head_entropy"]  # its name before
        self._readings = [values.to(device) for values in readings]
        if state["signal"]:
            self.signal.load_state_dict(state["signal"])  # type: ignore[attr-defined]
        assert self._reader is not None
        self._reader.clear(active=self._steps % self.every == 0)
        self._nodes.write(self._slopes[self._owner] * self._ratios)

    def _require_same_settings(self, saved: Any) -> None:
        saved = parse_settings(saved) if isinstance(saved, str) else saved
        if lines := differences(saved, self._settings):
            raise ValueError(
                "this state is of other settings:\n  "
                + "\n  ".join(lines)
                + "\nattach SAGE with the same signal, statistics and law before loading"
            )
        if functions := functions_among(self._settings):
            warnings.warn(
                f"{' and '.join(functions)} of this SAGE are functions, known by their names only: make sure that they "
                "are those that the state was saved with, or make them dataclasses",
                stacklevel=3,
            )

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
                f"{self._remark(i)}"
            )
        if not all(self._nodes.takes_tensor):
            lines.append(f"  under torch.compile: {RECOMPILES}")
        return "\n".join(lines)

    def _remark(self, index: int) -> str:
        if self._alone[index]:
            return " (one value, nothing to spread: keeps its base)"
        is_silent = len(self._readings[index]) > 1 and float(self._dispersion[index]) == 0
        return " (silent: all its values are the same)" if is_silent else ""

    def remove(self) -> None:
        """Take hooks and slopes off the model."""
        if self._reader is not None:
            self._reader.remove()
        super().remove()


def _nodes_and_owners(model: nn.Module, groups: Sequence[Group], neurons: str) -> tuple[list[nn.Module], list[int]]:
    """The nodes to control, and the index of the block that each follows."""
    nodes = group_nodes(groups, neurons)
    owner = owners(groups, nodes)
    if neurons == "all":  # Choice: decision 10, nodes outside the blocks follow the first block
        outside = [node for node in nodes_of(model) if all(node is not n for n in nodes)]
        nodes, owner = outside + nodes, [0] * len(outside) + owner
    return nodes, owner
