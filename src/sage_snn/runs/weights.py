"""Weights from files, without executing code from them."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ..data.digest import file_digest
from ..files import require_room_for_zip
from ..recipes.recipe import Recipe, weights_file
from .folder import RunError, RunFolder


def read_weights(path: str | Path) -> dict[str, Any]:
    """A state dict from a .safetensors file, a torch file, or a run's folder (its last epoch)."""
    path = find_weights(path)
    _require_whole(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as file:
            require_room_for_zip(file)
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the bytes lead it to
        raise RunError(f"{path} cannot be read as weights: {_why(error)}; give a .safetensors or torch file") from None
    if not _is_state_dict(loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded):
        raise RunError(f"{path} holds no weights by name; save model.state_dict(), and give that file")
    return loaded


def _why(error: Exception) -> str:
    """The first sentence; where torch refuses to execute what it found, it goes on to say how one could."""
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than weights, or is torn, and nothing in it is executed"
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]


def _require_whole(file: Path) -> None:
    """Refuse weights of a finished run that are not those it ended with; older runs tell no digest."""
    try:
        told = (RunFolder(file.parent).summary() or {}).get("weights")
    except (OSError, ValueError):
        return
    digest = told.get(file.name) if isinstance(told, dict) else None
    if digest is not None and digest != file_digest(file):
        raise RunError(
            f"{file} cannot be read as weights: it is torn, or not what the run wrote; copy it there again, "
            "or delete summary.json and go on with --resume, which writes it anew"
        )


def find_weights(path: str | Path) -> Path:
    """The file that holds them."""
    file = weights_file(path)
    if not file.is_file():
        raise RunError(f"no weights at {file}; give a .safetensors or torch file, or the folder of a finished run")
    return file


def load_first_weights(model: nn.Module, recipe: Recipe, stage: Path | None = None) -> None:
    """Those of the stage before, or that the recipe starts from, if there are any."""
    # What neurons have of their own and an ANN has not is set afterwards, from data.
    lacking = ("threshold", "leak") if recipe.balance is not None else ()
    if stage is not None:
        load_weights(model, stage, lacking)
    elif recipe.init_from is not None:
        if file_digest(find_weights(recipe.init_from)) != recipe.init_digest:
            raise RunError(
                f"{recipe.init_from} has changed since the run was started from it; "
                "put the file back, or train in a new folder (--out)"
            )
        load_weights(model, recipe.init_from, lacking)


def load_weights(model: nn.Module, path: str | Path, lacking: Sequence[str] = ()) -> None:
    """Load weights of this library's names, or of the Spikformer authors'; those that end so may be missing."""
    from ..models import Spikformer, load_official_state_dict  # brings timm, which `import sage_snn` must not

    state = read_weights(path)
    if isinstance(model, Spikformer) and not state.keys() & model.state_dict().keys() - {"head.weight", "head.bias"}:
        try:
            return load_official_state_dict(model, state)
        except ValueError as error:
            raise RunError(f"{path}: {error}") from None
    if lacking:
        own = model.state_dict()
        state |= {name: own[name] for name in own.keys() - state if name.rpartition(".")[2] in lacking}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise RunError(f"{path} does not fit the model: {error}") from None
    return None


def _is_state_dict(loaded: Any) -> bool:
    return isinstance(loaded, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    )
