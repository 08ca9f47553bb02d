import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file

from sage_snn.runs import RunError
from sage_snn.runs.checkpoint import load_checkpoint
from sage_snn.runs.run import load, open_run
from sage_snn.runs.weights import read_weights


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of a finished run that may be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def holds(network, state):
    return all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(("which", "file"), [("last", "model.safetensors"), ("best", "best.safetensors")])
def test_network_has_the_weights_of_the_last_or_the_best_epoch(finished, which, file):
    run = open_run(finished)
    network = run.network(which)
    assert holds(network, load_file(finished / file))
    assert not network.training


def test_an_unfinished_run_gives_the_weights_of_its_newest_checkpoint(folder):
    (folder / "model.safetensors").unlink()
    (folder / "summary.json").unlink()
    run = open_run(folder)
    assert holds(run.network(), load_checkpoint(folder / "checkpoints")["model"])


@pytest.mark.parametrize("which", ["last", "best"])
def test_the_network_is_loaded_without_its_data(folder, which):
    fields = yaml.safe_load((folder / "recipe.yaml").read_text())
    fields |= {"data": "cifar10", "data_dir": "/nowhere"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(fields))
    network = load(folder, which)
    assert not network.training
    assert holds(network, open_run(folder).network(which).state_dict())
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_policy_state_is_that_of_the_newest_checkpoint(finished):
    state = open_run(finished).policy_state
    assert state["policy"] == "SAGE"
    assert state["steps"] == 6
    assert state["slopes"].shape == (2,)


def test_policy_state_is_none_without_a_checkpoint(folder):
    shutil.rmtree(folder / "checkpoints")
    assert open_run(folder).policy_state is None
    assert not open_run(folder).network().training


def test_reading_a_run_changes_nothing_in_it(folder):
    newest = max((folder / "checkpoints").iterdir())
    newest.write_bytes(b"torn")
    before = sorted(folder.rglob("*"))
    with pytest.warns(UserWarning, match="is left out"):
        assert open_run(folder).policy_state["steps"] == 3
    assert sorted(folder.rglob("*")) == before


def test_a_run_whose_checkpoints_are_all_torn_is_read_as_far_as_it_goes(folder):
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"torn")
    with pytest.warns(UserWarning, match="policy's state is unknown"):
        assert open_run(folder).policy_state is None
    assert not open_run(folder).network().training
    (folder / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"no checkpoint in .* can be used"):
        open_run(folder).network()


def test_data_is_the_recipes_and_read_only_when_asked_for(finished):
    moved = open_run(finished, data_dir="elsewhere")
    assert moved.recipe.data_dir == "elsewhere"
    assert "data" not in vars(moved)
    data = open_run(finished).data
    assert (len(data.train), len(data.test)) == (200, 60)


def test_test_images_are_all_of_them_or_spread_evenly(finished):
    run = open_run(finished)
    assert torch.equal(run.test_loader().images.labels, run.data.test.labels)
    few = run.test_loader(3).images
    assert torch.equal(few.pixels, run.data.test.pixels[[0, 30, 59]])
    assert len(run.test_loader(1000).images) == 60


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(RunError, match=r"there is no folder .*nowhere"):
        open_run(tmp_path / "nowhere")


def test_a_folder_that_is_not_a_runs_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"no recipe\.yaml"):
        open_run(tmp_path)


def test_a_run_without_any_weights_says_how_to_go_on(folder):
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(RunError, match=r"nor a whole checkpoint; go on with .*--resume"):
        open_run(folder).network()


def test_a_missing_best_is_named_and_what_to_do_without_it(folder):
    (folder / "best.safetensors").unlink()
    with pytest.raises(RunError, match=r"no best\.safetensors, only model\.safetensors; leave out --weights"):
        open_run(folder).network("best")
    (folder / "summary.json").unlink()
    with pytest.raises(RunError, match=r"no best\.safetensors yet; .* go on with --resume$"):
        open_run(folder).network("best")


def test_a_shipped_run_says_which_weights_it_has():
    with pytest.raises(RunError, match=r"^digits has no best\.safetensors, only model\.safetensors; leave out") as told:
        load("shipped:digits", "best")
    assert "--resume" not in str(told.value)


def test_a_torn_weights_file_is_reported(folder):
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(RunError, match="cannot be read as weights"):
        open_run(folder).network()


@pytest.mark.parametrize(("which", "file"), [("last", "model.safetensors"), ("best", "best.safetensors")])
def test_weights_of_which_one_bit_changed_are_refused(folder, which, file):
    content = bytearray((folder / file).read_bytes())
    content[-1] ^= 1  # the last bit of a number, which every reader would take
    (folder / file).write_bytes(content)
    with pytest.raises(RunError, match=r"torn, or not what the run wrote; copy it there again"):
        open_run(folder).network(which)
    with pytest.raises(RunError, match="not what the run wrote"):
        read_weights(folder / file)


def test_how_far_an_unfinished_run_is_and_of_which_moment_its_weights_are(folder):
    assert open_run(folder).unfinished() is None
    (folder / "summary.json").unlink()
    told = "run is not finished: 2 of 2 epochs are done; the weights are those of"
    assert open_run(folder).unfinished() == f"{told} the last of them"
    (folder / "model.safetensors").unlink()
    assert open_run(folder).unfinished() == f"{told} its newest checkpoint, after epoch 2"
    assert open_run(folder).unfinished("best") == f"{told} the best of them"
