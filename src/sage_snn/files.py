"""Files that anybody may have written: read only if they are files at all, and of a size that can be meant."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

MOST_TEXT = 256 * 2**20  # bytes of a recipe, a study or the metrics of a run; more is no such file


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file of at most so many bytes; an OSError where it is a pipe, a device or larger."""
    # Without blocking: to open a pipe waits for whoever writes to it.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if most is not None and status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """The text of a regular file, which is UTF-8 whatever the locale says; OSError or UnicodeDecodeError."""
    return read_bytes(path, MOST_TEXT).decode()


def parse_json(text: str) -> Any:
    """What a JSON text holds; a ValueError for whatever is wrong with it, numbers and depths without end included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
