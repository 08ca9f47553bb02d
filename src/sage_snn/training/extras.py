"""What a run measures of its network once, at the end: operations and energy, accuracy against time steps."""

from typing import Any

import torch
from torch import Tensor, nn

from ..data import Data, Loader, test_transform
from ..recipes.recipe import ObservePart
from ..runs.energy import measure


def extras(network: Any, observe: ObservePart, data: Data, batch_size: int) -> dict[str, Any]:
    """For the summary: only what the recipe asks for."""
    told: dict[str, Any] = {}
    if observe.activity:
        told["activity"] = _activity(network, data, observe.activity)
    if observe.steps:
        told["top1_by_steps"] = _top1_by_steps(network, data, observe.steps, batch_size)
    return told


def first_images(data: Data, count: int) -> Tensor:
    """So many training images, spread evenly over the set, as a test would show them."""
    chosen = data.train.select(_spread(len(data.train), count))
    return torch.cat([batch.images for batch in Loader(chosen, test_transform(data), len(chosen)).epoch(0)])


def _activity(network: nn.Module, data: Data, count: int) -> dict[str, float]:
    chosen = data.test.select(_spread(len(data.test), count))
    loader, device = Loader(chosen, test_transform(data), min(32, len(chosen))), next(network.parameters()).device
    activity = measure(network, (batch.images.to(device) for batch in loader.epoch(0)))
    rates = [layer.firing_rate for layer in activity.layers.values() if layer.firing_rate is not None]
    told = {name: getattr(activity, name) for name in ("images", "sops", "macs", "energy_uj", "ann_energy_uj")}
    return told | {"firing_rate": sum(rates) / len(rates) if rates else float("nan")}


@torch.no_grad()
def _top1_by_steps(network: Any, data: Data, steps: tuple[int, ...], batch_size: int) -> dict[str, float]:
    """Accuracy when the answers of the first t steps are averaged; one pass with the largest t tells all."""
    own, device, right = network.time_steps, next(network.parameters()).device, dict.fromkeys(steps, 0)
    network.eval()
    network.time_steps = max(steps)
    try:
        for batch in Loader(data.test, test_transform(data), batch_size).epoch(0):
            sums = network.forward_steps(batch.images.to(device)).float().cumsum(0)
            for t in steps:
                right[t] += int((sums[t - 1].argmax(-1).cpu() == batch.labels).sum())
    finally:
        network.time_steps = own
    return {str(t): 100 * count / len(data.test) for t, count in right.items()}


def _spread(total: int, count: int) -> Tensor:
    return torch.linspace(0, total - 1, min(count, total)).round().long()
