import hashlib
import json
import math
import os
import resource
import shutil
import signal
from importlib.metadata import version

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from sage_snn import LIFNode
from sage_snn.data import DataError
from sage_snn.recipes import differences, load_recipe
from sage_snn.runs import RunError, RunFolder
from sage_snn.runs.run import open_run
from sage_snn.training import InterruptedRunError, train
from sage_snn.training import loop as loop_module
from sage_snn.training.failure import NonFiniteError


def run(folder, settings, **options):
    return train("digits", folder, settings=settings, quiet=True, **options)


def test_a_run_leaves_what_it_promises(finished):
    folder = RunFolder(finished)
    summary = folder.summary()
    promised = {
        "last_top1",
        "best_top1",
        "epochs",
        "parameters",
        "seconds",
        "peak_memory_mb",
        "policy",
        "seed",
        "finished",
    }
    assert promised <= summary.keys()
    assert summary["finished"] is True
    lines = folder.metrics()
    assert [line["epoch"] for line in lines] == [0, 1]
    fields = {"train_loss", "test_loss", "test_top1", "test_top5", "lr", "seconds", "images_per_second"}
    assert all(fields <= line.keys() for line in lines)
    rates = lines[1]["firing_rates"]
    assert len(rates) == sum(isinstance(m, LIFNode) for m in open_run(finished).network().modules())
    assert all(0 <= rate <= 1 for rate in rates.values())
    assert any(rate > 0 for rate in rates.values())
    signals = pd.read_parquet(finished / "signals" / "epoch-0001.parquet")
    assert list(signals.columns) == ["step", "block", "dispersion", "zscore", "slope", "entropy"]
    assert sorted(signals["step"].unique()) == [3, 4, 5]
    assert all(len(heads) == 2 for heads in signals["entropy"])
    assert {"model.safetensors", "best.safetensors", "recipe.yaml", "checkpoints"} <= {
        p.name for p in finished.iterdir()
    }
    applied = folder.applied()
    assert applied["precision"] == "32"
    assert applied["versions"]["torch"] == version("torch")
    assert applied["augmentations"]


def test_observations_are_recorded_at_every_temperature_and_resume(tmp_path, tiny, interrupted):
    settings = tiny | {"observe.temperatures": [0.25, 2.0], "policy.kind": "sage"}
    run(tmp_path / "whole", settings)
    seen = pd.read_parquet(tmp_path / "whole" / "observations" / "epoch-0001.parquet")
    assert list(seen.columns) == ["step", "block", "temperature", "entropy", "gini"]
    assert sorted(seen["step"].unique()) == [3, 4, 5]
    assert sorted(seen["temperature"].unique()) == [0.25, 2.0]
    signals = pd.read_parquet(tmp_path / "whole" / "signals" / "epoch-0001.parquet")
    same = seen[seen["temperature"] == 0.25].reset_index()
    assert all(a.tolist() == b.tolist() for a, b in zip(same["entropy"], signals["entropy"], strict=True))
    interrupted(tmp_path / "parts", settings)
    run(tmp_path / "parts", settings, resume=True)
    again = pd.read_parquet(tmp_path / "parts" / "observations" / "epoch-0001.parquet")
    pd.testing.assert_frame_equal(seen, again)


def test_the_written_weights_need_no_library_of_ours(finished):
    weights = load_file(finished / "model.safetensors")
    assert weights["head.weight"].shape == (10, 16)
    assert not any("slope" in name for name in weights)


def test_the_written_recipe_trains_the_same_again(finished, tmp_path, same_run):
    train(finished / "recipe.yaml", tmp_path / "again", quiet=True)
    assert same_run(finished, tmp_path / "again")


@pytest.mark.parametrize("policy", ["fixed", "learnable", "sage"])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, tiny, policy, same_run, interrupted):
    settings = tiny | {"policy.kind": policy, "accumulate": 2}
    run(tmp_path / "whole", settings)
    interrupted(tmp_path / "parts", settings)
    assert not (tmp_path / "parts" / "summary.json").exists()
    run(tmp_path / "parts", settings, resume=True)
    assert same_run(tmp_path / "whole", tmp_path / "parts")


