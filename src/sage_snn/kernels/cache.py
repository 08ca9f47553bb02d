"""Where compiled libraries are kept: a folder of the user's own. What others could have written is never loaded."""

import ctypes
import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOK = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe would block otherwise
_WRITE = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SECONDS_OF_PATIENCE = 5  # before one says what one waits for


def folder() -> Path:
    """Where libraries are kept; a home that nobody knows is one that cannot be written."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # A relative one is to be ignored, says its specification: what runs would depend on where one stands.
        path = (given if given.is_absolute() else Path.home() / ".cache") / "sage_snn"
    except RuntimeError as error:
        raise OSError(str(error)) from None
    if not path.is_absolute():
        raise OSError(f"{path} is not an absolute path; set HOME or XDG_CACHE_HOME to one")
    return path


@contextmanager
def opened() -> Generator["Cache"]:
    """The user's cache, made where it is missing; an OSError where it cannot be private to the user."""
    if os.name != "posix":
        raise OSError("this system does not tell whose a file is")
    path = folder()
    for part in (*reversed(path.parents), path):
        if not part.exists():
            with suppress(FileExistsError):  # another process makes it too
                part.mkdir(mode=0o700)
    if path.is_symlink():
        raise OSError(f"{path} is a symbolic link; set XDG_CACHE_HOME to where libraries may be kept")
    descriptor = os.open(path, os.O_DIRECTORY | _LOOK)
    try:
        _make_private(path, descriptor)
        yield Cache(path, descriptor)
    finally:
        os.close(descriptor)


class Cache:
    """An open folder whose files are reached through its descriptor: whoever renames it changes nothing."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def load(self, name: str) -> ctypes.CDLL | None:
        """The library of that name; None if there is none, if others could have written it, or if it is damaged."""
        content, told = self._read(name), self._read(_digest_of(name))
        if content is None or told != _told(name, content):
            return None
        through = Path(f"/proc/self/fd/{self._descriptor}")
        try:
            return ctypes.CDLL(str((through if through.exists() else self.path) / name))
        except OSError:
            return None

    def names(self, start: str) -> list[str]:
        """Libraries whose names begin so."""
        return sorted(name for name in os.listdir(self._descriptor) if name.startswith(start) and name.endswith(".so"))

    def keep(self, name: str, built: Path) -> None:
        """Copy a library in, whole or not at all, with the digest that it is believed by."""
        content = built.read_bytes()
        for target, part in ((name, content), (_digest_of(name), _told(name, content))):
            self._write(target, part)

    @contextmanager
    def only_one_process(self, seconds: float) -> Generator[None]:
        """Ranks that start together compile once; a TimeoutError when another process takes longer than that.

        Where files cannot be locked, each compiles, which is safe too.
        """
        descriptor = os.open("lock", _WRITE, 0o600, dir_fd=self._descriptor)
        try:
            self._wait(descriptor, seconds)
            yield
        finally:
            os.close(descriptor)

    def _wait(self, descriptor: int, seconds: float) -> None:
        import fcntl  # Unix only

        started, has_spoken = time.monotonic(), False
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
            waited = time.monotonic() - started
            if waited > seconds:
                raise TimeoutError(f"another process has held {self.path / 'lock'} for {seconds:g} s; stop it")
            if waited > _SECONDS_OF_PATIENCE and not has_spoken:
                has_spoken = True
                told = f"waiting for another process that compiles the kernels ({self.path / 'lock'})"
                print(f"sage-snn: {told}", file=sys.stderr, flush=True)
            time.sleep(0.05)

    def _read(self, name: str) -> bytes | None:
        try:
            descriptor = os.open(name, _LOOK, dir_fd=self._descriptor)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            return file.read() if stat.S_ISREG(status.st_mode) and _is_private(status) else None

    def _write(self, name: str, content: bytes) -> None:
        # The same name whoever writes: what a kill leaves is overwritten. Two who write it at once, on a disk without
        # locks, may spoil the library, and the digest tells.
        temporary = f"{name}.tmp"
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self._descriptor)
        with open(os.open(temporary, _WRITE, 0o600, dir_fd=self._descriptor), "wb") as file:
            file.write(content)
        os.replace(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)


def _make_private(path: Path, descriptor: int) -> None:
    """A folder of ours that others may write is closed to them; what they left in it is known by its owner."""
    status = os.fstat(descriptor)
    if not _is_mine(status):
        cure = "set XDG_CACHE_HOME to a folder of your own"
        raise PermissionError(f"{path} belongs to another user (uid {status.st_uid}); {cure}")
    if status.st_mode & _OTHERS_WRITE:
        os.fchmod(descriptor, 0o700)


def _is_private(status: os.stat_result) -> bool:
    return _is_mine(status) and not status.st_mode & _OTHERS_WRITE


def _is_mine(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)  # root could change this program as well


def _digest_of(name: str) -> str:
    return f"{name}.sha256"


def _told(name: str, content: bytes) -> bytes:
    """As `sha256sum` writes it; with the name, so that no library stands in for another."""
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()
