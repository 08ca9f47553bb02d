"""Fashion-MNIST from its four IDX files, packed or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .dataset import Data, Images, folder_of
from .errors import DataError

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
MOST = 64 * 2**20  # bytes of the largest file, unpacked: 47,040,016
CURE = (
    "Debian's package dataset-fashion-mnist puts the files into "
    f"{DEBIAN}; elsewhere get them from https://github.com/zalandoresearch/fashion-mnist"
)


def load(folder: Path | None = None) -> Data:
    """Fashion-MNIST: 60,000 training and 10,000 test images of 28x28 in grey, in memory; without a folder, Debian's."""
    folder = folder_of("fashion-mnist", folder or (DEBIAN if DEBIAN.is_dir() else None), CURE)
    nested = folder / "FashionMNIST" / "raw"  # torchvision's layout
    folder = nested if nested.is_dir() else folder
    train, test = _images(folder, "train"), _images(folder, "t10k")
    return Data("fashion-mnist", train, test, CLASSES, channels=1, size=28, mean=(0.2860,), std=(0.3530,))


def _images(folder: Path, part: str) -> Images:
    pixels = _read_idx(_find(folder, f"{part}-images-idx3-ubyte"), dimensions=3)
    path = _find(folder, f"{part}-labels-idx1-ubyte")
    labels = _read_idx(path, dimensions=1)
    if pixels.shape[1:] != (28, 28):
        raise DataError(f"{folder}: {part} images are {tuple(pixels.shape[1:])}, expected (28, 28); {CURE}")
    if len(pixels) != len(labels):
        raise DataError(f"{path} has {len(labels)} labels for {len(pixels)} images; take both files anew. {CURE}")
    if len(labels) == 0:
        raise DataError(f"{path} holds no label; {CURE}")
    if (largest := int(labels.max())) >= len(CLASSES):
        raise DataError(f"{path}: label {largest} of image {int(labels.argmax())} is outside 0..9; {CURE}")
    return Images(pixels.unsqueeze(1), labels.long())


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"fashion-mnist: {folder} has neither {name} nor {name}.gz; {CURE}")


def _read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes of an IDX file: two zeros, 8 for unsigned bytes, the number of dimensions, their sizes, the values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MOST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}): it is truncated or no gzip file; {CURE}") from None
    if len(content) > MOST:
        raise DataError(f"{path} holds more than {MOST:,} bytes, which is no file of this data set; {CURE}")
    expected = bytes((0, 0, 8, dimensions))
    if content[:4] != expected:
        starts = f"'{content[:4].hex(' ')}', an IDX file of this kind with {expected.hex(' ')}"
        raise DataError(f"{path} starts with {starts}; {CURE}")
    head = 4 + 4 * dimensions
    if len(content) < head:
        raise DataError(f"{path} ends inside its header after {len(content)} bytes; {CURE}")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    if len(content) - head != math.prod(shape):
        raise DataError(
            f"{path} holds {len(content) - head} bytes of values, its header says {math.prod(shape)} {shape}; {CURE}"
        )
    # A copy, because torch wants memory that it may write to.
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy())