def test_sigterm_writes_a_checkpoint_and_stops(tmp_path, tiny, monkeypatch):
    original, count = loop_module.Training._backward, []

    def backward(self, batches):
        count.append(1)
        if len(count) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batches)

    monkeypatch.setattr(loop_module.Training, "_backward", backward)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InterruptedRunError, match="stopped after step 2 of epoch 1"):
        run(tmp_path / "run", tiny)
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.pt"))) == 1


def test_a_finished_run_is_left_alone_and_says_so(finished, tiny, capfd):
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    summary = train("digits", finished, settings=tiny, resume=True)
    assert summary["finished"]
    assert "nothing to do" in capfd.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_resume_on_an_empty_folder_starts(tmp_path, tiny):
    assert run(tmp_path / "new", tiny | {"epochs": 1}, resume=True)["epochs"] == 1


def test_a_folder_with_another_run_is_refused(finished, tiny):
    with pytest.raises(RunError, match="holds a run already; add --resume"):
        run(finished, tiny)
    with pytest.raises(RunError, match=r"lr: 0\.002 there, 0\.5 now"):
        run(finished, tiny | {"lr": 0.5}, resume=True)


def test_a_folder_with_other_files_or_without_permission_is_refused(tmp_path, tiny):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match="not a run's"):
        run(tmp_path, tiny)
    with pytest.raises(RunError, match="cannot write to"):
        run("/proc/nowhere", tiny)


def test_a_run_stopped_before_its_recipe_was_written_can_start_again(tmp_path, tiny, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_recipe", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", tiny)
    monkeypatch.undo()
    for name in (".recipe.yaml.123.tmp", "..writable.123.tmp", ".writable"):
        (tmp_path / "run" / name).touch()
    assert run(tmp_path / "run", tiny | {"epochs": 1}, resume=True)["epochs"] == 1


def test_a_run_that_lost_its_recipe_is_not_trained_over(finished, tmp_path, tiny):
    for name in ("checkpoints", "signals"):
        shutil.copytree(finished / name, tmp_path / "run" / name)
    with pytest.raises(RunError, match="not a run's"):
        run(tmp_path / "run", tiny, resume=True)


def test_other_arrays_are_another_run_and_moved_ones_are_not(tmp_path, tiny):
    def save(name, seed):
        images = np.random.default_rng(seed).integers(0, 256, (40, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / name, images=images, labels=np.arange(40) % 4)
        return {"data": "arrays", "data_dir": str(tmp_path / name)}

    short = tiny | {"epochs": 1, "max_steps_per_epoch": 1, "train_images": None, "test_images": None}
    run(tmp_path / "run", short | save("a.npz", 0))
    with pytest.raises(RunError, match=r"another recipe:\n  data_digest: '\w+' there, '\w+' now"):
        run(tmp_path / "run", short | save("b.npz", 1), resume=True)
    assert run(tmp_path / "run", short | save("moved.npz", 0), resume=True)["finished"]
    with pytest.raises(RunError, match="data_digest"):
        run(tmp_path / "run", short | save("a.npz", 1), resume=True)
    with pytest.raises(DataError, match=r"gone\.npz is not there"):
        run(tmp_path / "run", short | {"data": "arrays", "data_dir": str(tmp_path / "gone.npz")}, resume=True)


def test_checkpoints_that_are_all_torn_stop_the_run_and_its_epochs_stay(finished, tmp_path, tiny):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "summary.json").unlink()
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"torn")
    before = sorted(folder.rglob("*"))
    with pytest.raises(RunError, match=r"no checkpoint in .* can be used"):
        run(folder, tiny, resume=True)
    assert sorted(folder.rglob("*")) == before
    assert len(RunFolder(folder).metrics()) == 2


def test_a_torn_checkpoint_is_set_aside_and_the_one_before_goes_on(finished, tmp_path, tiny, same_run):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "summary.json").unlink()
    max((folder / "checkpoints").iterdir()).write_bytes(b"torn")
    with pytest.warns(UserWarning, match="using the one before it"):
        run(folder, tiny, resume=True)
    assert same_run(finished, folder)
    assert len(list((folder / "checkpoints").glob("*.torn"))) == 1


