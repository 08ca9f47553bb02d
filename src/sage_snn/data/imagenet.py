"""ImageNet-200, a list of classes from an ImageNet folder, and Tiny-ImageNet-200; pictures are opened when needed."""

import difflib
import random
from pathlib import Path

import torch

from ..files import read_text
from .dataset import Data, Images, folder_of
from .errors import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = {".jpeg", ".jpg", ".png"}
LAYOUT = "expected train/<class>/*.JPEG and val/<class>/*.JPEG, as ImageNet's archives unpack"
TINY_LAYOUT = "expected the folder that tiny-imagenet-200.zip (http://cs231n.stanford.edu) unpacks to"


def load_200(
    folder: Path | None, classes_file: str | Path | None = None, per_class: int | None = 640
) -> Data:  # Choice: decision 19
    """The listed classes, up to `per_class` training images of each and all their validation images, at 224 px."""
    folder = folder_of("imagenet200", folder, LAYOUT)
    if per_class is not None and per_class < 1:
        raise DataError(f"per_class must be at least 1, not {per_class}")
    classes = _classes(folder_of("imagenet200", folder / "train", LAYOUT), classes_file)
    train = [_sample(wnid, _pictures(folder / "train" / wnid), per_class) for wnid in classes]
    val = folder_of("imagenet200", folder / "val", LAYOUT)
    if not any(path.is_dir() for path in val.iterdir()):
        raise DataError(f"imagenet200: {val} has no class folders; sort its pictures into val/<class>/ (valprep.sh)")
    test = [_pictures(val / wnid) for wnid in classes]
    return Data("imagenet200", _images(train), _images(test), classes, channels=3, size=224, mean=MEAN, std=STD)


def load_tiny(folder: Path | None) -> Data:
    """Tiny-ImageNet-200 as it unzips: 100,000 training and 10,000 validation images of 64 px."""
    folder = folder_of("tiny-imagenet200", folder, TINY_LAYOUT)
    nested = folder / "tiny-imagenet-200"
    folder = nested if nested.is_dir() else folder
    classes = tuple(_lines(folder / "wnids.txt", TINY_LAYOUT))
    train = [_pictures(folder / "train" / wnid / "images") for wnid in classes]
    test = _annotated(folder / "val", classes)
    words = _words(folder / "words.txt", classes)
    return Data("tiny-imagenet200", _images(train), test, words, channels=3, size=64, mean=MEAN, std=STD)


def _words(path: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word for each class, with its id where two have the same; the ids alone without the table."""
    if not path.is_file():
        return wnids
    try:
        table = dict(line.split("\t", 1) for line in read_text(path).splitlines() if "\t" in line)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text ({error}); {TINY_LAYOUT}, or delete it") from None
    words = [table.get(wnid, wnid).split(",")[0].strip() or wnid for wnid in wnids]
    return tuple(
        word if words.count(word) == 1 else f"{word} ({wnid})" for word, wnid in zip(words, wnids, strict=True)
    )


def _classes(train: Path, classes_file: str | Path | None) -> tuple[str, ...]:
    there = sorted(path.name for path in train.iterdir() if path.is_dir())
    if classes_file is None:
        if len(there) > 200:
            raise DataError(
                f"imagenet200: {train} has {len(there)} classes; name those to use in a text file, "
                "a WordNet id such as n01440764 per line, and pass it as classes_file"
            )
        return tuple(there)
    path = Path(classes_file).expanduser()
    wanted = _lines(path, "it should name a class per line, such as n01440764")
    twice = sorted({wnid for wnid in wanted if wanted.count(wnid) > 1})
    if twice or not wanted:
        raise DataError(f"{path} names {', '.join(twice) + ' twice' if twice else 'no class'}; name every class once")
    missing = [wnid for wnid in wanted if wnid not in set(there)]
    if missing:
        near = difflib.get_close_matches(missing[0], there, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise DataError(f"{path} names {missing[0]} ({len(missing)} such), which {train} does not have{hint}")
    return tuple(wanted)


def _lines(path: Path, expected: str) -> list[str]:
    """The first word of every line, comments and empty lines left out."""
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} is not there; {expected}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text ({error}); {expected}") from None
    return [words[0] for line in lines if (words := line.partition("#")[0].split())]


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not there; {LAYOUT}")
    pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not pictures:
        raise DataError(f"{folder} has no picture ({', '.join(sorted(SUFFIXES))}); copy that class again")
    return pictures


def _sample(wnid: str, pictures: list[Path], per_class: int | None) -> list[Path]:
    # Seeded by the class's own name: a class keeps its pictures whatever other classes the list has.
    random.Random(f"imagenet200 {wnid}").shuffle(pictures)
    return sorted(pictures[:per_class])


def _images(by_class: list[list[Path]]) -> Images:
    labels = torch.arange(len(by_class)).repeat_interleave(torch.tensor([len(paths) for paths in by_class]))
    return Images([path for paths in by_class for path in paths], labels)


def _annotated(val: Path, classes: tuple[str, ...]) -> Images:
    """The validation images, whose classes stand in a table: file, class, box."""
    table, label_of = val / "val_annotations.txt", {wnid: i for i, wnid in enumerate(classes)}
    there = {path.name: path for path in _pictures(val / "images")}
    _lines(table, TINY_LAYOUT)  # complains where the table cannot be read
    rows = [line.split() for line in read_text(table).splitlines() if line.strip()]
    bad = [n for n, row in enumerate(rows, 1) if len(row) < 2 or row[1] not in label_of or row[0] not in there]
    if bad:
        line = " ".join(rows[bad[0] - 1][:2])
        raise DataError(
            f"{table}, line {bad[0]} ({line!r}, {len(bad)} such lines) does not name a picture of {val / 'images'} "
            f"and a class of wnids.txt; unzip tiny-imagenet-200.zip again"
        )
    if len(rows) != len(there):
        raise DataError(f"{table} names {len(rows)} pictures, {val / 'images'} has {len(there)}; unzip it again")
    return Images([there[row[0]] for row in rows], torch.tensor([label_of[row[1]] for row in rows]))
