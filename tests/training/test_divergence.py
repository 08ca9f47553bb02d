"""A network that diverges is no result, and never takes the place of what was good."""

import pytest
import torch

from sage_snn.kernels import native
from sage_snn.runs import RunError, RunFolder
from sage_snn.runs.checkpoint import load_checkpoint
from sage_snn.training import loop as loop_module
from sage_snn.training import train
from sage_snn.training.failure import NonFiniteError


def run(folder, settings, **options):
    return train("digits", folder, settings=settings, quiet=True, **options)


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: path.read_bytes() for path in files if path.parent.name != "tensorboard"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_last_step_that_diverges_is_no_result(tmp_path, tiny, monkeypatch, value):
    original, good = loop_module.Training._train_epoch, {}

    def train_epoch(self, stop):
        good.update(contents(tmp_path) if self.epoch == 1 else {})
        original(self, stop)
        if self.epoch == 1:
            with torch.no_grad():
                self.network.head.weight.fill_(value)

    monkeypatch.setattr(loop_module.Training, "_train_epoch", train_epoch)
    with pytest.raises(NonFiniteError, match=r"diverged by step 3 of epoch 2: .*\n.*lower lr"):
        run(tmp_path / "run", tiny)
    assert contents(tmp_path) == good
    folder = RunFolder(tmp_path / "run")
    assert folder.summary() is None
    assert all(v.isfinite().all() for v in load_checkpoint(folder.checkpoints)["model"].values())


def test_a_network_whose_test_loss_is_not_finite_is_no_result(tmp_path, tiny, monkeypatch):
    """Weights may be finite, and too large for any image."""
    monkeypatch.setattr(loop_module.Training, "_loss_of", lambda self, model, images, targets: model(images).sum() * 0)
    monkeypatch.setattr("sage_snn.runs.evaluation.F.cross_entropy", lambda logits, labels: logits.sum() * torch.nan)
    with pytest.raises(NonFiniteError, match="the test loss is nan"):
        run(tmp_path / "run", tiny)
    assert not RunFolder(tmp_path / "run").metrics()


def test_a_run_that_is_stopped_does_not_keep_what_has_diverged(tmp_path, tiny, monkeypatch, interrupted):
    original = loop_module.Training._all_agree

    def all_agree(self, stop, is_seen):
        if stop.asked:
            with torch.no_grad():
                self.network.head.weight.fill_(torch.nan)
        return original(self, stop, is_seen)

    monkeypatch.setattr(loop_module.Training, "_all_agree", all_agree)
    with pytest.raises(NonFiniteError, match="diverged"):
        interrupted(tmp_path / "run", tiny)
    monkeypatch.undo()
    assert run(tmp_path / "run", tiny, resume=True)["finished"]


def test_a_run_is_not_gone_on_with_on_other_kernels(tmp_path, tiny, interrupted):
    folder = interrupted(tmp_path / "run", tiny)
    before = contents(folder)
    with native.switched_off(), pytest.raises(RunError, match=r"kernels: C\+\+ there, plain torch here(.|\n)*compiler"):
        run(folder, tiny, resume=True)
    assert contents(folder) == before
    assert run(folder, tiny, resume=True)["finished"]


def test_what_a_kill_left_half_written_is_removed_at_the_next_start(tmp_path, tiny, interrupted):
    folder = interrupted(tmp_path / "run", tiny)
    left = [".summary.json.123.tmp", "checkpoints/.step-1.pt.9.tmp", "signals/epoch-0000.tmp"]
    mine = [".note.tmp", "signals/mine.tmp"]
    for name in left + mine:
        (folder / name).write_bytes(b"half")
    run(folder, tiny, resume=True)
    assert [name for name in left + mine if (folder / name).exists()] == mine
