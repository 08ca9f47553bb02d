"""What the attention of a trained network does: slopes, entropy per head, dead heads, maps of a few images.

T time steps, B batch, H heads, N tokens, K head width.
"""

import io
import math
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
    figure: Path
    unfinished: str | None = None  # how far a run is that still has epochs to go

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self) | {"figure": str(self.figure)}

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
        told = f"entropy and dead heads on {self.images} test images; attention maps: {self.figure}"
        lines = [cell(self.unfinished)] if self.unfinished else []
        return Group(*lines, table, "", heads, "", cell(told))


def inspect_run(run: Run, images: int = 4, which: Which = "last") -> Inspection | LayerInspection:
    """Look into the blocks of a run's network; maps of `images` test images go to inspection/attention.png.

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
    figure = _draw_maps(run, network, watches, images)
    return Inspection(run.name, run.recipe.policy.kind, len(loader.images), reports, figure, run.unfinished(which))


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
        self.received.append(scores.squeeze(-2).mean((0, 2)))

    def report(self, index: int, slope: float | None) -> BlockReport:
        """Summary over all batches."""
        weights = torch.tensor(self.sizes, dtype=torch.float64)
        entropy = (torch.stack(self.entropies) * weights[:, None]).sum(0) / weights.sum()
        name, neurons = self.block.name or f"block {index}", len(self.block.neurons)
        return BlockReport(name, neurons, slope, entropy.tolist(), float(population_std(entropy)), self.heads.dead)


def _reading(watches: list[_Watch]) -> AbstractContextManager[None]:
    return reading((watch.block.source, watch.take) for watch in watches)


@torch.no_grad()
def _pass_through(network: nn.Module, batches: list[Tensor]) -> None:
    for batch in batches:
        network(batch)


def _draw_maps(run: Run, network: nn.Module, watches: list[_Watch], images: int) -> Path:
    """A row per image: the image, then for each block how much attention every token receives, mean over heads."""
    loader = run.test_loader(images)
    fresh = [_Watch(watch.block, watch.signal) for watch in watches]
    batches = list(loader.epoch(0))
    with _reading(fresh):
        _pass_through(network, [batch.images for batch in batches])
    pictures, labels = (torch.cat([getattr(batch, part) for batch in batches]) for part in ("images", "labels"))
    maps = {watch.block.name or f"block {i}": torch.cat(watch.received) for i, watch in enumerate(fresh)}
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (run.data.mean, run.data.std))
    png = attention_figure((pictures * std + mean).clamp(0, 1), [run.data.classes[i] for i in labels.tolist()], maps)
    path = run.folder.path / "inspection" / "attention.png"
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, png)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; make the run's folder writable") from None
    return path


def attention_figure(pictures: Tensor, labels: list[str], maps: dict[str, Tensor]) -> bytes:
    """PNG of pictures (B, C, height, width) in 0..1 beside maps (B, N) of each block, tokens row by row."""
    from matplotlib.figure import Figure

    rows, columns = len(pictures), 1 + len(maps)
    figure = Figure(figsize=(1.8 * columns, 1.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        axes[row][0].imshow(picture.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray")
        axes[row][0].set_ylabel(label)
        for column, (name, received) in enumerate(maps.items(), start=1):
            side = math.isqrt(received.shape[1])
            axes[row][column].imshow(received[row].view(side, side).numpy(), cmap="viridis", vmin=0)
            if not received[row].any():  # or the blank panel would look like a fault of the figure
                axes[row][column].set_xlabel("no coincident spikes", fontsize="small")
            axes[0][column].set_title(name.removesuffix(".attention"), fontsize="medium")
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()
