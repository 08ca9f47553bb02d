import pytest
import torch
from torch import nn

from sage_snn.conversion import QCFS, to_snn
from sage_snn.models import resnet20, vgg16


def test_qcfs_rounds_to_levels_inside_its_clip():
    qcfs = QCFS(levels=4, threshold=2.0)
    x = torch.tensor([-1.0, 0.0, 0.24, 0.26, 1.0, 1.24, 1.9, 5.0])
    assert qcfs(x).tolist() == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0]


def test_gradients_pass_the_rounding_and_reach_the_threshold():
    qcfs, x = QCFS(levels=4, threshold=2.0), torch.tensor([-1.0, 0.3, 5.0], requires_grad=True)
    qcfs(x).sum().backward()
    assert x.grad.tolist() == pytest.approx([0.0, 1.0, 0.0])
    # Below the clip 0, above it 1; inside, 1 of 4 levels less the share of the way: 1 / 4 - 0.3 / 2.
    assert qcfs.threshold.grad.item() == pytest.approx(0 + 1 + 0.25 - 0.15)


@pytest.mark.parametrize("steps", [4, 8])
def test_a_layer_is_exact_when_time_steps_and_levels_agree(steps):
    torch.manual_seed(0)
    ann = nn.Sequential(nn.Linear(6, 50), QCFS(levels=steps, threshold=1.5)).double()
    x = torch.randn(10_000, 6, dtype=torch.float64)
    with torch.no_grad():
        spikes, levels = to_snn(ann, steps)(x) * steps / 1.5, ann(x) * steps / 1.5
    assert torch.equal(spikes.round(), levels.round())
    assert (spikes - spikes.round()).abs().max() < 1e-9
    assert len(levels.round().unique()) == steps + 1


@pytest.mark.parametrize("build", [resnet20, vgg16])
def test_our_networks_convert_with_the_same_weights_and_answer_alike(build):
    torch.manual_seed(0)
    # Levels and steps so many that both are nearly the clip itself.
    ann = build(width=0.25 if build is resnet20 else 0.0625, activation=lambda: QCFS(512, 2.0), time_steps=1)
    images = torch.randn(4, 3, 32, 32)
    ann.train()
    with torch.no_grad():
        for _ in range(20):
            ann(images)  # statistics of BatchNorm
        ann.eval()
        snn = to_snn(ann, 512)
        expected, answers = ann(images), snn(images)
    assert snn.state_dict().keys() <= ann.state_dict().keys()
    assert (answers - expected).abs().mean() < 0.1 * expected.std()
    snn.time_steps = 4
    with torch.no_grad():  # every pass from rest, whatever was seen before
        assert torch.equal(snn(images), snn(images))
        assert snn.forward_steps(images).shape == (4, 4, 10)


def test_what_cannot_be_converted_says_how():
    with pytest.raises(ValueError, match=r"Linear has no QCFS activation to convert; train it with activation="):
        to_snn(nn.Linear(2, 2), 4)
    with pytest.raises(ValueError, match="time_steps must be at least 1"):
        to_snn(nn.Sequential(QCFS()), 0)
    with pytest.raises(ValueError, match="threshold must be positive"):
        QCFS(threshold=0.0)


def test_activations_that_become_no_neuron_are_named():
    ann = nn.Sequential(nn.Linear(2, 2), QCFS(), nn.GELU(), nn.ReLU())
    with pytest.raises(
        ValueError, match=r"Sequential has activations that become no neuron: GELU, ReLU; train it with"
    ):
        to_snn(ann, 4)
