"""How good a trained network is and what it costs: accuracy, confusion, firing rates, operations, energy."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..notebook import ShownInNotebooks
from ..screen import cell, sheet, shown
from .energy import AC_PJ, MAC_PJ, SOURCE, Activity, measure
from .evaluation import evaluate
from .run import Run, Which

COUNTED_IMAGES = 256  # operations vary little from image to image, and counting takes several times a forward pass
SHOWN_CLASSES = 12  # a larger confusion matrix fits no screen


@dataclass(frozen=True)
class Assessment(ShownInNotebooks):
    """Prints as tables in rich; accuracies in per cent, confusion (true, predicted) in images."""

    run: str
    weights: Which
    images: int
    classes: tuple[str, ...]
    top1: float
    top5: float
    loss: float
    confusion: Tensor
    activity: Activity
    unfinished: str | None = None  # how far a run is that still has epochs to go

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        activity = self.activity
        return {
            "run": self.run,
            "weights": self.weights,
            "unfinished": self.unfinished,
            "silent_from": activity.silent_from,
            "images": self.images,
            "top1": self.top1,
            "top5": self.top5,
            "loss": self.loss,
            "classes": list(self.classes),
            "confusion": self.confusion.tolist(),
            "per_image": {
                "counted_on": activity.images,
                "sops": activity.sops,
                "macs": activity.macs,
                "energy_uj": activity.energy_uj,
                "ann_macs": activity.ann_macs,
                "ann_energy_uj": activity.ann_energy_uj,
            },
            "costs": {"mac_pj": MAC_PJ, "ac_pj": AC_PJ, "source": SOURCE},
            "layers": {name: asdict(layer) for name, layer in activity.layers.items()},
        }

    def __rich__(self) -> RenderableType:
        head = (
            f"{self.run}, {self.weights} weights: top-1 {self.top1:.2f} %, top-5 {self.top5:.2f} %, "
            f"loss {self.loss:.4f} on {self.images} test images"
        )
        head = f"{self.unfinished}\n{head}" if self.unfinished else head
        return Group(
            Text(shown(head)), "", _confusion(self), "", _layers(self.activity), "", Text(_energy(self.activity))
        )


def assess(run: Run, which: Which = "last") -> Assessment:
    """Evaluate on the whole test set; rates and operations on images spread evenly over it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, classes = run.network(which).to(device), run.data.classes
    scores = evaluate(network, run.test_loader(), len(classes), device)
    activity = measure(network, (batch.images.to(device) for batch in run.test_loader(COUNTED_IMAGES).epoch(0)))
    return Assessment(
        run.name, which, len(run.data.test), classes, **scores, activity=activity, unfinished=run.unfinished(which)
    )


def _confusion(assessment: Assessment) -> Table:
    """The whole matrix where it fits, else the pairs that are mistaken most."""
    confusion, classes = assessment.confusion, [cell(name) for name in assessment.classes]
    if len(classes) <= SHOWN_CLASSES:
        table = sheet("true", title="confusion, in images: the true class is the row, what was predicted the column")
        for name in classes:
            table.add_column(name, justify="right")
        for name, row in zip(classes, confusion.tolist(), strict=True):
            table.add_row(name, *(str(count) if count else "·" for count in row))
        return table
    table = sheet("true", "predicted", "images", title="mistaken most often")
    wrong = confusion.clone().fill_diagonal_(0)
    for pair in wrong.flatten().argsort(descending=True, stable=True)[:10].tolist():
        true, predicted = divmod(pair, len(classes))
        if wrong[true, predicted]:
            table.add_row(classes[true], classes[predicted], str(int(wrong[true, predicted])))
    return table


def _layers(activity: Activity) -> Table:
    table = sheet("layer", title=f"per layer and image, on {activity.images} images")
    for name in ("firing rate", "SOPs (AC)", "MACs", "MACs as ANN"):
        table.add_column(name, justify="right")
    for name, layer in activity.layers.items():
        rate = "" if layer.firing_rate is None else f"{layer.firing_rate:.1%}"
        table.add_row(name, rate, *map(_count, (layer.acs, layer.macs, layer.ann_macs)))
    table.add_section()
    table.add_row("all", "", *map(_count, (activity.sops, activity.macs, activity.ann_macs)))
    return table


def _energy(activity: Activity) -> str:
    silent = activity.silent_from
    if activity.is_silent:
        return (
            f"energy per image means nothing here: the network is silent from {silent} on, no spike reaches its "
            "output; `sage-snn check` on the run tells where gradients vanish"
        )
    spiking, ann = activity.energy_uj, activity.ann_energy_uj
    around = f"silent from {silent} on: what comes before reaches the output around it\n" if silent else ""
    ratio = f" ({ann / spiking:.2f} times as much)" if spiking else ""
    return (
        f"{around}energy per image: {spiking:.4g} µJ spiking, {ann:.4g} µJ as an ANN of the same layers{ratio}\n"
        f"{MAC_PJ} pJ per MAC, {AC_PJ} pJ per AC: {SOURCE}; arithmetic only, no memory access. "
        "The first convolution sees real-valued images: MACs, made once for all time steps"
    )


def _count(operations: float) -> str:
    return f"{operations:,.0f}" if operations else "·"
