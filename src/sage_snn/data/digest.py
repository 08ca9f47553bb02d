"""Files known by their content, wherever they lie."""

import hashlib
from functools import lru_cache
from pathlib import Path

from .errors import DataError

KEYS = ("train_images", "train_labels", "test_images", "test_labels")
EXPECTED = f"expected an .npz with {', '.join(KEYS)}, or with images, labels (split 80/20), as numpy.savez writes it"


def file_digest(path: Path) -> str:
    """The first 16 digits of the file's SHA-256; a file that did not change is read once."""
    status = path.stat()
    return _digest(path.absolute(), status.st_size, status.st_mtime_ns)


def arrays_digest(folder: Path | None) -> str:
    """Of the file that `data: arrays` would read."""
    path = arrays_file(folder)
    try:
        return file_digest(path)
    except FileNotFoundError:
        raise DataError(f"{path} is not there; {EXPECTED}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); {EXPECTED}") from None


def arrays_file(folder: Path | None) -> Path:
    """The .npz file itself, or the only one in a folder."""
    if folder is None:
        raise DataError(f"arrays needs a file (--data-dir FILE.npz); {EXPECTED}")
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else [folder]
    if len(files) != 1:
        raise DataError(f"arrays: {folder} has {len(files)} .npz files; name the one to use; {EXPECTED}")
    if files[0].exists() and not files[0].is_file():  # a pipe would be waited for
        raise DataError(f"{files[0]} is not a regular file; {EXPECTED}")
    return files[0]


@lru_cache(maxsize=64)
def _digest(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
