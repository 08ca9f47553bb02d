"""The facts of a run: what was really applied, on what, with which versions."""

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data import describe
from ..kernels.path import path
from .folder import RunError

if TYPE_CHECKING:
    from ..training.loop import Training


def facts(run: "Training", precision: str) -> dict[str, Any]:
    """Written beside the recipe; nothing of it is read again as a setting."""
    recipe, parameters = run.recipe, sum(p.numel() for p in run.network.parameters())
    return {
        "in short": _in_short(run, precision, parameters),
        "parameters": parameters,
        "precision": precision,
        "device": str(run.fabric.device.type),
        "ranks": run.fabric.world_size,
        "kernels": kernels_on(run.fabric.device),
        "threads": run.threads.number,
        "steps_per_epoch": run.steps_per_epoch,
        "shape": run.data.shape,
        "mean": [float(value) for value in run.data.mean],
        "std": [float(value) for value in run.data.std],
        "classes": [str(name) for name in run.data.classes],
        "train_images": len(run.data.train),
        "test_images": len(run.data.test),
        "augmentations": describe(recipe.augmentation, run.data),
        "policy": run.policy.describe().splitlines(),
        "versions": versions(),
        "commit": commit(),
        "machine": f"{platform.processor() or platform.machine()}, {platform.system()}",
    }


def kernels_on(device: torch.device) -> str:
    """What the operators run there: C++, Triton, or plain torch, which round differently."""
    return {"twin": "plain torch"}.get(name := path(torch.empty(0, device=device)), name)


def _in_short(run: "Training", precision: str, parameters: int) -> list[str]:
    recipe, ranks = run.recipe, run.fabric.world_size
    return [
        f"{recipe.policy.kind} policy",
        f"{parameters:,} parameters",
        f"T={recipe.model.time_steps}",
        f"{len(run.data.train)} training and {len(run.data.test)} test images",
        f"{recipe.total_epochs} epochs of {run.steps_per_epoch} steps of {recipe.batch_size}",
        f"precision {precision} on {run.fabric.device.type}",
        str(run.threads),
        f"{ranks} process{'es' * (ranks > 1)}",
    ]


def require_same_means(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run in another precision, on another device, with other processes or other kernels."""
    other = {name: (before[name], here) for name, here in now.items() if before.get(name, here) != here}
    if not other:
        return
    lines = "\n".join(f"  {name}: {there} there, {here} here" for name, (there, here) in other.items())
    cures: list[str] = []
    if "ranks" in other:
        ranks = before["ranks"]
        cures.append("without torchrun" if ranks == 1 else f"with {ranks} processes (torchrun --nproc-per-node)")
    if "device" in other or "precision" in other:
        device = before.get("device", "cpu")
        cures.append("with the GPU hidden (CUDA_VISIBLE_DEVICES=)" if device == "cpu" else f"where there is {device}")
    if "kernels" in other and "device" not in other:
        is_plain = before["kernels"] == "plain torch"
        cures.append("with SAGE_SNN_KERNELS=off" if is_plain else "with a compiler and without SAGE_SNN_KERNELS=off")
    raise RunError(
        f"{folder} was trained by other means, so its numbers would change:\n{lines}\n"
        f"go on {' and '.join(cures)}, or choose another --out"
    )


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    names = ("sage-snn", "torch", "torchvision", "timm", "spikingjelly", "lightning", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def commit() -> str | None:
    """Of the source tree that this package runs from, if it is one."""
    # Installed inside somebody's repository, the package is not tracked by it, and its commit tells nothing.
    return _git("rev-parse", "HEAD") if _git("ls-files", "--error-unmatch", Path(__file__).name) else None


def _git(*arguments: str) -> str | None:
    """What git says of this folder, None where it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
