import shutil

import pytest
import yaml

from sage_snn.recipes import RecipeError, load_recipe
from sage_snn.runs import RunError, RunFolder
from sage_snn.training import train
from sage_snn.training.display import Display


def with_applied(folder, **facts):
    """The run as if it had been trained by other means."""
    fields = yaml.safe_load((folder / "recipe.yaml").read_text())
    fields["applied"] |= facts
    (folder / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return folder


@pytest.mark.parametrize(
    ("facts", "difference", "cure"),
    [
        ({"ranks": 4}, "ranks: 4 there, 1 here", r"go on with 4 processes \(torchrun --nproc-per-node\)"),
        ({"precision": "16", "device": "cuda"}, "precision: 16 there, 32 here", "go on where there is cuda"),
        ({"device": "cuda"}, "device: cuda there, cpu here", "or choose another --out"),
    ],
)
def test_a_run_trained_by_other_means_is_not_gone_on_with(tmp_path, tiny, interrupted, facts, difference, cure):
    folder = with_applied(interrupted(tmp_path / "run", tiny), **facts)
    before = sorted(folder.rglob("*"))
    with pytest.raises(RunError, match=rf"by other means[^$]*{difference}[^$]*{cure}"):
        train("digits", folder, settings=tiny, resume=True, quiet=True)
    assert sorted(folder.rglob("*")) == before


def test_a_checkpoint_of_another_number_of_processes_is_refused(tmp_path, tiny, interrupted, monkeypatch):
    folder = interrupted(tmp_path / "run", tiny)
    from sage_snn.training import loop

    def of_two(*args, **options):
        state = loaded(*args, **options)
        return state | {"ranks": state["ranks"] * 2}

    loaded = loop.load_checkpoint
    monkeypatch.setattr(loop, "load_checkpoint", of_two)
    with pytest.raises(RunError, match="checkpoint is of 2 processes, and this is a run of 1; go on with 2"):
        train("digits", folder, settings=tiny, resume=True, quiet=True)


def test_a_run_writes_down_by_which_means_it_was_trained(finished):
    applied = RunFolder(finished).applied()
    assert {key: applied[key] for key in ("precision", "device", "ranks", "threads")} == {
        "precision": "32",
        "device": "cpu",
        "ranks": 1,
        "threads": 1,
    }


def test_resume_where_nothing_is_says_that_it_starts_anew(tmp_path, tiny, capfd):
    short = tiny | {"epochs": 1, "max_steps_per_epoch": 1}
    train("digits", tmp_path / "new", settings=short, resume=True)
    assert f"{tmp_path / 'new'} holds no run yet: this one starts anew" in capfd.readouterr().err
    shutil.rmtree(tmp_path / "new")
    train("digits", tmp_path / "new", settings=short)
    assert "anew" not in capfd.readouterr().err


def test_the_live_bar_counts_epochs_from_one(monkeypatch):
    display, shown = Display("run", 10), []
    monkeypatch.setattr(display._progress, "update", lambda task, **fields: shown.append(fields["now"]))
    display.show(0, 1.0, [4.0])
    assert shown == ["epoch 1  loss 1.000  slopes 4.00"]


def test_a_silent_network_is_said_to_be_in_every_epoch_and_in_the_summary(tmp_path, tiny, capfd, monkeypatch):
    from sage_snn.training import loop

    rates = {"stem.lif": 0.2, "blocks.0.lif": 0.0, "blocks.1.lif": 0.0}
    monkeypatch.setattr(loop, "firing_rates", lambda *args: rates)
    summary = train("digits", tmp_path / "silent", settings=tiny)
    assert capfd.readouterr().err.count("warning: silent from blocks.0.lif on") == 2
    assert RunFolder(tmp_path / "silent").summary() == summary
    assert summary["silent_from"] == "blocks.0.lif"
    monkeypatch.setattr(loop, "firing_rates", lambda *args: rates | {"blocks.1.lif": 0.1})
    assert train("digits", tmp_path / "alive", settings=tiny)["silent_from"] is None
    assert "silent" not in capfd.readouterr().err.replace(str(tmp_path), "")


def test_too_few_epochs_say_what_else_must_change():
    with pytest.raises(RecipeError, match=r"fewer than epochs \(1\): add --set warmup_epochs=0, or train longer"):
        load_recipe("cifar10", {"epochs": 1})
    both = {"epochs": 2, "warmup_epochs": 20, "cooldown_epochs": 0, "policy.warmup_epochs": 3}
    cures = "--set warmup_epochs=1 --set policy.warmup_epochs=1"
    with pytest.raises(RecipeError, match=rf"longer than the training \(2\): add {cures}, or"):
        load_recipe("cifar10", both)
    assert load_recipe("cifar10", both | {"warmup_epochs": 1, "policy.warmup_epochs": 1}).epochs == 2
