import pytest
import torch
from torch import nn

from sage_snn.policies.none import Unchanged
from sage_snn.recipes import load_recipe
from sage_snn.training import builders
from sage_snn.training.builders import build_optimizer, build_schedule

BASE = {"epochs": 10, "warmup_epochs": 0, "cooldown_epochs": 0, "policy.kind": "none", "lr": 1.0, "weight_decay": 0.5}


def built(**settings):
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    recipe = load_recipe("digits", BASE | settings)
    optimizer = build_optimizer(recipe, network, Unchanged(network))
    return optimizer, build_schedule(recipe, optimizer)


@pytest.mark.parametrize("name", ["adam", "amsgrad", "sgd", "adamw"])
def test_on_cuda_no_optimizer_has_the_host_ask_a_gradient_scaler(monkeypatch, name):
    assert not built(optimizer=name)[0].defaults.get("fused")
    monkeypatch.setattr(builders, "device_of", lambda network: torch.device("cuda"))
    optimizer, _ = built(optimizer=name)
    assert optimizer.defaults["fused"]
    assert optimizer._step_supports_amp_scaling  # what torch's scaler looks for


def rates(**settings):
    optimizer, schedule = built(**settings)
    told = []
    for epoch in range(10):
        schedule.step(epoch)
        told.append(optimizer.param_groups[0]["lr"])
    return told


def test_steps_lower_the_rate_after_shares_of_the_epochs():
    assert rates(schedule="steps") == pytest.approx([1.0] * 6 + [0.1] * 2 + [0.01] + [0.001])
    assert rates(schedule="steps", decay_rate=0.2, decay_at=[0.5]) == pytest.approx([1.0] * 5 + [0.2] * 5)


def test_warmup_is_counted_inside():
    slow = rates(schedule="steps", warmup_epochs=2, warmup_lr=0.5)
    assert slow == pytest.approx([0.5, 0.75] + [1.0] * 4 + [0.1] * 2 + [0.01] + [0.001])
    assert rates(schedule="constant") == [1.0] * 10
    assert rates()[0] == 1.0 > rates()[5] > rates()[9]


@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("amsgrad", "Adam"), ("sgd", "SGD"), ("adamw", "AdamW")])
def test_optimizers_are_those_that_a_recipe_names(name, kind):
    optimizer, _ = built(optimizer=name)
    assert type(optimizer) is getattr(torch.optim, kind)
    assert bool(optimizer.param_groups[0].get("amsgrad")) is (name == "amsgrad")


def test_weight_decay_reaches_matrices_only_unless_all_are_meant():
    decays = {group["weight_decay"]: sum(p.numel() for p in group["params"]) for group in built()[0].param_groups}
    assert decays == {0.0: 6, 0.5: 4}
    (everything,) = built(decay_all=True)[0].param_groups
    assert everything["weight_decay"] == 0.5
