"""Trainings of commit 8116afd, done again: small networks in float64 without kernels end where they ended then.

`kept_results.json` was written with that commit by `results()` below. Numbers come from numpy, whose generator gives
the same on every machine; float64 leaves rounding no say in which neurons fire.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sage_snn import SAGE, DeadZoneTanh, Fixed, Learnable
from sage_snn.models import spikformer

KEPT = Path(__file__).with_name("kept_results.json")
POLICIES = {
    "fixed": lambda model: Fixed(model, slope=3.0),
    "learnable": lambda model: Learnable(model, per="block"),
    "sage": lambda model: SAGE(model, warmup_steps=2, law=DeadZoneTanh(dead_zone=0.1)),
    "same step": lambda model: SAGE(model, warmup_steps=2, same_step=True),
}


def results(name):
    """Slopes, losses and a digest of every weight after twelve steps."""
    numbers = np.random.default_rng(7)
    model = spikformer(depth=2, dim=16, heads=2, time_steps=2, image_size=8, patch_size=2, num_classes=4).double()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 1.0 if parameter.ndim == 1 else 0.7
            parameter.copy_(torch.from_numpy(scale * numbers.standard_normal(tuple(parameter.shape))))
    policy, losses, slopes = POLICIES[name](model), [], []
    optimizer = torch.optim.SGD([*model.parameters(), *policy.parameters()], lr=0.05, momentum=0.9)
    for _ in range(12):
        images = torch.from_numpy(numbers.standard_normal((4, 3, 8, 8)))
        loss = F.cross_entropy(model(images), torch.from_numpy(numbers.integers(0, 4, 4)))
        if name == "same step":
            policy.step()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if name != "same step":
            policy.step()
        losses.append(loss.item())
        slopes.append(policy.slopes.tolist())
    weights = {key: [float(p.double().sum()), float(p.double().norm())] for key, p in model.state_dict().items()}
    policy.remove()
    return {"losses": losses, "slopes": slopes, "weights": weights}


@pytest.mark.parametrize("name", POLICIES)
def test_a_training_ends_where_it_ended_before(name):
    from sage_snn.kernels import switched_off

    kept = json.loads(KEPT.read_text())[name]
    with switched_off():
        now = results(name)
    assert now["losses"] == pytest.approx(kept["losses"], abs=1e-9)
    for mine, theirs in zip(now["slopes"], kept["slopes"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)  # learnt slopes are float32
    assert now["weights"].keys() == kept["weights"].keys()
    for key, values in now["weights"].items():
        assert values == pytest.approx(kept["weights"][key], abs=1e-8), key
