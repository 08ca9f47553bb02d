"""A whole training step through the interpreter: what the twins do, with kernels that a device could run."""

import pytest
import torch
from torch.nn import functional as F

from sage_snn import SAGE
from sage_snn.kernels import switched_off
from sage_snn.kernels.gpu.launch import launch
from sage_snn.kernels.gpu.norm_lif import norm_lif
from sage_snn.kernels.membrane import Membrane
from sage_snn.neurons import LIFNode


def trained(model, images, labels, steps=2):
    """Spikes of every node in the first step, and losses, slopes, gradients and weights after the last."""
    spikes, losses = [], []
    for node in (m for m in model.modules() if isinstance(m, LIFNode)):
        node.register_forward_hook(hook := lambda _node, _inputs, fired: spikes.append(fired.detach()))
        hook.reads_output_only = True
    policy = SAGE(model, warmup_steps=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        policy.step()
        losses.append(loss.item())
    grads = [p.grad for p in model.parameters()]
    text = policy.describe()
    policy.remove()
    return spikes[: len(spikes) // steps], losses, policy.slopes.clone(), grads, text


SMALL = {"dim": 16, "heads": 2, "image_size": 8, "patch_size": 2}


def test_training_with_sage_equals_that_of_the_twins(ours, images):
    images, labels = images[..., :8, :8], torch.tensor([1, 2, 3, 4])
    found = trained(ours(**SMALL), images, labels)
    with switched_off():
        expected = trained(ours(**SMALL), images, labels)
    assert 0.02 < torch.cat([fired.flatten() for fired in found[0]]).mean() < 0.9
    for a, b in zip(found[0], expected[0], strict=True):
        assert torch.equal(a, b)
    assert found[1] == pytest.approx(expected[1], rel=1e-4)
    assert torch.allclose(found[2], expected[2], rtol=1e-5)
    largest = max(grad.abs().max().item() for grad in expected[3])
    for a, b in zip(found[3], expected[3], strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5 * largest)


def test_describe_names_the_path_of_the_models_device(ours):
    model = ours()
    with SAGE(model, warmup_steps=0) as sage:
        assert "kernels of Triton 3." in str(sage)
        assert ", interpreted" in str(sage)
        assert "17 of 17 pairs of BatchNorm and neuron fused" in str(sage)
        with switched_off():
            assert "17 not fused: switched off" in str(sage)
        model.double()
        assert "17 not fused: no kernel on cpu computes in torch.float64" in str(sage)


def test_autocast_trains_in_half_precision_with_float32_moments(ours, images):
    model = ours(**SMALL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        F.cross_entropy(model(images[..., :8, :8]), torch.tensor([1, 2, 3, 4])).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_tensors_on_two_devices_are_refused_with_the_cure():
    with pytest.raises(ValueError, match="tensors on cpu and meta in one call; move them to one device"):
        launch(None, (1,), torch.ones(3), torch.ones(3, device="meta"))


def test_a_normalisation_on_another_device_is_refused_with_the_cure():
    weight = torch.ones(3, device="meta")
    with pytest.raises(ValueError, match="tensors on cpu and meta in one call; move them to one device"):
        norm_lif(torch.ones(4, 3, 5), weight, *[None] * 4, times=2, eps=1e-5, **Membrane().options)
