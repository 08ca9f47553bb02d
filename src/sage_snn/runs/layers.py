"""What the neurons of a network without attention do: firing, silence, slope and threshold of every layer."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor, nn

from ..control import nodes_of, watching
from ..notebook import ShownInNotebooks
from ..screen import cell, sheet
from .folder import RunError
from .run import Run, Which

READ_IMAGES = 64


@dataclass(frozen=True)
class LayerReport:
    """Of one layer on test images: share of its neurons, images and steps that spike, share that never does."""

    name: str
    neurons: int
    firing_rate: float
    silent: float
    slope: float | None
    threshold: float | None


@dataclass(frozen=True)
class LayerInspection(ShownInNotebooks):
    """Prints as a table in rich."""

    run: str
    policy: str
    images: int
    layers: list[LayerReport]
    unfinished: str | None = None  # how far a run is that still has epochs to go

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)

    def __rich__(self) -> RenderableType:
        table = sheet("layer", title=f"{self.run}, {self.policy} policy")
        for name in ("neurons", "firing rate", "never fire", "slope", "threshold"):
            table.add_column(name, justify="right")
        for layer in self.layers:
            numbers = (f"{value:.4g}" if value is not None else "-" for value in (layer.slope, layer.threshold))
            table.add_row(layer.name, str(layer.neurons), f"{layer.firing_rate:.1%}", f"{layer.silent:.1%}", *numbers)
        lines = [cell(self.unfinished)] if self.unfinished else []
        return Group(*lines, table, Text(f"on {self.images} test images; there is no attention to draw"))


@torch.no_grad()
def inspect_layers(run: Run, network: nn.Module, which: Which) -> LayerInspection:
    """Look at every spiking node of a run's network."""
    names = {node: name for name, node in network.named_modules() if node in set(nodes_of(network))}
    if not names:
        raise RunError(
            f"{run.name} has nothing that fires to look into: its network is an ANN; `sage-snn eval` tells its accuracy"
        )
    counts: dict[nn.Module, Tensor] = {}
    seen = dict.fromkeys(names, 0)

    def look(node: nn.Module, spikes: Tensor) -> None:
        fired = spikes.ne(0).sum((0, 1))  # over time and batch: what is left is the population of neurons
        counts[node] = counts[node] + fired if node in counts else fired
        seen[node] += spikes.shape[0] * spikes.shape[1]

    loader = run.test_loader(READ_IMAGES)
    with watching((node, partial(look, node)) for node in names):
        for batch in loader.epoch(0):
            network(batch.images)
    slopes = _slopes(run)
    reports = [_report(name, counts[node], seen[node], slopes.get(name), node) for node, name in names.items()]
    return LayerInspection(run.name, run.recipe.policy.kind, len(loader.images), reports, run.unfinished(which))


def _report(name: str, counts: Tensor, seen: int, slope: float | None, node: nn.Module) -> LayerReport:
    rate, silent = float(counts.sum()) / (counts.numel() * seen), float((counts == 0).double().mean())
    threshold: Any = getattr(node, "threshold", None)
    threshold = (
        getattr(node, "v_threshold", None) if threshold is None else torch.as_tensor(threshold).detach().double().mean()
    )
    return LayerReport(name, counts.numel(), rate, silent, slope, None if threshold is None else float(threshold))


def _slopes(run: Run) -> dict[str, float]:
    """By the name of the layer, as the policy left them; none where no policy held them."""
    state = run.policy_state
    return {} if state is None else dict(zip(state["blocks"], state["slopes"].tolist(), strict=True))
