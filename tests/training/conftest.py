from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from sage_snn.runs import RunFolder
from sage_snn.training import InterruptedRunError, stopping, train

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


class StopInTheMiddle(stopping.StopRequest):
    """Asks a run to stop when it looks for the fifth time."""

    looks = 0

    @property
    def asked(self):
        self.looks += 1
        return self.looks == 5


@pytest.fixture
def interrupted(monkeypatch):
    """Trains a recipe of digits until it is stopped in the fifth step."""

    def train_and_stop(folder, settings, **options):
        with monkeypatch.context() as patch:
            patch.setattr(stopping, "StopRequest", StopInTheMiddle)
            with pytest.raises(InterruptedRunError, match="go on with --resume"):
                train("digits", folder, settings=settings, quiet=True, **options)
        return folder

    return train_and_stop


@pytest.fixture(scope="session")
def same_run():
    """Are weights, signals and metrics (times apart) of two folders equal to the bit?"""

    def compare(a, b):
        left, right = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
        for kind in ("signals", "observations"):
            parts = [sorted((folder / kind).glob("*.parquet")) for folder in (a, b)]
            assert [p.name for p in parts[0]] == [p.name for p in parts[1]]
            for one, two in zip(*parts, strict=True):
                pd.testing.assert_frame_equal(pd.read_parquet(one), pd.read_parquet(two))
        timeless = [
            [{k: v for k, v in line.items() if "second" not in k} for line in RunFolder(f).metrics()] for f in (a, b)
        ]
        assert timeless[0] == timeless[1]
        return True

    return compare
