"""Checkpoints that are written whole or not at all, and checked before they are believed."""

import hashlib
import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from .folder import write_atomically

VERSION = 1
KEEP = 2
_NAME = re.compile(r"step-(\d{9})-([0-9a-f]{16})\.pt")


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state; the name holds its hash, so that a torn or changed file gives itself away. Two are kept."""
    buffer = io.BytesIO()
    torch.save({"version": VERSION, "state": state}, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:09d}-{_digest(content)}.pt"
    write_atomically(path, content)
    for old in _candidates(folder)[KEEP:]:
        old.unlink()
    return path


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, without executing code from it; None if there is none."""
    for path in _candidates(folder):
        problem, state = _open(path)
        if state is not None:
            return state
        warnings.warn(f"checkpoint {path.name} is left out: {problem}; using the one before it", stacklevel=2)
        path.rename(path.with_suffix(".torn"))  # or it would crowd out a good one
    return None


def _open(path: Path) -> tuple[str, dict[str, Any] | None]:
    content = path.read_bytes()
    found = _NAME.fullmatch(path.name)
    if found is None or found[2] != _digest(content):
        return "its content is torn or not what was written", None
    try:
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        return f"it cannot be read ({type(error).__name__})", None
    if not isinstance(loaded, dict) or loaded.get("version") != VERSION:
        return f"it is of another version than {VERSION}", None
    return "", loaded["state"]


def _candidates(folder: Path) -> list[Path]:
    """Newest first; files of other names, such as leftovers of a crash, do not count."""
    return sorted((path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
