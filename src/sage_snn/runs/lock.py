"""One process at a time trains in a run's folder; the system frees the lock of one that died."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .folder import LOCK, RunError, RunFolder

try:
    import fcntl
except ImportError:  # not a Unix: nobody is kept off
    fcntl = None

_held: set[int] = set()


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Keep other processes off the folder; they are refused with the name of this one."""
    path = folder.path / LOCK
    descriptor = None if fcntl is None else _take(path)
    if descriptor is None:
        yield
        return
    _held.add(descriptor)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: nobody can have taken it yet
        _held.discard(descriptor)
        os.close(descriptor)


def _take(path: Path) -> int | None:
    """The locked file, with our name in it; None on a disk that has no locks."""
    assert fcntl is not None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; choose another --out") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = _owner(descriptor)
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RunError(f"{path.parent} is being trained by {owner}; wait for it, or stop it") from None
        return None
    if not _is_still_there(descriptor, path):  # its last owner removed it after we opened it
        os.close(descriptor)
        return _take(path)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
    return descriptor


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has not written its name yet
        return "another process"


def _let_go() -> None:
    """A worker that outlives its parent must not keep the run locked."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_let_go)
