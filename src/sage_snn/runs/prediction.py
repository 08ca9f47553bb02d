"""What a run's network says of images that nobody has labelled: files of pictures, or arrays in an .npz file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from ..data import DataError, Images
from ..data.arrays import read_images
from ..data.pipeline import plain_transform
from ..notebook import ShownInNotebooks
from ..screen import cell, sheet
from .card import card_of
from .folder import RunError
from .run import Run, Which

BATCH = 32  # images at a time
Named = tuple[str, Image.Image]  # what people call it, and its pixels


@dataclass(frozen=True)
class Prediction:
    """Probability of every class, the likeliest first."""

    image: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Predictions(ShownInNotebooks):
    """Of several images, in their order; the table shows the likeliest `top` classes."""

    images: list[Prediction]
    top: int

    def as_dict(self) -> list[dict[str, Any]]:
        """Plain data."""
        return [
            {"image": one.image, "class": next(iter(one.probabilities)), "probabilities": one.probabilities}
            for one in self.images
        ]

    def __rich__(self) -> Table:
        """A line per image."""
        shown = sheet()
        shown.add_column("image", overflow="fold")
        for rank in range(self.top):
            shown.add_column("class" if not rank else f"{rank + 1}.")
        for one in self.images:
            likeliest = list(one.probabilities.items())[: self.top]
            shown.add_row(cell(one.image), *(cell(f"{name} {100 * p:.1f} %") for name, p in likeliest))
        return shown


def predict(run: Run, sources: Sequence[Path], which: Which = "last", top: int = 3) -> Predictions:
    """Classes of the images in all sources, prepared as the run's test images were; its data set is not needed."""
    if run.is_events:
        raise RunError(
            f"predict reads pictures, and {run.name} was trained on events ({run.recipe.data}); give frames "
            "(T, B, 2, H, W) to its network in Python: sage_snn.load(RUN)(frames)"
        )
    card = card_of(run, which)
    if "classes" not in card:
        raise RunError(
            f"{run.folder.path} does not say how its images were normalised, nor can its data be read; give --data-dir"
        )
    channels, size, _ = card["input"]
    images = [named for path in sources for named in _images(path, channels)]
    transform = plain_transform(size, tuple(card["mean"]), tuple(card["std"]), in_files=True)
    network, chances = run.network(which), list[Tensor]()
    for first in track(range(0, len(images), BATCH), "predicting", console=Console(stderr=True), transient=True):
        batch = torch.stack([transform(picture) for _, picture in images[first : first + BATCH]])
        with torch.no_grad():
            chances += torch.softmax(network(batch).double(), 1)
    classes = card["classes"]
    told = [_prediction(name, chance, classes) for (name, _), chance in zip(images, chances, strict=True)]
    return Predictions(told, min(top, len(classes)))


def _images(path: Path, channels: int) -> Iterator[Named]:
    """Every image of a file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise DataError(f"{path} {what}; give files of pictures, or .npz files with an array `images`")
    if path.suffix == ".npz":
        pixels = read_images(path)
        held, names = Images(pixels, _unlabelled(len(pixels))), [f"{path}[{i}]" for i in range(len(pixels))]
    else:
        held, names = Images([path], _unlabelled(1)), [str(path)]
    for index, name in enumerate(names):
        yield name, held.picture(index).convert("L" if channels == 1 else "RGB")


def _unlabelled(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


def _prediction(name: str, chances: Tensor, classes: Sequence[str]) -> Prediction:
    told = dict(zip(classes, chances.tolist(), strict=True))
    return Prediction(name, dict(sorted(told.items(), key=lambda one: -one[1])))
