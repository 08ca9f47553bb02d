"""What SpikingJelly's readers take on trust, looked at before they are called."""

import re
from itertools import chain
from pathlib import Path

from ..files import read_text
from .errors import DataError

LISTS = ("trials_to_train.txt", "trials_to_test.txt")
PLAIN = re.compile(r"\w[\w.-]{0,99}\.aedat", re.ASCII)


def require_files(folder: Path, cure: str) -> None:
    """A DataError where a pipe or a device lies in the folder or in its folders: a reader would wait for it."""
    for path in chain(folder.glob("*"), folder.glob("*/*")):
        if not path.is_file() and not path.is_dir():
            raise DataError(f"{path} is no file (a pipe, a device or a broken link); remove it, or {cure} anew")


def require_trials(folder: Path, cure: str) -> None:
    """A DataError unless each line of both lists of DVS128 Gesture names a recording in the folder, with its labels.

    The reader takes a line for a path, to read and to write beside it: one with a slash would leave the folder.
    """
    require_files(folder, cure)
    for path in (folder / name for name in LISTS):
        try:
            lines = [line.strip() for line in read_text(path).split("\n")]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read ({error}); {cure} anew") from None
        for number, line in enumerate(lines, 1):
            if line and not PLAIN.fullmatch(line):
                told = repr(line[:60])
                raise DataError(f"{path}, line {number}: {told} is no plain name of an .aedat file; {cure} anew")
            if missing := [name for name in _files(line) if not (folder / name).is_file()]:
                raise DataError(f"{path}, line {number}: {' and '.join(missing)} is not in {folder}; {cure} anew")
        if not any(lines):
            raise DataError(f"{path} lists no recording; {cure} anew")


def _files(recording: str) -> list[str]:
    """A recording, and the table of its labels."""
    return [recording, f"{recording.removesuffix('.aedat')}_labels.csv"] if recording else []
