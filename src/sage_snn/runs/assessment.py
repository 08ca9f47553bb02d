"""How good a trained network is and what it costs: accuracy, confusion, firing rates, operations, energy."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ..inference import Weights, fuse
from ..notebook import ShownInNotebooks
from ..screen import cell, sheet, shown
from .energy import AC_PJ, MAC_PJ, SOURCE, Activity, measure
from .evaluation import evaluate
from .run import Run, Which
from .work import Work, measure_work

COUNTED_IMAGES = 256  # operations vary little from image to image, and counting takes several times a forward pass
UNITS = ("", " k", " M", " G", " T")  # thousands, millions ...
SHOWN_CLASSES = 12  # a larger confusion matrix fits no screen


@dataclass(frozen=True)
class Rounded:
    """What rounding weights to int8 changed: top-1 in float32 in per cent, share of images that keep their class."""

    float32_top1: float
    same_class: float


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
    work: Work | None = None  # what this machine did
    rounded: Rounded | None = None  # of int8 weights: beside those of float32
    is_events: bool = False  # or images

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
                "macs_done": self.work and self.work.macs,
                "seconds": self.work and self.work.seconds,
            },
            "weights_as": "float32" if self.rounded is None else "int8",
            "rounded": self.rounded and asdict(self.rounded),
            "work": self.work and asdict(self.work),
            "costs": {"mac_pj": MAC_PJ, "ac_pj": AC_PJ, "source": SOURCE},
            "layers": {name: asdict(layer) for name, layer in activity.layers.items()},
        }

    def __rich__(self) -> RenderableType:
        head = (
            f"{self.run}, {self.weights} weights: top-1 {self.top1:.2f} %, top-5 {self.top5:.2f} %, "
            f"loss {self.loss:.4f} on {self.images} test images"
        )
        if self.rounded is not None:
            was, same = self.rounded.float32_top1, self.rounded.same_class
            head += f"\nweights as int8; in float32 top-1 is {was:.2f} %, and {same:.2%} of the images keep their class"
        head = f"{self.unfinished}\n{head}" if self.unfinished else head
        return Group(
            *(Text(shown(head)), "", _confusion(self), "", _layers(self.activity, self.work), ""),
            Text(_energy(self.activity, self.is_events) + _done(self.activity, self.work)),
        )


def assess(run: Run, which: Which = "last", weights_as: Weights = "float32") -> Assessment:
    """Evaluate on the whole test set; rates and operations on images spread evenly over it.

    With int8 weights accuracy, time and what is done are those of the rounded network; spikes are counted as trained.
    """
    is_whole = weights_as == "int8"
    device = torch.device("cuda" if torch.cuda.is_available() and not is_whole else "cpu")
    network, classes = run.network(which).to(device), run.data.classes
    runs: nn.Module = fuse(network, "int8") if is_whole else network
    answers = _Answers(runs)
    scores = evaluate(answers, run.test_loader(), len(classes), device)
    rounded = _rounded(answers, network, run, len(classes)) if is_whole else None
    images = [batch.images.to(device) for batch in run.test_loader(COUNTED_IMAGES).epoch(0)]
    return Assessment(
        *(run.name, which, len(run.data.test), classes),
        **scores,
        activity=measure(network, images),
        unfinished=run.unfinished(which),
        work=measure_work(runs, images),
        rounded=rounded,
        is_events=run.is_events,
    )


class _Answers(nn.Module):
    """A network, and the classes that it gave."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.classes = network, list[Tensor]()

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits = self.network(images)
        self.classes.append(logits.argmax(1))
        return logits


def _rounded(answers: _Answers, network: nn.Module, run: Run, classes: int) -> Rounded:
    exact = _Answers(network)
    top1 = evaluate(exact, run.test_loader(), classes, torch.device("cpu"))["top1"]
    same = torch.cat(exact.classes) == torch.cat(answers.classes)
    return Rounded(top1, float(same.double().mean()))


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


def _layers(activity: Activity, work: Work | None) -> Table:
    table = sheet(title=f"per layer and image, on {activity.images} images")
    table.add_column("layer", overflow="fold")  # to its last letter, whatever the terminal's width
    for name in ("firing\nrate", "SOPs\n(AC)", "MACs", "MACs\nas ANN", *(("done\nhere", "µs") if work else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for name, layer in activity.layers.items():
        rate = "" if layer.firing_rate is None else f"{layer.firing_rate:.1%}"
        done = work and work.layers.get(name)
        cost = (_count(done.macs), f"{done.seconds * 1e6:,.0f}") if done else ()
        table.add_row(name, rate, *map(_count, (layer.acs, layer.macs, layer.ann_macs)), *cost)
    table.add_section()
    if work:
        table.add_row("between layers", "", "", "", "", "", f"{work.rest * 1e6:,.0f}")
    cost = (_count(work.macs), f"{work.seconds * 1e6:,.0f}") if work else ()
    table.add_row("all", "", *map(_count, (activity.sops, activity.macs, activity.ann_macs)), *cost)
    return table


def _done(activity: Activity, work: Work | None) -> str:
    """How much of the sparsity on paper arrived."""
    needed = activity.sops + activity.macs
    if work is None or not needed or not work.seconds:
        return ""
    return (
        f"\ndone here, on {work.threads} threads: {work.macs:,.0f} multiply-accumulates, or additions where a product "
        f"walks events, in {work.seconds * 1e3:.3g} ms per image ({work.macs / work.seconds / 1e9:.3g} billion a "
        f"second), {work.macs / needed:.1f} times the operations that spikes need: a dense product works on zeros too, "
        "and over events a sum of several spikes is one product"
    )


def _energy(activity: Activity, is_events: bool) -> str:
    silent = activity.silent_from
    if activity.is_silent:
        return (
            f"energy per image means nothing here: the network is silent from {silent} on, no spike reaches its "
            "output; `sage-snn check` on the run tells where gradients vanish"
        )
    spiking, ann = activity.energy_uj, activity.ann_energy_uj
    around = f"silent from {silent} on: what comes before reaches the output around it\n" if silent else ""
    ratio = f" ({ann / spiking:.2f} times as much)" if spiking else ""
    seen = (
        "counts of events: an AC for each event and weight that it meets"
        if is_events
        else "real-valued images: MACs, made once for all time steps"
    )
    return (
        f"{around}energy per image: {spiking:.4g} µJ spiking, {ann:.4g} µJ as an ANN of the same layers{ratio}\n"
        f"{MAC_PJ} pJ per MAC, {AC_PJ} pJ per AC: {SOURCE}; arithmetic only, no memory access. "
        f"The first convolution sees {seen}"
    )


def _count(operations: float) -> str:
    """Three digits, such as 1.18 M; the JSON has them all."""
    if not operations:
        return "·"
    rounded = float(f"{operations:.3g}")
    power = min(max(int(math.log10(rounded) // 3), 0), len(UNITS) - 1)
    return f"{rounded / 1000**power:.3g}{UNITS[power]}"