def test_half_a_summary_is_written_again_from_the_last_checkpoint(finished, tmp_path, tiny):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "summary.json").write_text('{"last_top1": 9')
    again = run(folder, tiny, resume=True)
    assert again["last_top1"] == RunFolder(finished).summary()["last_top1"]
    assert RunFolder(folder).summary() == again
    shutil.rmtree(folder / "checkpoints")
    (folder / "summary.json").write_text("")
    with pytest.raises(RunError, match="half-written, and there is no checkpoint"):
        run(folder, tiny, resume=True)


def test_a_full_disk_says_what_to_do_and_the_run_resumes(tmp_path, tiny, monkeypatch, same_run):
    run(tmp_path / "whole", tiny)
    calls = []

    def save(*args):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return original(*args)

    original = loop_module.save_checkpoint
    monkeypatch.setattr(loop_module, "save_checkpoint", save)
    with pytest.raises(RunError, match="make room and --resume"):
        run(tmp_path / "run", tiny)
    run(tmp_path / "run", tiny, resume=True)
    assert same_run(tmp_path / "whole", tmp_path / "run")


def test_a_non_finite_loss_names_step_images_and_block_and_keeps_the_checkpoint(tmp_path, tiny, monkeypatch):
    original, count = loop_module.Training._backward, []

    def backward(self, batches):
        count.append(1)
        if len(count) == 5:
            with torch.no_grad():
                self.network.blocks[1].mlp.second.norm.weight[0] = math.inf
        return original(self, batches)

    monkeypatch.setattr(loop_module.Training, "_backward", backward)
    with pytest.raises(NonFiniteError) as error:
        run(tmp_path / "run", tiny)
    text = str(error.value)
    assert "step 2 of epoch 2" in text
    assert "blocks.1" in text
    assert len(json.loads(text[text.index("[") : text.index("]") + 1])) == 16
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.pt"))) == 1


def test_weights_can_be_the_start_of_another_run(finished, tmp_path, tiny):
    settings = tiny | {"epochs": 1, "max_steps_per_epoch": 1, "lr": 1e-12, "warmup_lr": 0.0}
    run(tmp_path / "next", settings, init_from=finished)
    before, after = load_file(finished / "model.safetensors"), load_file(tmp_path / "next" / "model.safetensors")
    torch.testing.assert_close(after["blocks.0.mlp.first.synapse.weight"], before["blocks.0.mlp.first.synapse.weight"])
    with pytest.raises(RunError, match="no weights at"):
        run(tmp_path / "other", settings, init_from=tmp_path / "absent.safetensors")
    with pytest.raises(RunError, match="does not fit the model"):
        run(tmp_path / "third", settings | {"model.depth": 1}, init_from=finished)


def stopped_at_once(folder, settings, monkeypatch, **options):
    """A run that ended within its first step, before any checkpoint."""

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop_module.Training, "_backward", stop)
        with pytest.raises(KeyboardInterrupt):
            run(folder, settings, **options)


def test_a_resumed_run_starts_from_the_weights_it_was_given(finished, tmp_path, tiny, monkeypatch, same_run):
    run(tmp_path / "whole", tiny, init_from=finished)
    stopped_at_once(tmp_path / "parts", tiny, monkeypatch, init_from=finished)
    run(tmp_path / "parts", tiny, resume=True)
    assert same_run(tmp_path / "whole", tmp_path / "parts")
    recipe = RunFolder(tmp_path / "parts").recipe()
    assert recipe.init_from == str(finished)
    assert recipe.init_digest == hashlib.sha256((finished / "model.safetensors").read_bytes()).hexdigest()[:16]
    assert [key for key, _, _ in differences(recipe, RunFolder(finished).recipe())] == ["init_digest"]


