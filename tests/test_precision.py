"""On a device without float64 (Apple's) nothing may ask for it; the device is played by a mode that refuses it."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sage_snn import SAGE, Fixed, HeadGini, Learnable, Random, check, find_layers
from sage_snn.kernels import switched_off


class NoFloat64(TorchDispatchMode):
    """Raises as soon as an operation gives a tensor in float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(result)):
            raise TypeError(f"{func} in float64")
        return result


@pytest.fixture
def device_without_float64(monkeypatch):
    for name, module in list(sys.modules.items()):
        if name.startswith("sage_snn") and hasattr(module, "precise"):
            monkeypatch.setattr(module, "precise", lambda device: torch.float32)


POLICIES = {
    "fixed": lambda model: Fixed(model, slope=3.0),
    "learnable": lambda model: Learnable(model, per="block"),
    "sage": lambda model: SAGE(model, warmup_steps=1),
    "gini": lambda model: SAGE(model, warmup_steps=1, signal=HeadGini()),
    "firing": lambda model: SAGE(model, warmup_steps=1, groups=find_layers(model), source="firing"),
}


@pytest.mark.parametrize("attach", POLICIES.values(), ids=POLICIES.keys())
def test_a_training_asks_for_no_float64(attach, ours, images, device_without_float64):
    model = ours()
    with switched_off(), NoFloat64(), attach(model) as policy:
        optimizer = torch.optim.SGD([*model.parameters(), *policy.parameters()], lr=0.1)
        for _ in range(3):
            F.cross_entropy(model(images), torch.arange(4)).backward()
            optimizer.step()
            optimizer.zero_grad()
            policy.step()
        state = policy.state_dict()
        policy.load_state_dict(state)
        assert "slope" in str(policy)


def test_a_checkup_asks_for_no_float64(ours, images, device_without_float64):
    with switched_off(), NoFloat64():
        assert check(ours(), images, torch.arange(4)).parts


def test_the_mode_sees_float64(ours):
    with switched_off(), NoFloat64(), pytest.raises(TypeError, match="in float64"):
        SAGE(ours(), warmup_steps=0)


def test_noise_is_the_same_on_every_device(device_without_float64):
    q = torch.zeros(1, 1, 4, 2, 2)
    low = Random(3)(q, q, 0.125)
    assert low.dtype == torch.float32
    assert torch.equal(low, torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).float())
