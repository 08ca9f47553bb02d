"""The facts of a run: what was really applied, on what, with which versions."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data import describe

if TYPE_CHECKING:
    from ..training.loop import Training


def facts(run: "Training", precision: str) -> dict[str, Any]:
    """Written beside the recipe; nothing of it is read again as a setting."""
    recipe, ranks = run.recipe, run.fabric.world_size
    parameters = sum(p.numel() for p in run.network.parameters())
    sizes = f"{len(run.data.train)} training and {len(run.data.test)} test images"
    return {
        "in short": [
            f"{recipe.policy.kind} policy",
            f"{parameters:,} parameters",
            f"T={recipe.model.time_steps}",
            sizes,
            f"{recipe.total_epochs} epochs of {run.steps_per_epoch} steps of {recipe.batch_size}",
            f"precision {precision} on {run.fabric.device.type}",
            f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}",
            f"{ranks} process{'es' * (ranks > 1)}",
        ],
        "parameters": parameters,
        "precision": precision,
        "device": str(run.fabric.device.type),
        "ranks": ranks,
        "threads": torch.get_num_threads(),
        "steps_per_epoch": run.steps_per_epoch,
        "shape": run.data.shape,
        "train_images": len(run.data.train),
        "test_images": len(run.data.test),
        "augmentations": describe(recipe.augmentation, run.data),
        "policy": run.policy.describe().splitlines(),
        "versions": versions(),
        "commit": commit(),
        "machine": f"{platform.processor() or platform.machine()}, {platform.system()}",
    }


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
