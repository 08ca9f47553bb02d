"""Images of one's own: an .npz file of arrays."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..files import require_room_for_zip
from .dataset import Data, Images, moments, split
from .digest import EXPECTED, KEYS, arrays_file
from .errors import UNREADABLE, DataError


def load(folder: Path | None) -> Data:
    """The arrays of an .npz file, or of the only one in a folder; classes are numbered 0 to the largest label."""
    path = arrays_file(folder)
    arrays = _read(path)
    if "images" in arrays:
        train, test = split(_images(path, arrays, ""))
    else:
        train, test = _images(path, arrays, "train_"), _images(path, arrays, "test_")
    assert isinstance(train.pixels, Tensor)
    assert isinstance(test.pixels, Tensor)
    if train.pixels.shape[1:] != test.pixels.shape[1:]:
        shapes = f"{tuple(train.pixels.shape[1:])} and {tuple(test.pixels.shape[1:])}"
        raise DataError(f"{path}: training and test images differ in shape, {shapes}; make them alike")
    if len(train) == 0:
        raise DataError(f"{path}: there is no training image")
    used = train.labels.unique()  # sorted
    if len(used) <= int(used[-1]):  # one stray label may be as large as memory
        absent = int((used != torch.arange(len(used))).nonzero()[0])
        raise DataError(f"{path}: no training image has the label {absent}; number the classes 0, 1, 2 ...")
    classes = tuple(str(label) for label in range(len(used)))
    mean, std = moments(train.pixels)
    channels, size = train.pixels.shape[1], train.pixels.shape[2]
    return Data(f"arrays {path.name}", train, test, classes, channels=channels, size=size, mean=mean, std=std)


def read_images(path: Path) -> Tensor:
    """The array `images` of an .npz file, uint8 (n, C, H, W); labels are not asked for."""
    return _bytes(path, "images", _channels_first(path, "images", _read(path, ["images"])["images"]))


def _read(path: Path, wanted: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Those arrays; by default the images and labels of a data set."""
    try:
        # Opened here, because numpy leaves the file open when it is no zip file.
        with path.open("rb") as stream:
            require_room_for_zip(stream)
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{path} is a single array; {EXPECTED}")
            wanted = wanted or (("images", "labels") if "images" in file else KEYS)
            missing = [key for key in wanted if key not in file]
            if missing:
                raise DataError(f"{path} lacks {', '.join(missing)} (it has {', '.join(file.files)[:300]}); {EXPECTED}")
            return {key: _array(path, file, key) for key in wanted}
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} is not there; {EXPECTED}") from None
    except UNREADABLE as error:
        why = str(error)[:300]  # numpy quotes a damaged header whole
        raise DataError(f"{path} cannot be read ({why}); {EXPECTED}") from None


def _array(path: Path, file: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    try:
        return file[key]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise DataError(
            f"{path}: {key} is an array of Python objects, which images of varying size become; "
            "bring all images to one size and save one uint8 array"
        ) from None


def _images(path: Path, arrays: dict[str, np.ndarray], prefix: str) -> Images:
    images, labels = arrays[f"{prefix}images"], arrays[f"{prefix}labels"]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{path}: {prefix}labels must be whole numbers (n,), not {labels.dtype} {labels.shape}")
    if images.ndim == 0:
        raise DataError(f"{path}: {prefix}images is a single number; {EXPECTED}")
    if len(images) != len(labels):
        raise DataError(f"{path}: {len(images)} {prefix}images but {len(labels)} {prefix}labels")
    if len(labels) and labels.min() < 0:
        raise DataError(f"{path}: {prefix}labels go down to {labels.min()}; number the classes 0, 1, 2 ...")
    pixels = _bytes(path, f"{prefix}images", _channels_first(path, f"{prefix}images", images))
    return Images(pixels, torch.from_numpy(labels.astype(np.int64)))


def _channels_first(path: Path, key: str, images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] == images.shape[2]:
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(
            f"{path}: {key} has shape {images.shape}; expected (n, H, W), (n, H, W, C) or (n, C, H, W) with C 1 or 3"
        )
    if images.shape[2] != images.shape[3] or images.shape[2] == 0:
        raise DataError(f"{path}: {key} are {images.shape[2]}x{images.shape[3]}; pad or crop them to squares")
    return images


def _bytes(path: Path, key: str, images: np.ndarray) -> Tensor:
    if np.issubdtype(images.dtype, np.floating):
        # Written so that NaN fails, too.
        if images.size and not (images.min() >= 0 and images.max() <= 1):
            raise DataError(f"{path}: {key} are floats outside [0, 1]; divide by 255, or save uint8")
        images = np.rint(images * 255)
    elif images.dtype != np.uint8:
        raise DataError(f"{path}: {key} are {images.dtype}; save uint8 (0..255), or floats in [0, 1]")
    return torch.from_numpy(np.ascontiguousarray(images, dtype=np.uint8))
