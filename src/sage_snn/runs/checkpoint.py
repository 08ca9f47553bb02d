"""Checkpoints that are written whole or not at all, and checked before they are believed."""

import hashlib
import io
import pickle
import re
import struct
import warnings
from pathlib import Path
from typing import Any

import torch

from ..files import read_bytes, require_room_for_zip
from .folder import RunError, write_atomically

VERSION = 2
READABLE = (1, 2)  # 1 has nothing of ranks and of random generators
KEEP = 2
# What bytes lead torch to. Not all exceptions: one that a handler of signals raises meanwhile says nothing of the file.
_UNREADABLE = (
    *(pickle.UnpicklingError, struct.error, RuntimeError, ValueError, TypeError, LookupError, AttributeError),
    *(ArithmeticError, AssertionError, EOFError, ImportError, MemoryError, OSError),
)
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


def load_checkpoint(folder: Path, *, set_aside: bool = False) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, without executing code from it; None if there is none at all.

    `set_aside` renames newer ones that are not whole, or they would crowd out good ones that are written later.
    """
    torn: dict[Path, str] = {}
    for path in _candidates(folder):
        problem, state = _open(path)
        if state is not None:
            for left_out, why in torn.items():
                warnings.warn(f"checkpoint {left_out.name} is left out: {why}; using the one before it", stacklevel=2)
                if set_aside:
                    left_out.rename(left_out.with_suffix(".torn"))
            return state
        torn[path] = problem
    if torn:
        told = "; ".join(f"{path.name}: {why}" for path, why in torn.items())
        raise RunError(
            f"no checkpoint in {folder} can be used ({told}); copy them there again from where they are whole, "
            "or train in a new folder (--out)"
        )
    return None


def has_checkpoint(folder: Path) -> bool:
    """Is there one, whole or not?"""
    return bool(_candidates(folder))


def _open(path: Path) -> tuple[str, dict[str, Any] | None]:
    try:
        content = read_bytes(path)
        require_room_for_zip(io.BytesIO(content))
    except OSError as error:  # another rank may just have set it aside
        return f"it cannot be read ({error.strerror or error})", None
    parts = _NAME.fullmatch(path.name)
    if parts is None or parts[2] != _digest(content):
        return "its content is torn or not what was written", None
    try:
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        return f"it cannot be read ({type(error).__name__})", None
    if not isinstance(loaded, dict) or loaded.get("version") not in READABLE:
        return f"it is of another version than {' or '.join(map(str, READABLE))}", None
    state = loaded.get("state")
    return ("", state) if isinstance(state, dict) else ("it holds no state of a training", None)


def _candidates(folder: Path) -> list[Path]:
    """Newest first; files of other names, such as leftovers of a crash, do not count."""
    return sorted((path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
