"""Accuracy of a model on a test set, and how often its neurons fire."""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from ..control import is_node, watching
from ..data import Loader, ahead


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader, classes: int, device: torch.device) -> dict[str, Any]:
    """loss, top1 and top5 (in %) and the confusion matrix (true, predicted) over the whole set, all ranks together."""
    model.eval()
    metrics = MetricCollection(
        {
            "top1": MulticlassAccuracy(classes, top_k=1, average="micro"),
            "top5": MulticlassAccuracy(classes, top_k=min(5, classes), average="micro"),
            "confusion": MulticlassConfusionMatrix(classes),
        },
        compute_groups=False,
    ).to(device)
    losses = MeanMetric(nan_strategy=math.nan).to(device)  # which stays what it is; the default is to leave it out
    for images, labels, _ in ahead(loader.epoch(0), device):
        logits = model(images).float()
        metrics.update(logits, labels)
        losses.update(F.cross_entropy(logits, labels), weight=len(labels))
    scores = metrics.compute()
    return {
        "loss": float(losses.compute()),
        "top1": 100 * float(scores["top1"]),
        "top5": 100 * float(scores["top5"]),
        "confusion": scores["confusion"].cpu(),
    }


@torch.no_grad()
def firing_rates(network: nn.Module, loader: Loader) -> dict[str, float]:
    """Share of neurons, images and time steps that spike, per node, on the first test batch."""
    rates: dict[str, float] = {}

    def look(name: str, output: Tensor) -> None:
        rates[name] = int(torch.count_nonzero(output)) / output.numel()

    network.eval()
    device = next(network.parameters()).device
    with watching((module, partial(look, name)) for name, module in network.named_modules() if is_node(module)):
        network(next(iter(loader.epoch(0, 0, 1))).images.to(device))
    return rates
