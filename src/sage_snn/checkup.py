"""A look at a model's surrogate gradients, silent neurons and dead heads, before a long training is started."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional
from torch import Tensor, nn

from .compat import precise
from .control import Group, LivingHeads, copied, find_groups, nodes_of, reading, unwrapped
from .notebook import html_table

HEAD = ["part", "nodes", "firing", "silent", "surrogate gain", "dead heads", "verdict"]
VANISHING, EXPLODING = 1e-4, 1e4  # a node that shrinks or grows the gradient by this factor is reported


@dataclass
class Part:
    """What was seen in one block, or in the nodes outside all blocks."""

    name: str
    nodes: int
    firing_rate: float
    silent: float  # share of neurons that never fired on this batch
    gain: tuple[float, float]  # smallest and largest ratio, over nodes, of gradient after to gradient before the spike
    dead_heads: list[int] = field(default_factory=list)  # heads whose query or key never fired
    problems: list[str] = field(default_factory=list)

    @property
    def row(self) -> list[str]:
        """Cells of the report's table."""
        gain = f"{self.gain[0]:.2g} to {self.gain[1]:.2g}"
        heads = ", ".join(map(str, self.dead_heads)) or "-"
        verdict = "; ".join(self.problems) or "ok"
        return [self.name, str(self.nodes), f"{self.firing_rate:.1%}", f"{self.silent:.1%}", gain, heads, verdict]


@dataclass
class Report:
    """The parts, in the model's order; prints as a table.

    Args:
        loss: of the batch.
        parts: what was seen: nodes outside blocks, then each block.
    """

    loss: float
    parts: list[Part]

    @property
    def ok(self) -> bool:
        """Is there nothing to worry about?"""
        return math.isfinite(self.loss) and not any(part.problems for part in self.parts)

    def __str__(self) -> str:
        rows = [HEAD, *(part.row for part in self.parts)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join([*lines, self._verdict])

    def _repr_html_(self) -> str:
        return html_table(HEAD, (part.row for part in self.parts), self._verdict)

    @property
    def _verdict(self) -> str:
        verdict = "nothing to worry about" if self.ok else "look at the verdicts before training"
        return f"loss {self.loss:.4f}: {verdict}"


class _Probe:
    """Records one node's spikes, and the gradients on both sides of its step function."""

    def __init__(self, node: nn.Module) -> None:
        self.fired: Tensor | None = None
        self.spikes = self.outputs = 0
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []
        # A view of its own: the gradient of the input itself would hold that of a shortcut around the node too.
        node.register_forward_pre_hook(lambda _node, args: (args[0].view_as(args[0]), *args[1:]))
        node.register_forward_hook(self)

    def __call__(self, node: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
        ever = output.detach().ne(0)
        self.spikes, self.outputs = self.spikes + int(ever.sum()), self.outputs + ever.numel()
        # Time and batch come first; what is left is the population of neurons.
        population = ever.flatten(0, 1).any(0) if getattr(node, "step_mode", "m") == "m" else ever.any(0)
        self.fired = population if self.fired is None else self.fired | population
        if args[0].requires_grad:
            args[0].register_hook(lambda g: self.after.append(g.detach().to(precise(g.device)).norm()))
            output.register_hook(lambda g: self.before.append(g.detach().to(precise(g.device)).norm()))

    @property
    def gain(self) -> float:
        before, after = (float(torch.stack(x).norm()) if x else 0.0 for x in (self.before, self.after))
        return after / before if before else (0.0 if after == 0 else math.nan)

    @property
    def problem(self) -> str | None:
        if self.fired is None:
            return "never ran"
        gain, before = self.gain, self.before
        if not math.isfinite(gain) or any(not g.isfinite() for g in before):
            return "non-finite gradient"
        if gain == 0:
            return "zero gradient"
        return "vanishing gradient" if gain < VANISHING else ("exploding gradient" if gain > EXPLODING else None)


def check(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    blocks: Sequence[Group] | None = None,
    output: Callable[[Any], Tensor] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> Report:
    """One forward and backward pass of a copy of the model in training mode; the model itself is not touched.

    `output` picks the logits from what the model returns, by default all of it, averaged over time where it has time
    steps; `loss` is called with them and the labels.

    Args:
        model: the network, attached to a policy or not.
        images: a batch as in training.
        labels: its classes (B,).
        blocks: described by hand, if they are not to be found.
        output: from what the model returns to logits (B, classes).
        loss: a function of logits and labels.
    """
    # The copy takes the given blocks along, so that they name the copy's modules.
    network, described = copied(unwrapped(model), list(blocks) if blocks is not None else None)
    network.train().zero_grad()
    functional.reset_net(network)
    groups: list[Group] = described if described is not None else find_groups(network)
    inside = {id(node) for group in groups for node in group.neurons}
    outside = Group([node for node in nodes_of(network) if id(node) not in inside], "outside blocks")
    probes = {id(node): _Probe(node) for group in (outside, *groups) for node in group.neurons}
    heads = [LivingHeads(group.width) for group in groups]
    sources = [(source, alive.see) for group, alive in zip(groups, heads, strict=True) for source in group.sources]
    with torch.enable_grad(), reading(sources):
        value = loss(_logits(network(images), output), labels)
        value.backward()
    dead = [[], *(alive.dead for alive in heads)]
    parts = [
        _part(group.name or f"block {i - 1}", [probes[id(node)] for node in group.neurons], dead[i])
        for i, group in enumerate((outside, *groups))
        if group.neurons
    ]
    return Report(value.item(), parts)


def _logits(returned: Any, output: Callable[[Any], Tensor] | None) -> Tensor:
    logits = returned if output is None else output(returned)
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"the model returns a {type(logits).__name__}, not a tensor of logits; "
            "pass output=, such as output=lambda returned: returned[0]"
        )
    # SpikingJelly's Spikformer keeps the time steps.
    return logits.mean(0) if logits.ndim == 3 and output is None else logits


def _part(name: str, probes: list[_Probe], dead_heads: list[int]) -> Part:
    ran = [probe for probe in probes if probe.fired is not None]
    neurons = sum(probe.fired.numel() for probe in ran if probe.fired is not None)
    silent = sum(int((~probe.fired).sum()) for probe in ran if probe.fired is not None)
    gains = [probe.gain for probe in ran] or [0.0]
    problems = sorted({problem for probe in probes if (problem := probe.problem)})
    rate = sum(p.spikes for p in ran) / max(1, sum(p.outputs for p in ran))
    if ran and rate == 0:
        problems.append("all neurons silent")
    if dead_heads:
        problems.append("dead heads")
    share = silent / max(1, neurons)
    return Part(name, len(probes), rate, share, (min(gains), max(gains)), dead_heads, problems)
