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
from ..statistics import Statistics
from .granularity import GRAINS, Per, require_grain
from .policy import Policy, device_of, may_look, named_groups
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
    `per` "head", "channel" or "token" makes the slopes finer (docs/policies.md).

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        warmup_steps: training steps that keep the base slope while statistics accumulate; an epoch is usual.
        blocks: what is controlled, described by hand; by default the attention blocks, or all layers without
            attention.
        groups: the same by its general name; pass one of the two.
        source: what is read of a group: "attention" (default), "firing" (default per channel), "membrane", "gradient".
        per: how fine the slopes are: "group", "head", "channel" or "token" (docs/policies.md).
        signal: a callable (q, k, scale) -> (heads,); by default `HeadEntropy()`, or what fits the source.
        spread: from the values of a group to one: "std", "mean", or a callable; by default what fits the source.
        statistics: how that becomes a score, over time and groups.
        law: a callable from scores (groups,) to slopes (groups,).
        neurons: which nodes get the slope: all of the "block", those of its "attention", or "all" of the network.
        same_step: slopes act in the backward pass of the very step: call `step()` between forward and backward.
        every: read and move only every so many steps.
        per_rank: each process follows its own share of the batch, in place of the mean over all.
    """

    shown = ("slopes", "dispersion", "zscores")

    def __init__(
        self,
        model: nn.Module,
        *,
        warmup_steps: int,  # Choice: decision 3
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
        source: SourceName | None = None,
        per: Per = "group",  # Choice: decision 11
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
        source = source or ("firing" if per == "channel" else "attention")
        self.signal, self.spread = chosen_reading(source, signal, spread)
        groups = readable_groups(model, named_groups(blocks, groups), source)
        require_readable(self.signal, groups)
        require_grain(per, self.signal, groups, source=source, neurons=neurons, every=every, same_step=same_step)
        check_spread(self.spread, {group.width for group in groups})
        check_law(law, torch.zeros(len(groups), dtype=precise(device_of(model)), device=device_of(model)))
        nodes, owner = _nodes_and_owners(model, groups, neurons)
        if len(groups) == 1 and statistics.center and per == "group":
            warnings.warn(
                f"one {'attention block' if source == 'attention' else 'group'} only: centring over blocks makes every "
                "score zero, so the slope stays at its base; pass statistics=Statistics(center=False)",
                stacklevel=2,
            )
        self.warmup_steps, self.every, self.same_step, self.per_rank = warmup_steps, every, same_step, per_rank
        self.statistics, self.law, self.neurons, self.per = statistics, law, neurons, per
        super().__init__(model, nodes, groups)
        self._reader: Reader | None = None
        self._has_warned_of_compiling = False
        self._steps = 0
        self._grain = GRAINS[per](self, groups, self._nodes, owner, device_of(model))
        try:
            self._attach(device_of(model))
        except BaseException:
            self.remove()
            raise

    def _attach(self, device: torch.device) -> None:
        if self.same_step and not all(self._nodes.takes_tensor):
            raise ValueError("same_step=True needs nodes that keep their slope in a tensor: sage_snn.neurons.LIFNode")
        if self.same_step and any(getattr(s, "gives", None) == "gradient" for g in self.groups for s in g.sources):
            raise ValueError("gradients are there after backward(), too late for same_step=True; leave it out")
        self._grain.give_up = self.remove
        self._grain.hold(live=self.same_step, device=device)
        model = self._model()
        assert model is not None
        self._reader = Reader(model, self._grain, device, self.remove)
        if is_compiled(model):
            self._heed_compiling()

    @property
    def slopes(self) -> Tensor:
        """Slopes in force (blocks,), the mean where a block has several."""
        return self._grain.slopes

    @property
    def fine_slopes(self) -> list[Tensor]:
        """The same in their own size: a tensor () or (heads,) per block, (channels,) per node, or, of the tokens of the
        last pass, (T, B, N) per block.
        """
        return self._grain.fine_slopes

    @property
    def dispersion(self) -> Tensor:
        """Spread over heads of the last step (blocks,), the mean of the tokens' where they decide; NaN before it."""
        return self._grain.dispersion.clone()

    @property
    def smoothed(self) -> Tensor:
        """Exponential average of the dispersion (blocks,); of the heads' or channels' own readings, the mean of it."""
        return self._grain.smoothed.clone()

    @property
    def zscores(self) -> Tensor:
        """Normalised and centred scores, what the law sees (blocks,), the mean where a block has several."""
        return self._grain.zscores.clone()

    @property
    def readings(self) -> list[Tensor]:
        """The signal of the last step, a tensor per group: (heads,) for attention, (nodes,) for firing."""
        return [values.clone() for values in self._grain.readings]

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
            can_look = may_look(reader.device, self._steps // self.every + 1)
            readings = reader.read(per_rank=self.per_rank, can_look=can_look)
            self._grain.to(reader.device)
            self._control(readings, reader.unread, can_look=can_look)
        if reader.is_compiled:
            self._heed_compiling()
        self._steps += 1
        if self.statistics.restart and self._steps == self.warmup_steps:  # be it a step that reads or not
            self._grain.restart()
        self._begin_step()

    def _begin_step(self) -> None:
        assert self._reader is not None
        self._reader.clear(active=self._steps % self.every == 0)
        self._grain.begin_step(may_move=self._steps >= self.warmup_steps)  # before the first, nothing is known

    def paused(self) -> AbstractContextManager[None]:
        """Inside, forward passes are not read."""
        assert self._reader is not None
        return self._reader.paused()

    def _control(self, readings: list[Tensor], unread: list[int], *, can_look: bool) -> None:
        self._grain.observe(readings)
        if can_look and (bad := ~self._grain.dispersion.isfinite()).any():
            self._warn_of_gaps(bad.nonzero().flatten().tolist(), unread)
        # Same-step slopes act on this very step, next-step slopes on the one after: the warm-up ends accordingly.
        if self._steps + 1 >= self.warmup_steps + self.same_step:
            self._grain.decide(can_look=can_look)

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

    def _heed_compiling(self) -> None:
        if self.per == "token":
            self.remove()
            raise RuntimeError(
                "slopes per token are filled in while the pass runs, which torch.compile cannot do; train the model "
                "uncompiled, or with per='group' or 'head'"
            )
        if not self._has_warned_of_compiling and not all(self._nodes.takes_tensor):
            self._has_warned_of_compiling = True
            warnings.warn(f"the model is compiled, and {RECOMPILES}", stacklevel=4)

    @property
    def _why_not_captured(self) -> str | None:
        made = "slopes per token are made anew in every pass; pass per='group' or 'head'"
        return made if self.per == "token" else super()._why_not_captured

    def _why_unreached(self, inside: set[nn.Module]) -> str | None:
        if self.same_step or self.per != "group":
            return "which takes one slope per node, as it was before the pass"
        read = [s for group in self.groups for s in group.sources if s.read is None]
        is_inside = any(module in inside for source in read for module in source.modules().values())
        return super()._why_unreached(inside) if is_inside else None

    @property
    def _settings(self) -> dict[str, Any]:
        """What the statistics mean; a state of other settings must not be continued."""
        named = {spread: name for name, spread in SPREADS.items()}
        return {
            "signal": self.signal,
            "spread": named.get(self.spread, self.spread),
            "statistics": self.statistics,
            "law": self.law,
            **{name: getattr(self, name) for name in ("neurons", "per", "every", "warmup_steps", "same_step")},
        }

    def state_dict(self) -> dict[str, Any]:
        """Steps, history, last readings and, if it has one, the signal's own state."""
        signal = getattr(self.signal, "state_dict", dict)()
        settings = {name: settings_of(thing) for name, thing in self._settings.items()}
        own = {"steps": self._steps, "signal": signal, "settings": settings}
        return super().state_dict() | own | self._grain.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to the same bits."""
        super().load_state_dict(state)
        self._require_same_settings(state["settings"])
        self._steps = int(state["steps"])
        self._grain.load_state_dict(state)
        if state["signal"]:
            self.signal.load_state_dict(state["signal"])  # type: ignore[attr-defined]
        self._begin_step()

    def _require_same_settings(self, saved: Any) -> None:
        saved = {"per": "group"} | (parse_settings(saved) if isinstance(saved, str) else saved)
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
        lines += [f"  step {self._steps}, warm-up {self.warmup_steps}, every {self.every}, a slope per {self.per}"]
        slopes, dispersion, zscores = self.slopes, self.dispersion, self.zscores
        for i, group in enumerate(self.groups):
            told = " and ".join(dict.fromkeys(map(str, group.sources)))
            lines.append(
                f"  {group.name or i}: {told}, {self._grain.owner.count(i)} nodes, "
                f"slope {slopes[i]:.4f}, dispersion {dispersion[i]:.3g}, z {zscores[i]:+.3f}{self._remark(i)}"
            )
        if not all(self._nodes.takes_tensor):
            lines.append(f"  under torch.compile: {RECOMPILES}")
        return "\n".join(lines)

    def _remark(self, index: int) -> str:
        if self._grain.keeps_base[index]:
            return " (one value, nothing to spread: keeps its base)"
        is_silent = len(self._grain.readings[index]) > 1 and float(self._grain.dispersion[index]) == 0
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
