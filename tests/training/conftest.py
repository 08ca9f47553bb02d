from pathlib import Path

import pytest

from sage_snn.training import train

TINY = {
    "epochs": 2,
    "warmup_epochs": 0,
    "cooldown_epochs": 0,
    "max_steps_per_epoch": 3,
    "train_images": 200,
    "test_images": 60,
    "batch_size": 16,
    "lr": 2e-3,
    "model.depth": 2,
    "model.dim": 16,
    "model.heads": 2,
    "model.time_steps": 2,
    "policy.warmup_epochs": 0,
    "policy.dead_zone": 0.0,
    "augmentation.mixup": 0.5,
    "threads": 1,
}


@pytest.fixture
def tiny():
    """Settings of the digits recipe for a run of seconds."""
    return dict(TINY)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """Folder of a finished tiny run."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train("digits", folder, settings=TINY, quiet=True)
    return folder
