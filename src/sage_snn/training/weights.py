"""Weights from files, without executing code from them."""

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ..models import Spikformer, load_official_state_dict
from .folder import RunError


def read_weights(path: str | Path) -> dict[str, Any]:
    """A state dict from a .safetensors file, a torch file, or a run's folder (its last epoch)."""
    path = Path(path)
    path = path / "model.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise RunError(f"no weights at {path}; give a .safetensors or torch file, or the folder of a finished run")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise RunError(f"{path} cannot be read as weights: {str(error).splitlines()[0]}") from None


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights of this library's names, or of the Spikformer authors'."""
    state = read_weights(path)
    if isinstance(model, Spikformer) and not state.keys() & model.state_dict().keys() - {"head.weight", "head.bias"}:
        try:
            return load_official_state_dict(model, state)
        except ValueError as error:
            raise RunError(f"{path}: {error}") from None
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise RunError(f"{path} does not fit the model: {error}") from None
    return None
