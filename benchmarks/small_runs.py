"""Trainings of a second or two, and the commit they are of: what kills.py and soak.py share."""

import subprocess
from pathlib import Path

SMALL = {
    "epochs": 5,
    "warmup_epochs": 0,
    "cooldown_epochs": 0,
    "max_steps_per_epoch": 4,
    "train_images": 100,
    "test_images": 20,
    "batch_size": 16,
    "lr": 2e-3,
    "model.depth": 2,
    "model.dim": 16,
    "model.heads": 2,
    "model.time_steps": 1,
    "policy.warmup_epochs": 0,
    "policy.dead_zone": 0.0,
    "augmentation.mixup": 0.5,
    "threads": 1,
}
STAGED = {
    "name": "staged",
    "data": "digits",
    "train_images": 100,
    "test_images": 20,
    "policy": {"kind": "none"},
    "warmup_epochs": 0,
    "cooldown_epochs": 0,
    "max_steps_per_epoch": 3,
    "batch_size": 16,
    "lr": 0.01,
    "threads": 1,
    "model": {"name": "vgg11", "width": 0.0625, "neuron": "diet", "time_steps": 2, "dropout": 0.1},
    "loss": {"kind": "sum_cross_entropy"},
    "stages": [{"name": "ann", "settings": {"model.neuron": "relu", "loss.kind": "cross_entropy", "epochs": 3}}],
    "balance": {"images": 16, "percentile": 99.7, "factor": 0.3},
    "epochs": 3,
}
AXES = {"policy.kind": ["fixed", "sage"], "seed": [1, 2]}
STUDY = {"name": "kills", "recipe": "digits", "settings": SMALL | {"epochs": 3}, "axes": AXES}


def commit_here() -> str:
    """Of this file, with `-dirty` where something was changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "no commit"