def test_weights_that_are_gone_or_changed_are_missed_only_before_the_first_checkpoint(
    finished, tmp_path, tiny, monkeypatch, interrupted
):
    weights = shutil.copy(finished / "model.safetensors", tmp_path / "weights.safetensors")
    stopped_at_once(tmp_path / "run", tiny, monkeypatch, init_from=weights)
    content = weights.read_bytes()
    weights.write_bytes(content + b" ")
    with pytest.raises(RunError, match="has changed since the run was started from it; put the file back"):
        run(tmp_path / "run", tiny, resume=True)
    with pytest.raises(RunError, match="another recipe:\n  init_digest"):
        run(tmp_path / "run", tiny, resume=True, init_from=weights)
    weights.unlink()
    with pytest.raises(RunError, match="no weights at"):
        run(tmp_path / "run", tiny, resume=True)
    weights.write_bytes(content)
    interrupted(tmp_path / "run", tiny, resume=True)
    weights.unlink()
    assert run(tmp_path / "run", tiny, resume=True)["finished"]


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": [1]}, {1: torch.zeros(1)}, {"head.weight": 1}])
def test_torch_files_that_hold_no_weights_are_refused(tmp_path, tiny, content):
    torch.save(content, tmp_path / "content.pt")
    with pytest.raises(RunError, match=r"content\.pt holds no weights by name; save model\.state_dict\(\)"):
        run(tmp_path / "run", tiny, init_from=tmp_path / "content.pt")


def test_the_first_epoch_is_trained_with_the_schedules_first_rate(finished):
    lines = RunFolder(finished).metrics()
    assert lines[0]["lr"] == pytest.approx(2e-3)
    assert lines[1]["lr"] < lines[0]["lr"]


@pytest.mark.slow
def test_memory_does_not_grow_over_500_steps(tmp_path, tiny, monkeypatch):
    seen = []
    original = loop_module.Training._backward

    def backward(self, batches):
        with open("/proc/self/statm") as file:
            seen.append(int(file.read().split()[1]) * resource.getpagesize() / 2**20)
        return original(self, batches)

    monkeypatch.setattr(loop_module.Training, "_backward", backward)
    run(tmp_path / "run", tiny | {"epochs": 50, "max_steps_per_epoch": 10, "test_images": 20})
    assert len(seen) == 500
    assert max(seen[400:]) - max(seen[50:150]) < 20


@pytest.mark.slow
def test_one_step_of_the_official_recipe_at_full_size(tmp_path):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (136, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(136) % 10
    parts = {"train_images": pixels[:128], "train_labels": labels[:128]}
    np.savez(tmp_path / "images.npz", **parts, test_images=pixels[128:], test_labels=labels[128:])
    short = {"epochs": 1, "warmup_epochs": 0, "cooldown_epochs": 0, "policy.warmup_epochs": 0}
    there = {"data": "arrays", "data_dir": str(tmp_path / "images.npz"), "threads": 1, "workers": 0}
    before = load_recipe("cifar10")
    summary = train("cifar10", tmp_path / "run", settings=short | there, quiet=True)
    recipe = open_run(tmp_path / "run").recipe
    assert (recipe.batch_size, recipe.model, recipe.augmentation) == (128, before.model, before.augmentation)
    assert summary["parameters"] == 9_324_730
    assert len(pd.read_parquet(tmp_path / "run" / "signals" / "epoch-0000.parquet")["step"].unique()) == 1
    assert 2.0 < RunFolder(tmp_path / "run").metrics()[0]["train_loss"] < 3.0


@pytest.mark.parametrize("loss", ["tet", "sum_cross_entropy"])
def test_a_loss_of_every_time_step_trains_and_resumes_to_the_same_bits(
    finished, tmp_path, tiny, loss, same_run, interrupted
):
    run(tmp_path / "whole", tiny | {"loss": loss})
    interrupted(tmp_path / "parts", tiny | {"loss": loss})
    run(tmp_path / "parts", tiny | {"loss": loss}, resume=True)
    assert same_run(tmp_path / "whole", tmp_path / "parts")
    ours, usual = (load_file(folder / "model.safetensors") for folder in (tmp_path / "whole", finished))
    assert any(not torch.equal(ours[name], usual[name]) for name in ours)


def test_images_are_erased_after_they_were_mixed(tmp_path, tiny, monkeypatch):
    done = []
    for name in ("mix", "erased"):
        plain = getattr(loop_module, name)
        monkeypatch.setattr(loop_module, name, lambda *args, n=name, f=plain: done.append((n, args)) or f(*args))
    train("digits", tmp_path / "run", settings=tiny | {"augmentation.erasing": 0.5}, quiet=True)
    assert [name for name, _ in done[:4]] == ["mix", "erased", "mix", "erased"]
    assert done[1][1][2] == 0.5
