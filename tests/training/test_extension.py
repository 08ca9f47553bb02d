import json
import shutil

import pytest
import torch
import yaml

from sage_snn.recipes import RecipeError, load_recipe
from sage_snn.runs import RunError, RunFolder, open_run
from sage_snn.studies.plan import run_key
from sage_snn.training import train
from sage_snn.training.builders import build_schedule
from sage_snn.training.extension import begin


def rates(recipe):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=recipe.lr)
    schedule, told = build_schedule(recipe, optimizer), []
    for epoch in range(recipe.total_epochs):
        schedule.step(epoch)
        told.append(optimizer.param_groups[0]["lr"])
    return told


@pytest.fixture
def run(finished, tmp_path):
    """A finished run of two epochs, to be extended."""
    return shutil.copytree(finished, tmp_path / "run")


def test_an_extended_schedule_is_the_short_one_and_then_the_rest_of_the_long_one():
    short, long = (load_recipe("digits", {"epochs": n, "cooldown_epochs": 1}) for n in (4, 7))
    both = load_recipe("digits", {"epochs": 7, "cooldown_epochs": 1, "extended_from": [4]})
    assert rates(both) == rates(short) + rates(long)[5:]
    assert rates(both)[5] > 10 * rates(both)[4]  # it rises again
    thrice = load_recipe("digits", {"epochs": 9, "cooldown_epochs": 1, "extended_from": [4, 7]})
    assert rates(thrice)[:8] == rates(both)


def test_a_finished_run_goes_on_and_its_recipe_gives_the_same_bits_in_one_go(run, tiny, tmp_path, same_run, capfd):
    first = RunFolder(run).metrics()
    train("digits", run, settings=tiny | {"epochs": 3}, resume=True)
    said = capfd.readouterr().err
    assert "is finished and goes on, from 2 to 3 epochs" in said
    assert "not the result of 3 epochs in one go" in said
    assert RunFolder(run).metrics()[:2] == first
    summary = RunFolder(run).summary()
    assert (summary["epochs"], summary["finished"]) == (3, True)
    fields = yaml.safe_load((run / "recipe.yaml").read_text())
    assert (fields["epochs"], fields["extended_from"]) == (3, [2])
    train(run / "recipe.yaml", tmp_path / "again", quiet=True)
    assert same_run(run, tmp_path / "again")
    straight, longer = load_recipe("digits", tiny | {"epochs": 3}), RunFolder(run).recipe()
    assert run_key(straight) != run_key(longer)  # they are compared as what they are


def test_an_extension_that_was_interrupted_is_resumed_to_the_same_bits(run, tiny, tmp_path, interrupted, same_run):
    longer = tiny | {"epochs": 4}
    train("digits", shutil.copytree(run, tmp_path / "whole"), settings=longer, resume=True, quiet=True)
    interrupted(run, longer, resume=True)
    assert RunFolder(run).summary() is None
    assert "3 of 4 epochs are done" in open_run(run).unfinished()
    train("digits", run, settings=longer, resume=True, quiet=True)
    assert same_run(run, tmp_path / "whole")


@pytest.mark.parametrize("epochs", [1, 2])
def test_no_more_epochs_than_there_are_is_nothing_to_do(run, tiny, capfd, epochs):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    told = train("digits", run, settings=tiny | {"epochs": epochs}, resume=True)
    assert told == RunFolder(run).summary()
    assert "nothing to do" in capfd.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_lengths_that_a_run_had_need_not_be_repeated(run, tiny, capfd):
    for epochs in (3, 4):
        train("digits", run, settings=tiny | {"epochs": epochs}, resume=True, quiet=True)
    assert RunFolder(run).recipe().extended_from == (2, 3)
    capfd.readouterr()
    for epochs in (2, 3, 4):
        train("digits", run, settings=tiny | {"epochs": epochs}, resume=True)
    assert capfd.readouterr().err.count("nothing to do") == 3
    assert RunFolder(run).recipe().extended_from == (2, 3)


def test_a_kill_between_the_new_recipe_and_the_old_summary_loses_nothing(run, tiny, finished, tmp_path, same_run):
    longer = tiny | {"epochs": 3}
    train("digits", shutil.copytree(run, tmp_path / "whole"), settings=longer, resume=True, quiet=True)
    summary, weights = ((run / name).read_bytes() for name in ("summary.json", "model.safetensors"))
    begin(RunFolder(run), load_recipe("digits", longer | {"extended_from": [2]}))
    (run / "summary.json").write_bytes(summary)
    (run / "model.safetensors").write_bytes(weights)
    train("digits", run, settings=longer, resume=True, quiet=True)
    assert same_run(run, tmp_path / "whole")
    assert json.loads((run / "summary.json").read_text())["epochs"] == 3


def test_only_the_length_may_differ(run, tiny):
    with pytest.raises(RunError, match=r"another recipe:\n  epochs: 2 there, 3 now\n  lr"):
        train("digits", run, settings=tiny | {"epochs": 3, "lr": 1e-3}, resume=True, quiet=True)


def test_an_unfinished_run_keeps_its_length(tmp_path, tiny, interrupted):
    folder = interrupted(tmp_path / "run", tiny)
    with pytest.raises(RunError, match="another recipe"):
        train("digits", folder, settings=tiny | {"epochs": 3}, resume=True, quiet=True)


def test_without_its_checkpoint_a_run_cannot_be_extended(run, tiny):
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match=r"no checkpoint to go on from; .* --init-from"):
        train("digits", run, settings=tiny | {"epochs": 3}, resume=True, quiet=True)
    assert RunFolder(run).has_summary


def test_a_run_in_stages_cannot_be_extended(run, tiny):
    fields = yaml.safe_load((run / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(yaml.safe_dump(fields | {"stages": [{"name": "first"}]}))
    with pytest.raises(RunError, match="trained in stages"):
        train("digits", run, settings=tiny | {"epochs": 3, "stages": [{"name": "first"}]}, resume=True, quiet=True)


@pytest.mark.parametrize("lengths", [[15], [5, 4], [16], [3, 3]])
def test_lengths_grow(lengths):
    with pytest.raises(RecipeError, match="ever larger numbers of epochs, all below `epochs`"):
        load_recipe("digits", {"extended_from": lengths})
