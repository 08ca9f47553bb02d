"""An exported network needs no data set, and says what it wants to see and what it answers."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open

from sage_snn.deploy import ExportError, export, formats
from sage_snn.models import spikformer
from sage_snn.neurons import LIFNode
from sage_snn.runs import open_run
from sage_snn.runs.card import card_of, example_of

OLD = Path(__file__).parents[1] / "old_runs" / "finished-sage"


@pytest.fixture
def without_data(tmp_path):
    """A run whose data set is not on this machine."""
    folder = tmp_path / "run"
    shutil.copytree(OLD, folder)
    fields = yaml.safe_load((folder / "recipe.yaml").read_text())
    fields |= {"data": "cifar10", "data_dir": str(tmp_path / "nowhere"), "train_images": None, "test_images": None}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return folder


def with_facts(folder):
    fields = yaml.safe_load((folder / "recipe.yaml").read_text())
    fields["applied"] |= {"mean": [0.3], "std": [0.4], "classes": ["a", "b"]}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(fields))


def test_an_export_needs_no_data_and_leaves_out_what_nobody_knows(without_data):
    run = open_run(without_data)
    card = card_of(run)
    assert card["input"] == [1, 8, 8]
    assert card["time_steps"] == 2
    assert "mean" not in card
    path = export(run.network(), without_data / "export.safetensors", "safetensors", example_of(run), card)
    assert json.loads(path.with_suffix(".json").read_text()) == card


def test_the_files_carry_normalisation_classes_and_time_steps(without_data):
    with_facts(without_data)
    run = open_run(without_data)
    path = export(run.network(), without_data / "e.safetensors", "safetensors", example_of(run), card_of(run))
    with safe_open(path, "pt") as file:
        words = file.metadata()
    assert json.loads(words["mean"]) == [0.3]
    assert json.loads(words["classes"]) == ["a", "b"]
    assert words["time_steps"] == "2"


@pytest.mark.slow
def test_an_onnx_file_carries_them_too_and_still_runs(without_data):
    import onnxruntime

    with_facts(without_data)
    run = open_run(without_data)
    path = export(run.network(), without_data / "e.onnx", "onnx", example_of(run), card_of(run))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    words = session.get_modelmeta().custom_metadata_map
    assert (json.loads(words["std"]), words["time_steps"], words["weights"]) == ([0.4], "2", "last")
    images = torch.randn(3, 1, 8, 8)
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    with torch.no_grad():
        assert torch.from_numpy(logits).argmax(-1).tolist() == run.network()(images).argmax(-1).tolist()


def test_a_run_of_today_writes_down_what_the_card_needs(without_data):
    with_facts(without_data)
    card = card_of(open_run(without_data), "best")
    assert (card["mean"], card["std"], card["classes"], card["weights"]) == ([0.3], [0.4], ["a", "b"], "best")


def test_nir_is_offered_only_where_it_can_succeed(tmp_path):
    attention = spikformer(depth=1, dim=16, heads=2, time_steps=2, image_size=8, patch_size=2)
    chain = torch.nn.Sequential(torch.nn.Linear(4, 3), LIFNode(step_mode="m"))
    assert formats(attention) == ["onnx", "safetensors", "official"]
    assert formats(chain) == ["onnx", "nir", "safetensors"]
    with pytest.raises(ExportError, match="Export to onnx or safetensors or official instead"):
        export(attention, tmp_path / "x.nir", "nir", torch.zeros(1, 3, 8, 8))
