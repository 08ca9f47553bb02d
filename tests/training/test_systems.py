"""The recipes of the compared systems: their networks in full size, and one real step of each."""

import numpy as np
import pytest

from sage_snn.recipes import load_recipe, shipped_recipes
from sage_snn.training import train

SYSTEMS = {
    "tdbn-resnet19": 12_630_858,
    "tet-resnet19": 12_630_858,
    "qcfs-resnet20": 272_474,
    "qcfs-vgg16": 33_642_442,
    "rmp-resnet20": 272_474,
    "rmp-vgg16": 33_642_442,
    "diet-resnet20": 11_253_450 + 2 * 19,  # a threshold and a leak per layer
    "hybrid-vgg11": 21_026_506,
}


def test_every_system_ships_with_a_small_form_of_the_same_kind():
    assert {f"{name}{ending}" for name in SYSTEMS for ending in ("", "-small")} <= set(shipped_recipes())
    for name in SYSTEMS:
        whole, small = load_recipe(name), load_recipe(f"{name}-small")
        for field in ("name", "neuron", "norm", "encoding"):
            assert getattr(whole.model, field) == getattr(small.model, field)
        assert [stage.name for stage in whole.stages] == [stage.name for stage in small.stages]
        assert whole.loss == small.loss
        assert (whole.balance is None) == (small.balance is None)
        assert whole.about["system"] == small.about["system"]
        assert small.train_images == 4000
        assert whole.about["choices"]


@pytest.fixture
def pictures(tmp_path):
    """Ten to train on and two to test, of CIFAR's size."""
    rng = np.random.default_rng(0)
    parts = {"train": 10, "test": 2}
    images = {f"{part}_images": rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8) for part, n in parts.items()}
    np.savez(tmp_path / "data.npz", **images, **{f"{part}_labels": np.arange(n) for part, n in parts.items()})
    return tmp_path / "data.npz"


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_one_step_in_full_size(name, pictures, tmp_path):
    here = {"data": "arrays", "data_dir": str(pictures), "threads": 1, "workers": 0}
    recipe = load_recipe(name, here | {"batch_size": 2, "max_steps_per_epoch": 1})
    recipe = recipe.updated({"model.time_steps": min(recipe.model.time_steps, 60)})  # more would take minutes
    short = {"epochs": 1, "batch_size": 2}
    stages = [stage.model_dump() | {"settings": stage.settings | short} for stage in recipe.stages]
    settings = {"stages": stages, "epochs": min(recipe.epochs, 1), "observe": {}}
    if recipe.balance is not None:
        settings["balance"] = recipe.balance.model_dump() | {"images": 2, "time_steps": 60}
    summary = train(recipe.updated(settings), tmp_path / "run", quiet=True)
    assert summary["parameters"] == SYSTEMS[name]
    assert summary["epochs"] == min(recipe.epochs, 1)
    assert [stage["epochs"] for stage in summary.get("stages", [])] == [1] * len(recipe.stages)
