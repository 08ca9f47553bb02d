"""N-MNIST, CIFAR10-DVS and DVS128 Gesture, read by SpikingJelly from the files as they unpack.

Once, SpikingJelly's reader makes a folder `events_np` of them, an .npz file for every recording; where that folder is
there already, nothing else is looked at.
"""

import errno
import math
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from ..screen import shown
from .dataset import Data, folder_of
from .errors import DataError
from .readers import readers
from .recordings import Recordings
from .trials import require_files, require_trials

try:
    import fcntl
except ImportError:  # not a Unix: two processes may do the same work
    fcntl = None

READY = "events_np"
TRAINED = 0.9  # of CIFAR10-DVS, which has no test set of its own
GESTURES = (
    *("hand clapping", "right hand wave", "left hand wave", "right arm clockwise", "right arm counter-clockwise"),
    *("left arm clockwise", "left arm counter-clockwise", "arm roll", "air drums", "air guitar", "other gestures"),
)


def load_n_mnist(folder: Path | None, frames: int) -> Data:
    """N-MNIST (Orchard et al., 2015): 60,000 training and 10,000 test recordings of digits, 34 x 34 pixels."""
    parts, digits = ("Train", "Test"), tuple("0123456789")
    ready = _prepared("n-mnist", readers().NMNIST, folder, parts, "unpack Train.zip and Test.zip")
    train, test = (_recordings([_files(ready / part / name) for name in digits], 34, frames) for part in _PARTS)
    return _data("n-mnist", train, test, digits)


def load_cifar10_dvs(folder: Path | None, frames: int) -> Data:
    """CIFAR10-DVS (Li et al., 2017): 10,000 recordings of 128 x 128 pixels; the first 90 % of a class are for training.

    First in the order of their names, as letters are sorted: the order of SpikingJelly and so of Spikformer's authors.
    """
    classes = readers().CIFAR10DVS_CLASS_NAMES
    ready = _prepared("cifar10-dvs", readers().CIFAR10DVS, folder, classes, "unpack airplane.zip and the nine others")
    files = [_files(ready / name) for name in classes]
    ends = [math.ceil(len(paths) * TRAINED) for paths in files]
    train = _recordings([paths[:end] for paths, end in zip(files, ends, strict=True)], 128, frames)
    test = _recordings([paths[end:] for paths, end in zip(files, ends, strict=True)], 128, frames)
    return _data("cifar10-dvs", train, test, classes)


def load_dvs128_gesture(folder: Path | None, frames: int) -> Data:
    """DVS128 Gesture (Amir et al., 2017): 1,176 training and 288 test recordings of 11 gestures, 128 x 128 pixels."""
    if folder is not None and folder.name == "DvsGesture":
        folder = folder.parent  # people point at the unpacked folder itself
    unpack = "unpack DvsGesture.tar.gz"
    ready = _prepared("dvs128-gesture", readers().DVS128Gesture, folder, ("DvsGesture",), unpack, require_trials)
    numbers = range(len(GESTURES))
    train, test = (_recordings([_files(ready / part / str(i)) for i in numbers], 128, frames) for part in _PARTS)
    return _data("dvs128-gesture", train, test, GESTURES)


_PARTS = ("train", "test")


def _data(name: str, train: Recordings, test: Recordings, classes: tuple[str, ...]) -> Data:
    return Data(name, train, test, classes, channels=2, size=train.size, mean=(), std=())


def _recordings(files: Sequence[Sequence[Path]], size: int, frames: int) -> Recordings:
    """Of the files of every class."""
    labels = [label for label, paths in enumerate(files) for _ in paths]
    return Recordings(
        [path for paths in files for path in paths], torch.tensor(labels, dtype=torch.int64), size, frames
    )


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not there; delete its folder {READY} to make all of it anew")
    return sorted(folder.glob("*.npz"), key=lambda path: path.name)


def _prepared(
    name: str,
    reader: Any,
    folder: Path | None,
    parts: Sequence[str],
    unpack: str,
    check: Callable[[Path, str], None] = require_files,
) -> Path:
    """The folder with an .npz file for every recording, made of the unpacked `parts` where it is not there yet."""
    cure = f"{unpack} from {reader.resource_url_md5()[0][1]} there"
    folder = folder_of(name, folder, cure)
    ready = folder / READY
    if (unfinished := folder / f"{READY}.building").exists():  # SpikingJelly's own sign
        raise DataError(f"{name}: SpikingJelly did not finish {ready}; delete it and {unfinished}")
    if ready.is_dir():
        return ready
    places = [place for place in (folder, folder / "extract") if all((place / part).is_dir() for part in parts)]
    if not places:
        missing = ", ".join(part for part in parts if not (folder / part).is_dir())
        raise DataError(f"{name}: {folder} lacks {missing}; {cure}")
    try:
        for part in parts:
            check(places[0] / part, cure)
        with _alone(folder):
            if not ready.is_dir():  # or another process has made it meanwhile
                told = Text(shown(f"{name}: reading the recordings in {folder}, once"))
                Console(stderr=True).print(told, soft_wrap=True)
                _make(ready, reader, places[0], parts, cure)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    except OSError as error:
        why = str(error.strerror or error)[:300]
        raise DataError(
            f"{name}: cannot write {ready} ({why}); make the folder writable, this once, with room for it"
        ) from None
    return ready


def _make(ready: Path, reader: Any, place: Path, parts: Sequence[str], cure: str) -> None:
    """Beside its place, and moved there when it is whole."""
    for left in ready.parent.glob(f".{READY}-*"):  # by a process that was killed: the lock was free
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{READY}-", dir=ready.parent) as made:
        seen, whole = Path(made) / "extract", Path(made) / READY
        seen.mkdir()
        whole.mkdir()
        for part in parts:  # only these: the reader takes whatever lies beside them for a class
            (seen / part).symlink_to((place / part).resolve(), target_is_directory=True)
        try:
            reader.create_raw_from_extracted(seen, whole)
        except Exception as error:  # whatever the bytes of a file lead to
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            path, why = (str(text).replace(str(seen), str(place)) for text in (_read_when(error, seen), error))
            raise DataError(f"{path} cannot be read ({why[:300]}); {cure} anew") from error
        if empty := [part.name for part in sorted(whole.iterdir()) if not any(part.rglob("*.npz"))]:
            raise DataError(f"{place} gave no recording of {', '.join(empty)}; {cure} anew")
        whole.rename(ready)


def _read_when(error: Exception, folder: Path) -> Path:
    """Which file below the folder was read when the error came: the readers do not say, and have it in a variable."""
    if isinstance(error, OSError) and isinstance(error.filename, str | Path):
        return Path(error.filename)
    held = [value for frame, _ in traceback.walk_tb(error.__traceback__) for value in frame.f_locals.values()]
    below = [path for path in held if isinstance(path, Path) and folder in path.parents]
    return below[-1] if below else folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process of a machine at a time; the system frees the lock of one that died."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if fcntl is not None:
            with suppress(OSError):  # a disk that has no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
