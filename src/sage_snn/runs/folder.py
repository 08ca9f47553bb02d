"""The folder of a run: who may write it, and how nothing in it is ever half-written."""

import errno
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from .. import files
from ..data.digest import file_digest
from ..recipes.fields import parse_mapping
from ..recipes.recipe import Recipe, differences, load_written_recipe

# What a run makes before its recipe; names with a dot are those of `write_atomically`.
_BEFORE_THE_RECIPE = re.compile(
    r"checkpoints|signals|observations|stages|tensorboard|metrics\.jsonl|\.lock|\.writable|\..+\.\d+\.tmp"
)
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp|epoch-\d+\.tmp")
_PART = re.compile(r"epoch-([0-9]+)\.parquet")
LOCK = ".lock"  # held while a process trains; one that was killed leaves the file, not the lock
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)

# Facts that other code relies on; what is of another kind was not written by a run.
_FACTS = {"shape": dict, "versions": dict, "classes": list, "mean": list, "std": list, "threads": int, "ranks": int}


class RunError(RuntimeError):
    """A run that cannot start or go on; the message says what to do."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new, never a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sweep(folder: Path, seconds: float = 0.0) -> None:
    """Remove files that were begun and never renamed, if they are older than this."""
    begun = time.time() - seconds
    for path in folder.glob("*.tmp") if folder.is_dir() else ():  # of names with a dot in front, too
        with suppress(OSError):  # another process may just have renamed it
            if _TEMPORARY.fullmatch(path.name) and path.lstat().st_mtime <= begun:
                path.unlink()


def epoch_parts(folder: Path) -> list[tuple[int, Path]]:
    """The parts of a recording, by their epochs."""
    named = ((_PART.fullmatch(path.name), path) for path in folder.glob("epoch-*.parquet"))
    return sorted((int(parts[1]), path) for parts, path in named if parts)


def facts_in(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What stands under `applied` in a run's recipe."""
    applied = fields.get("applied")
    if not isinstance(applied, dict):
        return {}
    return {key: value for key, value in applied.items() if isinstance(value, _FACTS.get(key, object))}


class RunFolder:
    """Paths and small files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.signals, self.observations = self.path / "signals", self.path / "observations"
        self.stages = self.path / "stages"
        self.metrics_file = self.path / "metrics.jsonl"
        self.weights, self.best_weights = self.path / "model.safetensors", self.path / "best.safetensors"

    def open(self, recipe: Recipe, *, resume: bool) -> None:
        """Make the folder ready for this recipe, or say why it must not be touched."""
        try:
            str(self.path).encode()
        except UnicodeEncodeError:  # the shell writes UTF-8, and the locale says something else
            raise RunError(f"{self.path} is no name in this locale; set LC_ALL=C.UTF-8, or choose another") from None
        mine = self.recipe()
        if mine is not None and not resume:
            raise RunError(f"{self.path} holds a run already; add --resume to go on with it, or choose another --out")
        if mine is not None and (changes := self.changes(recipe)):
            lines = "\n".join(f"  {key}: {old!r} there, {new!r} now" for key, old, new in changes)
            raise RunError(f"{self.path} holds a run of another recipe:\n{lines}\nchoose another --out")
        if mine is None and self.path.is_dir() and any(self.path.iterdir()) and not self._is_mine():
            raise RunError(f"{self.path} holds files that are not a run's; choose another --out")
        try:
            for folder in (self.checkpoints, self.signals):
                folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / ".writable", b"")
            (self.path / ".writable").unlink()
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None

    def changes(self, recipe: Recipe) -> list[tuple[str, Any, Any]]:
        """In what the folder's recipe differs from this one."""
        mine = self.recipe()
        return [] if mine is None else differences(mine, recipe)

    def recipe(self) -> Recipe | None:
        """The recipe that the folder was started with, if it was."""
        path = self.path / "recipe.yaml"
        return load_written_recipe(path) if path.is_file() else None

    def write_recipe(self, recipe: Recipe, applied: dict[str, Any]) -> None:
        """The recipe as it can be trained again, and the facts under `applied`."""
        fields = recipe.model_dump(mode="json") | {"applied": applied}
        text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=120)
        write_atomically(self.path / "recipe.yaml", text.encode())

    def applied(self) -> dict[str, Any]:
        """The facts that were written with the recipe."""
        path = self.path / "recipe.yaml"
        if not path.is_file():
            return {}
        try:
            return facts_in(parse_mapping(files.read_text(path), path, "of a run's recipe", RunError))
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path} cannot be read ({error}); copy it again, or train it again") from None

    def metrics(self) -> list[dict[str, Any]]:
        """A mapping per epoch; a line torn by a crash is left out."""
        return list(self._lines()) if self.metrics_file.is_file() else []

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add an epoch."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def cut_after(self, epoch: int) -> None:
        """Drop what was written for this epoch and later ones, which will be trained again."""
        kept = [line for line in self.metrics() if line["epoch"] < epoch]
        write_atomically(self.metrics_file, "".join(json.dumps(line) + "\n" for line in kept).encode())
        for number, part in (*epoch_parts(self.signals), *epoch_parts(self.observations)):
            if number >= epoch:
                part.unlink()

    @property
    def has_summary(self) -> bool:
        """Is the run finished?"""
        return (self.path / "summary.json").is_file()

    def summary(self) -> dict[str, Any] | None:
        """What a finished run ended with, None before that."""
        path = self.path / "summary.json"
        if not path.is_file():
            return None
        summary = files.parse_json(files.read_text(path))
        if not isinstance(summary, dict):
            raise ValueError(f"{path} holds no summary")
        return summary

    def digests(self) -> dict[str, str]:
        """Of the files of weights that are there, as a summary tells them."""
        return {path.name: file_digest(path) for path in (self.weights, self.best_weights) if path.is_file()}

    def sweep(self) -> None:
        """Remove what a kill left half-written; only while nobody else writes here."""
        for folder in (self.path, self.checkpoints, self.signals, self.observations):
            sweep(folder)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The last thing a run does."""
        write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            text = files.read_bytes(self.metrics_file, files.MOST_TEXT).decode(errors="replace")
        except OSError as error:
            raise RunError(f"{self.metrics_file} cannot be read: {error.strerror}; copy it again") from None
        for written in text.splitlines():
            try:
                line = files.parse_json(written)
            except ValueError:
                return
            if not isinstance(line, dict) or not isinstance(line.get("epoch"), int):
                return
            yield line

    def _is_mine(self) -> bool:
        """Left by a run that was stopped before it wrote its recipe."""
        # Where epochs or checkpoints are, there was a recipe: it is lost, and so is what they belong to.
        has_epochs = self.metrics_file.is_file() and self.metrics_file.stat().st_size > 0
        is_trained = has_epochs or any(self.checkpoints.glob("step-*"))
        return not is_trained and all(_BEFORE_THE_RECIPE.fullmatch(entry.name) for entry in self.path.iterdir())


@contextmanager
def refusing_to_lose(folder: RunFolder) -> Iterator[None]:
    """A disk that is full or cannot be written ends the run with a message; what was written before stays."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*_FULL, *_CLOSED):
            raise
        cure = "make room and --resume" if error.errno in _FULL else "make it writable and --resume"
        why = os.strerror(error.errno)
        raise RunError(f"cannot write to {folder.path}: {why}; the last checkpoint is intact: {cure}") from None
