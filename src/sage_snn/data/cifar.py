"""CIFAR-10 and CIFAR-100 as torchvision reads them, checksums included."""

import warnings
from pathlib import Path
from typing import Any

import torch

from .dataset import Data, Images, folder_of
from .errors import DataError

# The constants of the official recipe, not the exact moments.
MOMENTS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


def load_10(folder: Path | None, download: bool = False) -> Data:
    """CIFAR-10: 50,000 training and 10,000 test images of 32x32, in memory."""
    from torchvision.datasets import CIFAR10

    return _load("cifar10", CIFAR10, folder, download)


def load_100(folder: Path | None, download: bool = False) -> Data:
    """CIFAR-100 with its fine labels: 50,000 training and 10,000 test images of 32x32, in memory."""
    from torchvision.datasets import CIFAR100

    return _load("cifar100", CIFAR100, folder, download)


def _load(name: str, dataset: Any, folder: Path | None, download: bool) -> Data:
    cure = f"unpack {dataset.filename} from {dataset.url} there, or let `sage-snn train ... --download` fetch it"
    if download and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    folder = folder_of(name, folder, cure)
    if folder.name == dataset.base_folder:
        folder = folder.parent  # people point at the unpacked folder itself
    try:
        with warnings.catch_warnings():
            # The pickles are of 2009; what numpy thinks of their headers is nothing a user can act upon.
            warnings.simplefilter("ignore")
            train, test = dataset(folder, train=True, download=download), dataset(folder, train=False)
    except Exception as error:  # torchvision, pickle and urllib raise many kinds
        raise DataError(f"{name}: {_diagnosis(dataset, folder) or error}; {cure}") from error
    mean, std = MOMENTS[name]
    return Data(name, _images(train), _images(test), tuple(train.classes), channels=3, size=32, mean=mean, std=std)


def _images(dataset: Any) -> Images:
    pixels = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
    return Images(pixels, torch.tensor(dataset.targets, dtype=torch.int64))


def _diagnosis(dataset: Any, folder: Path) -> str:
    """Which files are missing or differ from the published ones; torchvision says only that some do."""
    from torchvision.datasets.utils import check_integrity

    root = folder / dataset.base_folder
    files = [*dataset.train_list, *dataset.test_list, (dataset.meta["filename"], dataset.meta["md5"])]
    missing = [file for file, _ in files if not (root / file).is_file()]
    if missing:
        return f"{root} lacks {', '.join(missing)}"
    wrong = [(root / file, md5) for file, md5 in files if not check_integrity(str(root / file), md5)]
    return "; ".join(f"{path} ({path.stat().st_size} bytes) does not have the md5 {md5}" for path, md5 in wrong)
