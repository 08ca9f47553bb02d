"""Files that anybody may have written: read only if they are files at all, and of a size that can be meant."""

import errno
import io
import json
import os
import stat
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

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


def require_room(unpacked: int) -> None:
    """An OSError where what a file unpacks to would take more than half of the memory that is free."""
    room = _free_memory() // 2
    if unpacked > room:
        raise OSError(f"it unpacks to {unpacked / 2**30:.1f} GB, and there is memory for {room / 2**30:.1f} GB")


def require_room_for_zip(file: IO[bytes]) -> None:
    """The same for a zip file: a few MB may stand for more than memory holds.

    Nothing where it is no zip file, and nothing where it is as large as what is in it, as torch's own are: a checkpoint
    that is whole must not be refused because memory is short for a moment.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())  # no more than that is ever unpacked
    except Exception:  # whatever the bytes lead to: who reads the file will say what it is
        unpacked = 0
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if unpacked > size:
        require_room(unpacked)


def _free_memory() -> int:
    """Bytes that a program may take without others being moved out; where the system does not tell, 16 GB."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 2**10 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    return 16 * 2**30


def parse_json(text: str) -> Any:
    """What a JSON text holds; a ValueError for whatever is wrong with it, numbers and depths without end included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
