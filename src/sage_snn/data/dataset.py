"""Labelled sets of images, and what every loader of them shares: choosing, checking, measuring."""

import io
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ..files import read_bytes
from .errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # whatever a file is called: for EPS, Pillow would start an interpreter


@dataclass(frozen=True, eq=False)
class Labelled:
    """A labelled set of anything: pixels in memory, or the paths of files; labels int64 (n,)."""

    is_events: ClassVar[bool] = False  # then time comes first, and a batch is (T, B, C, H, W)

    pixels: Tensor | Sequence[Path]
    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.dim() != 1:
            raise DataError(f"labels must be int64 of shape (n,), not {self.labels.dtype} {tuple(self.labels.shape)}")
        if len(self.pixels) != len(self.labels):
            raise DataError(f"{len(self.pixels)} images but {len(self.labels)} labels: give every image one label")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def channels(self) -> int:
        """Of every item."""

    @abstractmethod
    def item(self, index: int) -> Any:
        """One of them, as a transform takes it."""

    def select(self, indices: Tensor) -> Self:
        """The items of these indices, in this order."""
        pixels = self.pixels
        chosen = pixels[indices] if isinstance(pixels, Tensor) else [pixels[i] for i in indices.tolist()]
        return replace(self, pixels=chosen, labels=self.labels[indices])

    def subset(self, n: int, seed: int, number: int = 0) -> Self:
        """`n` items with every class in its share, the same ones for the same seed, in their old order.

        Subsets of two numbers share no item.
        """
        return self if n == len(self) and not number else self.select(stratified(self.labels, n, seed, number))


@dataclass(frozen=True, eq=False)
class Images(Labelled):
    """A labelled set: pixels in memory, uint8 (n, C, H, W), or the paths of picture files; labels int64 (n,)."""

    def __post_init__(self) -> None:
        if isinstance(self.pixels, Tensor):
            shape = tuple(self.pixels.shape)
            if self.pixels.dtype != torch.uint8 or len(shape) != 4 or shape[1] not in (1, 3):
                raise DataError(
                    f"pixels must be uint8 of shape (n, 1 or 3, height, width), not {self.pixels.dtype} {shape}"
                )
        super().__post_init__()

    def __repr__(self) -> str:
        return f"<{len(self)} images>"

    @property
    def channels(self) -> int:
        """Of every image; those in files are read in colour."""
        return self.pixels.shape[1] if isinstance(self.pixels, Tensor) else 3

    def item(self, index: int) -> Image.Image:
        """The same as `picture`."""
        return self.picture(index)

    def picture(self, index: int) -> Image.Image:
        """One image, mode L for pixels of one channel in memory and RGB for all others."""
        if not isinstance(self.pixels, Tensor):
            return _open(self.pixels[index])
        pixels = self.pixels[index].permute(1, 2, 0).numpy()
        height, width, channels = pixels.shape
        # Half the time of Image.fromarray, which is felt with images this small.
        return Image.frombytes("L" if channels == 1 else "RGB", (width, height), pixels.tobytes())


@dataclass(frozen=True, eq=False)
class Data:
    """A classification task: square images of `size` pixels, to be normalised by `mean` and `std` per channel.

    Or recordings of events, which are counts: without a mean and a deviation.
    """

    name: str
    train: Labelled
    test: Labelled
    classes: tuple[str, ...]
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for part, images in (("training", self.train), ("test", self.test)):
            if len(images) == 0:
                raise DataError(f"{self.name}: there is no {part} image")
            wrong = ((images.labels < 0) | (images.labels >= len(self.classes))).nonzero().flatten().tolist()
            if wrong:
                raise DataError(
                    f"{self.name}: label {int(images.labels[wrong[0]])} of {part} image {wrong[0]} is outside "
                    f"0..{len(self.classes) - 1} ({len(wrong)} such); number the {len(self.classes)} classes from 0"
                )
            if (channels := images.channels) != self.channels:
                raise DataError(
                    f"{self.name}: {part} images have {channels} channels, expected {self.channels}; convert them"
                )
        normalised = 0 if self.is_events else self.channels
        if not len(self.mean) == len(self.std) == normalised:
            raise DataError(f"{self.name}: mean and std need {normalised} values each")

    @property
    def is_events(self) -> bool:
        """Recordings of events, or images?"""
        return self.train.is_events

    @property
    def shape(self) -> dict[str, int]:
        """What a network must know of the data."""
        return {"classes": len(self.classes), "size": self.size, "channels": self.channels}


def stratified(labels: Tensor, n: int, seed: int, number: int = 0) -> Tensor:
    """Ascending indices of `n` items, each class in its share to within one, drawn from the seed alone.

    Choices of two numbers share no item.
    """
    total = len(labels)
    if not 1 <= n <= total:
        raise DataError(f"cannot choose {n} of {total} images; ask for 1 to {total}")
    _, places, counts = labels.unique(return_inverse=True, return_counts=True)
    # Integers throughout, so that a share never depends on rounding: the largest remainders get the odd images.
    quota, remainder = n * counts // total, n * counts % total
    quota[remainder.argsort(descending=True, stable=True)[: n - int(quota.sum())]] += 1
    room = int((counts // quota.clamp(min=1)).min())
    if not 0 <= number < room:
        raise DataError(f"there is no subset {number} of {n} images: {total} hold {room} that share none, from 0 on")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    by_class = order[places[order].argsort(stable=True)].split(counts.tolist())
    taken = [members[number * k : (number + 1) * k] for members, k in zip(by_class, quota.tolist(), strict=True)]
    return torch.cat(taken).sort().values


def split(images: Images, seed: int = 0) -> tuple[Images, Images]:
    """Training and test images, 80 and 20 per cent of every class."""
    if len(images) < 2:
        raise DataError(f"{len(images)} images cannot be split into training and test images; give at least 2")
    held_out = torch.zeros(len(images), dtype=torch.bool)
    held_out[stratified(images.labels, -(-len(images) // 5), seed)] = True
    return images.select((~held_out).nonzero().flatten()), images.select(held_out.nonzero().flatten())


def moments(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel on the scale 0..1; a constant channel has deviation 1, not 0."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in pixels.unbind(1):
        # A histogram: exact whatever the number of images, and no copy of them as floats.
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = float((share * values).sum())
        means.append(mean)
        deviations.append(float((share * (values - mean) ** 2).sum().sqrt()) or 1.0)
    return tuple(means), tuple(deviations)


def folder_of(name: str, folder: Path | None, cure: str) -> Path:
    """The folder, which is there, or an error that says how to get one."""
    if folder is None:
        raise DataError(f"{name} needs its data folder (--data-dir FOLDER); {cure}")
    if not folder.is_dir():
        raise DataError(f"{name}: {folder} is {'not a folder' if folder.exists() else 'not there'}; {cure}")
    return folder


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(io.BytesIO(read_bytes(path)), formats=FORMATS) as picture:
            return picture.convert("RGB")  # photographs come as L and CMYK, too
    except FileNotFoundError:
        raise DataError(f"{path} is gone: it was there when the folder was listed; copy it back") from None
    except UnidentifiedImageError:
        raise DataError(
            f"{path} cannot be read as a picture (it is none of {', '.join(FORMATS)}); copy that file again"
        ) from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as a picture ({error}); copy that file again") from None
