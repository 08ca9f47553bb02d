"""The authors' names for the weights of a Spikformer, both ways."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .spikformer import Spikformer

# Ours -> theirs; {map} is "linear" in the CIFAR form and "conv" in the ImageNet form.
_RULES = [
    (r"stem\.stages\.(\d)\.synapse", lambda i: f"patch_embed.proj_conv{_suffix(i)}"),
    (r"stem\.stages\.(\d)\.norm", lambda i: f"patch_embed.proj_bn{_suffix(i)}"),
    (r"stem\.position\.synapse", lambda: "patch_embed.rpe_conv"),
    (r"stem\.position\.norm", lambda: "patch_embed.rpe_bn"),
    (
        r"blocks\.(\d+)\.attention\.(query|key|value|projection)\.synapse",
        lambda i, p: f"block.{i}.attn.{_part(p)}_{{map}}",
    ),
    (r"blocks\.(\d+)\.attention\.(query|key|value|projection)\.norm", lambda i, p: f"block.{i}.attn.{_part(p)}_bn"),
    (r"blocks\.(\d+)\.mlp\.(first|second)\.synapse", lambda i, p: f"block.{i}.mlp.{_part(p)}_{{map}}"),
    (r"blocks\.(\d+)\.mlp\.(first|second)\.norm", lambda i, p: f"block.{i}.mlp.{_part(p)}_bn"),
    (r"head", lambda: "head"),
]
_PARTS = {"query": "q", "key": "k", "value": "v", "projection": "proj", "first": "fc1", "second": "fc2"}
_NEVER_CALLED = r"(block\.\d+\.norm[12]|norm)\.\w+|pos_embed"  # the last two in their network for events only


def _suffix(stage: str) -> str:
    return "" if stage == "0" else stage


def _part(name: str) -> str:
    return _PARTS[name]


def _official_name(name: str, form: str) -> str:
    module, _, tensor = name.rpartition(".")
    for pattern, theirs in _RULES:
        match = re.fullmatch(pattern, module)
        if match:
            return theirs(*match.groups()).format(map="linear" if form == "cifar" else "conv") + f".{tensor}"
    raise KeyError(name)


def _official_shape(name: str, tensor: Tensor, form: str) -> Tensor:
    """Token-wise maps are Conv1d here; theirs are Linear (CIFAR), or Conv1d and, in the MLP, Conv2d (ImageNet)."""
    if tensor.ndim != 3:
        return tensor
    if form == "cifar":
        return tensor.squeeze(-1)
    return tensor.unsqueeze(-1) if ".mlp." in name else tensor


def official_state_dict(model: Spikformer, *, layer_norms: bool = False) -> dict[str, Tensor]:
    """The model's weights under the authors' names; `layer_norms` adds the two per block that they never call.

    Args:
        model: our `Spikformer`.
        layer_norms: with the two unused ones of each block.
    """
    form = model.form
    state = {
        _official_name(name, form): _official_shape(name, tensor, form) for name, tensor in model.state_dict().items()
    }
    if layer_norms:
        ones = torch.ones(model.num_features)
        for i in range(len(model.blocks)):
            for norm in ("norm1", "norm2"):
                state |= {f"block.{i}.{norm}.weight": ones, f"block.{i}.{norm}.bias": torch.zeros_like(ones)}
    return state


def load_official_state_dict(model: Spikformer, state_dict: Mapping[str, Any]) -> None:
    """Load the authors' weights, with or without their dead LayerNorms, bare or as their train.py saves them.

    Args:
        model: our `Spikformer` of the same sizes.
        state_dict: the authors' weights.
    """
    theirs: Mapping[str, Any] = state_dict.get("state_dict", state_dict)
    theirs = {name.removeprefix("module."): tensor for name, tensor in theirs.items()}
    theirs = {name: tensor for name, tensor in theirs.items() if not re.fullmatch(_NEVER_CALLED, name)}
    mine = model.state_dict()
    expected = {_official_name(name, model.form): name for name in mine}
    missing, surplus = sorted(expected.keys() - theirs.keys()), sorted(theirs.keys() - expected.keys())
    if missing or surplus:
        raise ValueError(
            f"these are not the weights of this {model.form} Spikformer: {len(missing)} names are missing "
            f"(first: {missing[:1]}), {len(surplus)} are unknown (first: {surplus[:1]}); "
            "build it with the same depth and form"
        )
    for name, ours in expected.items():
        if theirs[name].numel() != mine[ours].numel():
            raise ValueError(
                f"{name} has the shape {tuple(theirs[name].shape)}, this model needs {tuple(mine[ours].shape)}; "
                "build it with the same dim and num_classes"
            )
    model.load_state_dict({ours: theirs[name].reshape(mine[ours].shape) for name, ours in expected.items()})
