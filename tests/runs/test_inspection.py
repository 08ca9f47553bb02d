import io
import json
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn

from sage_snn.control import Block
from sage_snn.runs import RunError
from sage_snn.runs.inspection import _reading, _Watch, attention_figure, inspect_run
from sage_snn.runs.run import open_run
from sage_snn.signals import HeadEntropy, head_entropy
from sage_snn.training import train


@pytest.fixture
def folder(finished, tmp_path):
    """A copy, because an inspection writes into the folder."""
    return shutil.copytree(finished, tmp_path / "run")


def silence(folder, part):
    """Query and key of the second block always fire, but for this part of its first head."""
    weights = load_file(folder / "model.safetensors")
    for name in ("query", "key"):
        weights[f"blocks.1.attention.{name}.norm.weight"].zero_()
        weights[f"blocks.1.attention.{name}.norm.bias"].fill_(3)
    weights[f"blocks.1.attention.{part}.norm.bias"][:8] = -1
    save_file(weights, folder / "model.safetensors")
    (folder / "summary.json").unlink()  # it tells the digest of the weights


def test_slopes_are_those_of_the_policy(folder):
    run = open_run(folder)
    inspection = inspect_run(run)
    assert [block.slope for block in inspection.blocks] == run.policy_state["slopes"].tolist()
    assert [block.name for block in inspection.blocks] == ["blocks.0.attention", "blocks.1.attention"]
    assert [block.neurons for block in inspection.blocks] == [7, 7]


@pytest.mark.parametrize("part", ["query", "key"])
def test_a_head_whose_query_or_key_never_fires_is_dead(folder, part):
    silence(folder, part)
    assert inspect_run(open_run(folder)).blocks[1].dead_heads == [0]


def test_maps_are_written_as_a_picture(folder):
    inspection = inspect_run(open_run(folder), images=2)
    assert inspection.figure == folder / "inspection" / "attention.png"
    assert inspection.figure.read_bytes().startswith(b"\x89PNG")


def test_it_is_ready_for_json_and_for_the_screen(folder):
    inspection = inspect_run(open_run(folder), images=1)
    told = json.loads(json.dumps(inspection.as_dict()))
    assert len(told["blocks"][0]["entropy"]) == 2
    file = io.StringIO()
    Console(file=file, width=160).print(inspection)
    text = file.getvalue()
    assert "blocks.1.attention" in text
    assert f"{inspection.blocks[0].slope:.4f}" in text


def test_without_a_checkpoint_slopes_are_unknown(folder):
    shutil.rmtree(folder / "checkpoints")
    assert [block.slope for block in inspect_run(open_run(folder), images=1).blocks] == [None, None]


def test_an_unwritable_folder_is_named(folder):
    (folder / "inspection").write_text("in the way")
    with pytest.raises(RunError, match=r"cannot write .*attention\.png"):
        inspect_run(open_run(folder))


def test_readings_are_means_over_all_images_and_the_whole_map():
    q, k = torch.rand(2, 2, 3, 4, 5, 8).gt(0.6).float().unbind()  # (T, B, H, N, K)
    query, key = nn.Identity(), nn.Identity()
    watch = _Watch(Block([], query, key, heads=4, layout="TBNC"), HeadEntropy(0.25))
    with _reading([watch]):
        for images in (slice(0, 1), slice(1, 3)):  # batches of different size
            query(q[:, images].transpose(2, 3).flatten(3))
            key(k[:, images].transpose(2, 3).flatten(3))
    assert watch.report(0, 4.0).entropy == pytest.approx(head_entropy(q, k).tolist())
    whole = 0.125 * q @ k.transpose(-1, -2)
    torch.testing.assert_close(torch.cat(watch.received), whole.mean((0, 2, 3)))


def test_the_figure_shows_grey_and_colour_images():
    for channels in (1, 3):
        maps = {"blocks.0.attention": torch.rand(2, 16), "blocks.1.attention": torch.zeros(2, 16)}
        assert attention_figure(torch.rand(2, channels, 8, 8), ["a", "b"], maps).startswith(b"\x89PNG")


def test_an_unfinished_run_says_so(tmp_path, tiny, interrupted):
    inspection = inspect_run(open_run(interrupted(tmp_path / "run", tiny)), images=1)
    file = io.StringIO()
    Console(file=file, width=160).print(inspection)
    assert file.getvalue().startswith("run is not finished: 1 of 2 epochs are done")


def test_a_network_that_does_not_spike_is_named(folder, monkeypatch):
    run = open_run(folder)
    monkeypatch.setattr(run, "network", lambda which: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(RunError, match="nothing that fires to look into: its network is an ANN; `sage-snn eval`"):
        inspect_run(run)


@pytest.mark.parametrize("per", ["network", "layer", "time"])
def test_learnt_slopes_of_every_size_can_be_looked_at(tmp_path, tiny, per):
    settings = tiny | {"epochs": 1, "policy.kind": "learnable", "policy.per": per}
    train("digits", tmp_path / "run", settings=settings, quiet=True)
    assert len(inspect_run(open_run(tmp_path / "run"), images=1).blocks) == 2
