"""The data sets by name, and how one of them is loaded; its module is imported when it is."""

import difflib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import DataError

if TYPE_CHECKING:
    from .dataset import Data, Labelled

DATASETS = {  # name -> module and function
    "digits": "digits:load",
    "cifar10": "cifar:load_10",
    "cifar100": "cifar:load_100",
    "imagenet200": "imagenet:load_200",
    "tiny-imagenet200": "imagenet:load_tiny",
    "fashion-mnist": "fashion_mnist:load",
    "arrays": "arrays:load",
    "n-mnist": "event_sets:load_n_mnist",
    "cifar10-dvs": "event_sets:load_cifar10_dvs",
    "dvs128-gesture": "event_sets:load_dvs128_gesture",
}
EVENTS = ("n-mnist", "cifar10-dvs", "dvs128-gesture")  # recordings of event cameras, not images

SUBSET_SEED = 0  # the subset is part of the task, not of the run: every seed trains on the same images


def load_data(
    name: str,
    folder: str | Path | None = None,
    *,
    train_images: int | None = None,
    test_images: int | None = None,
    subset: int = 0,
    download: bool = False,
    classes_file: str | Path | None = None,
    per_class: int | None = 640,
    time_steps: int | None = None,
) -> "Data":
    """The data set of that name, cut to stratified subsets where `train_images` or `test_images` ask for them.

    Subsets of another number share no image with these. Recordings of events become `time_steps` frames each.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, 1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise DataError(f"no data set is called {name!r}; {hint}There are {', '.join(DATASETS)}")
    options: dict[str, object] = {}
    if name in ("cifar10", "cifar100"):
        options["download"] = download
    elif download and name != "digits":
        raise DataError(f"{name} cannot be downloaded; get its files and pass their folder (--data-dir)")
    if name == "imagenet200":
        options.update(classes_file=classes_file, per_class=per_class)
    elif classes_file is not None:
        raise DataError(f"{name} has its own classes; classes_file belongs to imagenet200")
    if name in EVENTS:
        if time_steps is None:
            raise DataError(f"{name} has recordings of events; say into how many frames to divide each (time_steps)")
        options["frames"] = time_steps
    module, _, function = DATASETS[name].partition(":")
    load = getattr(import_module(f".{module}", __package__), function)
    data = load(None if folder is None else Path(folder).expanduser(), **options)
    return _cut(data, train_images, test_images, subset)


def _cut(data: "Data", train_images: int | None, test_images: int | None, subset: int) -> "Data":
    parts = {}
    for part, wanted in (("train", train_images), ("test", test_images)):
        images: Labelled = getattr(data, part)
        if wanted is not None and not 1 <= wanted <= len(images):
            raise DataError(f"{part}_images is {wanted}, but {data.name} has {len(images)} {part} images")
        parts[part] = images if wanted is None else images.subset(wanted, SUBSET_SEED, subset)
    return replace(data, **parts)
