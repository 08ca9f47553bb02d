import io
import json
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn

from sage_snn.control import Block
from sage_snn.runs import RunError, attention_maps, inspection
from sage_snn.runs.attention_maps import attention_figure
from sage_snn.runs.inspection import _reading, _Watch, inspect_run
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
    with pytest.raises(RunError, match=r"cannot write to .*inspection"):
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
    torch.testing.assert_close(torch.cat(watch.received), whole.mean((0, 3)))  # (B, H, N)


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


def test_every_block_has_a_picture_of_its_heads_with_their_entropy_label_and_prediction(folder, monkeypatch):
    asked = []

    def draw(pictures, captions, maps, **options):
        asked.append((captions, maps, options))
        return attention_figure(pictures, captions, maps, **options)

    monkeypatch.setattr(inspection, "attention_figure", draw)
    told = inspect_run(open_run(folder), images=2)
    assert [path.name for path in told.head_figures] == ["attention-0.png", "attention-1.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in told.head_figures)
    run = open_run(folder)
    batch = next(iter(run.test_loader(2).epoch(0)))
    answers = run.network()(batch.images).argmax(-1).tolist()
    captions, overview, _ = asked[0]
    assert captions == [f"{y}\npredicted {p}" for y, p in zip(batch.labels.tolist(), answers, strict=True)]
    for block, (_, maps, options) in zip(told.blocks, asked[1:], strict=True):
        assert list(maps) == [f"head {h}, entropy {value:.3f}" for h, value in enumerate(block.entropy)]
        assert options == {"title": block.name, "one_scale": True}
        assert torch.stack(list(maps.values())).mean(0).allclose(overview[block.name])


def test_names_are_drawn_as_they_are(monkeypatch):
    maps = {"$\\frac$": torch.rand(1, 4), "b": torch.zeros(1, 4)}
    for one_scale in (True, False):
        png = attention_figure(torch.rand(1, 1, 8, 8), ["$x_\x1b"], maps, title="$_$", one_scale=one_scale)
        assert png.startswith(b"\x89PNG")


def test_colours_mean_the_same_everywhere_with_one_scale(monkeypatch):
    limits = []
    column = attention_maps._column

    def note(axes, received, largest):
        limits.append(largest)
        return column(axes, received, largest)

    monkeypatch.setattr(attention_maps, "_column", note)
    maps = {"a": torch.tensor([[0.0, 1, 2, 3]]), "b": torch.tensor([[0.0, 5, 0, 0]])}
    for one_scale in (False, True):
        attention_figure(torch.rand(1, 3, 8, 8), ["x"], maps, one_scale=one_scale)
    assert limits == [3, 5, 5, 5]
