"""Where studies keep things: runs that all of them share, and what each has tried."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import files
from ..runs.folder import RunError, RunFolder, sweep, write_atomically
from .plan import Planned
from .study import Study

_SECONDS_OF_A_WRITE = 3600  # at the most


class BusyRunError(RunError):
    """Another process is training this run."""


class StudyState:
    """Paths and small files of a study: `<out>/runs/<key>` for runs, `<out>/studies/<name>` for its own."""

    def __init__(self, study: Study, out: str | Path = "runs") -> None:
        self.study, self.out = study, Path(out).absolute()
        self.runs, self.folder = self.out / "runs", self.out / "studies" / study.name
        self._failures, self._attempts = self.folder / "failures.json", self.folder / "attempts.jsonl"

    def prepare(self) -> None:
        """Make the folders, or say why they cannot be written."""
        try:
            for folder in (self.folder, self.runs / ".locks"):
                folder.mkdir(parents=True, exist_ok=True)
            sweep(self.folder, _SECONDS_OF_A_WRITE)  # others may be writing
            fields = self.study.model_dump_json(indent=2).encode()
            write_atomically(self.folder / "study.json", fields + b"\n")
        except OSError as error:
            raise RunError(f"cannot write to {self.out}: {error.strerror}; choose another --out") from None

    def run_folder(self, planned: Planned) -> RunFolder:
        """Of one run, shared with every other study that has the same run."""
        return RunFolder(self.runs / planned.key)

    def summary(self, planned: Planned) -> dict[str, Any] | None:
        """What a run ended with, None before that."""
        try:
            return self.run_folder(planned).summary()
        except (OSError, ValueError):
            return None

    def epochs_done(self, planned: Planned) -> int:
        """Whole epochs that are written."""
        try:
            return len(self.run_folder(planned).metrics())
        except (OSError, UnicodeDecodeError):
            return 0

    def failures(self) -> dict[str, str]:
        """Key of a run -> why its last try failed."""
        try:
            failures = files.parse_json(files.read_text(self._failures))
        except (OSError, ValueError):
            return {}
        return {str(key): str(why) for key, why in failures.items()} if isinstance(failures, dict) else {}

    def set_failure(self, planned: Planned, why: str | None) -> None:
        """Remember why a run failed, or that it no longer does."""
        failures = self.failures()
        before = dict(failures)
        failures.pop(planned.key, None)
        if why is not None:
            failures[planned.key] = why
        if failures != before:
            write_atomically(self._failures, (json.dumps(failures, indent=2) + "\n").encode())

    def attempts(self) -> list[dict[str, Any]]:
        """Every start of a run: key, host, pid, time."""
        lines = files.read_bytes(self._attempts).splitlines() if self._attempts.is_file() else []
        starts: list[dict[str, Any]] = []
        for line in lines:
            with suppress(ValueError):  # torn by a crash
                starts.append(files.parse_json(line.decode()))
        return [start for start in starts if isinstance(start, dict)]

    def is_busy(self, planned: Planned) -> bool:
        """Is a process training this run right now? The system frees the lock of one that was killed."""
        path = self._lock(planned)
        if not path.is_file():
            return False
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def owner(self, planned: Planned) -> Mapping[str, Any]:
        """Host and pid that trained this run last."""
        return next((line for line in reversed(self.attempts()) if line.get("key") == planned.key), {})

    @contextmanager
    def training(self, planned: Planned) -> Iterator[None]:
        """Keep other processes off a run while this one trains it."""
        with self._lock(planned).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BusyRunError(f"another process is training {planned.key}; wait for it, or stop it") from None
            started = {"key": planned.key, "host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
            with self._attempts.open("a", encoding="utf-8") as attempts:
                attempts.write(json.dumps(started) + "\n")
            yield

    def _lock(self, planned: Planned) -> Path:
        return self.runs / ".locks" / planned.key


def first_lines(error: BaseException, limit: int = 2000) -> str:
    """The text of an error, with its kind where that is not meant for people."""
    text = str(error) if isinstance(error, RunError | ValueError) else f"{type(error).__name__}: {error}"
    return text[:limit]
