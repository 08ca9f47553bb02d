"""What the attention of a trained network does: slopes, entropy per head, dead heads, maps of a few images.

T time steps, B batch, H heads, N tokens, K head width.
"""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from torch import Tensor, nn

from ..control import Block, LivingHeads, find_groups, nodes_of, reading
from ..notebook import ShownInNotebooks
from ..recipes.policies import POLICIES
from ..screen import cell, sheet
from ..signals import HeadEntropy, population_std
from .attention_maps import attention_figure
from .folder import RunError, write_atomically
from .layers import LayerInspection, inspect_layers
from .run import Run, Which

READ_IMAGES = 64


@dataclass(frozen=True)
class BlockReport:
    """Of one block: its slope at the end of training, and what its heads do on test images."""

    name: str
    neurons: int
    slope: float | None
    entropy: list[float]  # per head
    dispersion: float
    dead_heads: list[int]  # heads whose query or key never fired


@dataclass(frozen=True)
class Inspection(ShownInNotebooks):
    """Prints as a table in rich."""

    run: str
    policy: str
    images: int
    blocks: list[BlockReport]
    figure: Path  # of all blocks, the mean of their heads
    head_figures: list[Path]  # a block each, with its heads
    unfinished: str | None = None  # how far a run is that still has epochs to go

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self) | {"figure": str(self.figure), "head_figures": [str(path) for path in self.head_figures]}

    def __rich__(self) -> RenderableType:
        table = sheet("block", title=f"{self.run}, {self.policy} policy")
        for name in ("neurons", "slope", "dispersion", "dead heads"):
            table.add_column(name, justify="right")
        heads = sheet("block", "entropy per head")  # a table of its own: twelve heads are as wide as a terminal
        for block in self.blocks:
            slope = "-" if block.slope is None else f"{block.slope:.4f}"
            dead = ", ".join(map(str, block.dead_heads)) or "-"
            entropy = " ".join(f"{value:.3f}" for value in block.entropy)
            table.add_row(block.name, str(block.neurons), slope, f"{block.dispersion:.2e}", dead)
            heads.add_row(block.name, entropy)
        told = f"entropy and dead heads on {self.images} test images; attention maps: {self.figure}, "
        told += f"and of single heads {', '.join(path.name for path in self.head_figures)} beside it"
        lines = [cell(self.unfinished)] if self.unfinished else []
        return Group(*lines, table, "", heads, "", cell(told))


def inspect_run(run: Run, images: int = 4, which: Which = "last") -> Inspection | LayerInspection:
    """Look into the blocks of a run's network; maps of `images` test images go to inspection/attention.png.

    Those of single heads are beside it, a picture per block: attention-0.png, attention-1.png, ...

    Of a network without attention, look at its layers.
    """
    network, signal = run.network(which), HeadEntropy(POLICIES.fields(run.recipe.policy)["temperature"])
    blocks = _blocks(run, network)
    if not blocks:
        return inspect_layers(run, network, which)
    watches = [_Watch(block, signal) for block in blocks]
    loader = run.test_loader(READ_IMAGES)
    with _reading(watches):
        _pass_through(network, [batch.images for batch in loader.epoch(0)])
    state = run.policy_state
    slopes = state["slopes"].tolist() if state else [None] * len(watches)
    reports = [watch.report(i, slope) for i, (watch, slope) in enumerate(zip(watches, slopes, strict=True))]
    figures = _draw_maps(run, network, watches, [report.entropy for report in reports], images)
    kind, seen = run.recipe.policy.kind, len(loader.images)
    return Inspection(run.name, kind, seen, reports, figures[0], figures[1:], run.unfinished(which))


def _blocks(run: Run, network: nn.Module) -> list[Block]:
    try:
        return [group for group in find_groups(network) if isinstance(group, Block)] if nodes_of(network) else []
    except ValueError as error:
        raise RunError(f"{run.name}: {error}") from None


@dataclass
class _Watch:
    """Reads query and key of one block, batch by batch, and keeps sums only: the maps themselves are large."""

    block: Block
    signal: HeadEntropy
    entropies: list[Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    received: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heads = LivingHeads(self.block.heads)

    def take(self, q: Tensor, k: Tensor, scale: float) -> None:
        """Query and key of one batch."""
        self.entropies.append(self.signal(q, k, scale))
        self.sizes.append(q.shape[1])
        self.heads.see(q, k, scale)
        # Mean over queries first: the whole map (T, B, H, N, N) is never formed.
        scores = scale * q.mean(-2, keepdim=True) @ k.transpose(-1, -2)
        self.received.append(scores.squeeze(-2).mean(0))  # (B, H, N)

    def report(self, index: int, slope: float | None) -> BlockReport:
        """Summary over all batches."""
        weights = torch.tensor(self.sizes, dtype=torch.float64)
        entropy = (torch.stack(self.entropies) * weights[:, None]).sum(0) / weights.sum()
        name, neurons = self.block.name or f"block {index}", len(self.block.neurons)
        return BlockReport(name, neurons, slope, entropy.tolist(), float(population_std(entropy)), self.heads.dead)


def _reading(watches: list[_Watch]) -> AbstractContextManager[None]:
    return reading((watch.block.source, watch.take) for watch in watches)


@torch.no_grad()
def _pass_through(network: nn.Module, batches: list[Tensor]) -> list[int]:
    """The class that the network gives each image."""
    return [answer for batch in batches for answer in network(batch).argmax(-1).tolist()]


def _shown(run: Run, images: Tensor) -> Tensor:
    """Pictures (B, C, height, width) in 0..1: images as they were, of events how many a pixel had in all frames."""
    if run.is_events:
        counts = images.sum((0, 2)).unsqueeze(1)
        return counts / counts.amax((1, 2, 3), keepdim=True).clamp(min=1)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (run.data.mean, run.data.std))
    return (images * std + mean).clamp(0, 1)


def _draw_maps(
    run: Run, network: nn.Module, watches: list[_Watch], entropy: list[list[float]], images: int
) -> list[Path]:
    """Of a few images: first a picture of all blocks, then one of the heads of each block."""
    fresh = [_Watch(watch.block, watch.signal) for watch in watches]
    batches = list(run.test_loader(images).epoch(0))
    with _reading(fresh):
        answers = _pass_through(network, [batch.images for batch in batches])
    pictures = torch.cat([_shown(run, batch.images) for batch in batches])
    labels = torch.cat([batch.labels for batch in batches])
    classes = run.data.classes
    captions = [
        f"{classes[label]}\npredicted {classes[answer]}" for label, answer in zip(labels.tolist(), answers, strict=True)
    ]
    heads = {watch.block.name or f"block {i}": torch.cat(watch.received) for i, watch in enumerate(fresh)}
    drawn = {"attention": attention_figure(pictures, captions, {name: maps.mean(1) for name, maps in heads.items()})}
    for i, (name, maps) in enumerate(heads.items()):
        titled = {f"head {h}, entropy {value:.3f}": maps[:, h] for h, value in enumerate(entropy[i])}
        drawn[f"attention-{i}"] = attention_figure(pictures, captions, titled, title=name, one_scale=True)
    try:
        run.pictures.mkdir(parents=True, exist_ok=True)
        for name, png in drawn.items():
            write_atomically(run.pictures / f"{name}.png", png)
    except OSError as error:
        raise RunError(f"cannot write to {run.pictures}: {error.strerror}; make the run's folder writable") from None
    return [run.pictures / f"{name}.png" for name in drawn]
