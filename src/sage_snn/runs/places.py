"""Runs that have names: those of the package (`shipped:digits`) and of the Hugging Face hub (`hub:OWNER/NAME`)."""

import re
from importlib import resources
from pathlib import Path
from typing import Any

from .folder import RunError

FILES = ("recipe.yaml", "summary.json", "model.safetensors")  # all that is ever read of a run on the hub
SHIPPED, HUB = "shipped:", "hub:"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)


def shipped_runs() -> list[str]:
    """Names of the trained networks in the package."""
    return sorted(path.name for path in _shipped().iterdir() if path.is_dir())


def is_named(source: str | Path) -> bool:
    """Is it a name, and not a folder of this machine?"""
    return str(source).startswith((SHIPPED, HUB))


def folder_named(source: str | Path) -> Path:
    """The folder of a run: itself, or where the named one lies."""
    text = str(source)
    if text.startswith(SHIPPED):
        name = text.removeprefix(SHIPPED)
        if name not in shipped_runs():
            raise RunError(f"no trained network {name!r} ships; there are {', '.join(shipped_runs())}")
        return _shipped() / name
    return _fetched(text.removeprefix(HUB)) if text.startswith(HUB) else Path(source)


def repository(text: str) -> tuple[str, str | None]:
    """`owner/name` and, after an @, its revision."""
    name, at, revision = text.partition("@")
    if not _REPOSITORY.fullmatch(name) or (at and not revision):
        raise RunError(f"{text!r} names no repository of the hub; write OWNER/NAME, or OWNER/NAME@REVISION")
    return name, revision or None


def _fetched(text: str) -> Path:
    """The snapshot in the hub's own cache, fetched where it is not there yet; no other files than those of a run."""
    hub, (name, revision) = hub_library(), repository(text)
    try:
        folder = hub.snapshot_download(name, revision=revision, allow_patterns=list(FILES))
    except Exception as error:  # theirs are of many kinds: no such repository, no network, no permission
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{HUB}{text} cannot be fetched ({told}); check the name and the network; `hf auth login` if it is private"
        ) from None
    return Path(folder)


def hub_library() -> Any:
    """huggingface_hub, or the error that names its extra."""
    try:
        import huggingface_hub
    except ImportError:
        raise RunError('the hub needs huggingface_hub: pip install "sage-snn[hub]"') from None
    return huggingface_hub


def _shipped() -> Path:
    return Path(str(resources.files("sage_snn.runs"))) / "shipped"
