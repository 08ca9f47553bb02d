"""ResNets and VGGs: their sizes, every pass from rest, the same answer by step, kernels against the twin."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from spikingjelly.activation_based import layer, neuron, surrogate
from torch import nn

from sage_snn import SAGE, Fixed, LIFNode, find_layers
from sage_snn.deploy import fuse
from sage_snn.kernels import switched_off
from sage_snn.layers import NormLIF, StatelessLIF, ThresholdNorm
from sage_snn.models import resnet19, resnet20, resnet20_wide, vgg11, vgg16
from sage_snn.models.convolution import conv

SMALL = {
    "resnet19": lambda **o: resnet19(width=0.125, time_steps=2, image_size=16, **o),
    "resnet20": lambda **o: resnet20(width=0.5, time_steps=2, image_size=16, **o),
    "resnet20_wide": lambda **o: resnet20_wide(width=0.125, time_steps=2, image_size=16, **o),
    "vgg11": lambda **o: vgg11(width=0.0625, time_steps=2, image_size=16, **o),
    "vgg16": lambda **o: vgg16(width=0.0625, time_steps=2, image_size=32, **o),
}


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("build", "classes", "count"),
    [
        (resnet19, 10, 12_630_858),
        (resnet19, 100, 12_653_988),
        (resnet20, 10, 272_474),
        (resnet20_wide, 10, 11_253_450),
        (vgg11, 100, 21_118_756),
        (vgg16, 10, 33_642_442),
    ],
)
def test_the_networks_have_the_published_sizes(build, classes, count):
    with torch.device("meta"):
        assert parameters(build(num_classes=classes)) == count


@pytest.mark.parametrize("name", SMALL)
def test_steps_average_to_the_answer_and_every_pass_starts_from_rest(name):
    torch.manual_seed(0)
    model = SMALL[name]().double()
    images = torch.randn(4, 3, model.image_size, model.image_size, dtype=torch.float64)
    steps = model.forward_steps(images)
    assert steps.shape == (2, 4, 10)
    assert torch.allclose(steps.mean(0), model(images), atol=1e-12)
    assert torch.equal(steps, model(images, steps=True))
    events = images.expand(3, *images.shape)
    assert model.forward_steps(events).shape == (3, 4, 10)


@pytest.mark.parametrize("name", SMALL)
def test_kernels_and_twins_agree_in_float64(name):
    torch.manual_seed(0)
    model = SMALL[name]().double()
    twin = copy.deepcopy(model)
    images = torch.randn(4, 3, model.image_size, model.image_size, dtype=torch.float64)
    logits = model(images)
    logits.square().sum().backward()
    with switched_off():
        expected = twin(images)
        expected.square().sum().backward()
    assert torch.allclose(logits, expected, atol=1e-9)
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-8)


@pytest.mark.parametrize("name", SMALL)
def test_sage_follows_firing_rates_in_two_lines(name):
    model = SMALL[name]()
    with SAGE(model, warmup_steps=0, groups=find_layers(model), source="firing") as sage:
        for seed in range(3):
            images = torch.randn(
                4, 3, model.image_size, model.image_size, generator=torch.Generator().manual_seed(seed)
            )
            model(images).square().sum().backward()
            sage.step()
        assert sage.slopes.unique().numel() > 1


def test_an_activation_makes_the_ann_of_the_same_weights():
    torch.manual_seed(0)
    ann = resnet20(width=0.25, activation=nn.ReLU, time_steps=1)
    assert ann.state_dict().keys() == resnet20(width=0.25).state_dict().keys()
    assert ann(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_dropout_keeps_one_mask_over_time():
    torch.manual_seed(0)
    model = vgg16(width=0.0625, dropout=0.5, time_steps=3)
    x = torch.ones(3, 2, 50)
    dropped = model._drop(x)
    assert torch.equal(dropped[0], dropped[2])
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(model.eval()._drop(x), x)


def test_threshold_norm_is_spikingjellys_at_the_start_and_keeps_its_factor():
    torch.manual_seed(0)
    x = torch.randn(2, 8, 3, 5, 5)
    ours, theirs = ThresholdNorm(3, threshold=0.5, branches=2), layer.ThresholdDependentBatchNorm2d(2**-0.5, 0.5, 3)
    theirs.step_mode = "m"
    assert torch.allclose(ours(x.flatten(0, 1)), theirs(x).flatten(0, 1), atol=1e-6)
    assert ours.weight.tolist() == [1.0] * 3  # theirs has the factor in the weight, where decay would act on it
    assert torch.allclose(ours.running_var, theirs.running_var)


def test_threshold_norm_is_fused_with_its_neuron():
    torch.manual_seed(0)
    unit = NormLIF(
        nn.Conv2d(3, 4, 3), ThresholdNorm(4, threshold=0.7, branches=2), StatelessLIF(step_mode="m")
    ).double()
    assert unit.why_not_fused() is None
    twin, x = copy.deepcopy(unit), torch.randn(2, 3, 3, 8, 8, dtype=torch.float64)
    spikes = unit(x)
    spikes.square().sum().backward()
    with switched_off():
        expected = twin(x)
        expected.square().sum().backward()
    assert torch.equal(spikes, expected)
    for mine, theirs in zip(unit.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-9)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_units_of_a_residual_network_are_fused_and_keep_channels_last(channels):
    model, plain = resnet19(width=0.125, time_steps=2, image_size=16, in_channels=channels), []
    assert [unit.why_not_fused() for unit in model.modules() if isinstance(unit, NormLIF)] == [None] * 17
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels > 3:
            module.register_forward_pre_hook(lambda m, given: plain.append(given[0].is_contiguous()))
    model(torch.randn(2, channels, 16, 16))
    assert len(plain) == 19  # 16 in blocks, three in shortcuts
    assert not any(plain)


def test_a_folded_residual_network_answers_the_same():
    torch.manual_seed(0)
    model = resnet20(width=0.25, time_steps=2, image_size=16).double()
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    model(images)
    model.eval()
    assert torch.allclose(fuse(model)(images), model(images), atol=1e-9)


def test_spikingjellys_nodes_give_the_same_spikes_in_float64():
    torch.manual_seed(0)
    ours = resnet20(width=0.25, time_steps=3, image_size=16).double()
    torch.manual_seed(0)
    options = {"tau": 2.0, "decay_input": False, "detach_reset": True, "step_mode": "m"}
    theirs = resnet20(width=0.25, time_steps=3, image_size=16, activation=lambda: neuron.LIFNode(**options)).double()
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    assert torch.allclose(ours(images), theirs(images), atol=1e-9)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: resnet19(width=0.0), "width must be positive"),
        (lambda: vgg16(image_size=16), "an image of 16 pixels is too small for 5 poolings"),
        (lambda: resnet20(width=0.25)(torch.zeros(1, 3, 8, 8)), "expected images"),
    ],
)
def test_impossible_sizes_say_so(build, told):
    with pytest.raises(ValueError, match=told):
        build()


NEURONS = {  # of the systems that trained these networks, in SpikingJelly's words
    "STBP-tdBN": {"tau": 4 / 3, "decay_input": False, "v_threshold": 0.5, "surrogate_function": surrogate.Rect(1.0)},
    "TET": {"tau": 2.0, "decay_input": False, "surrogate_function": surrogate.PiecewiseQuadratic(1.0)},
}


@pytest.mark.parametrize("system", NEURONS)
@pytest.mark.parametrize("detach_reset", [False, True])
def test_the_neurons_of_the_systems_are_spikingjellys_with_a_tensor_slope_too(system, detach_reset):
    options = NEURONS[system] | {"detach_reset": detach_reset, "step_mode": "m"}
    x = torch.randn(5, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view_as(x)
    theirs, ours, controlled = neuron.LIFNode(**options), LIFNode(**options), LIFNode(**options)
    Fixed(nn.Sequential(controlled), slope=4.0)  # writes the node's own slope, as a tensor
    answers = []
    for node in (theirs, ours, controlled):
        currents = x.clone().requires_grad_()
        spikes = node(currents)
        (spikes * weights).sum().backward()
        answers.append((spikes.detach(), currents.grad))
    for spikes, gradient in answers[1:]:
        assert torch.equal(spikes, answers[0][0])
        assert torch.allclose(gradient, answers[0][1], atol=1e-9)
    assert answers[0][1].abs().sum() > 0


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="an image of 8 pixels is too small to be halved 4 times"):
        resnet20_wide(width=0.125, image_size=8)
    with pytest.raises(ValueError, match="an image of 16 pixels is too small for 5 poolings"):
        vgg16(width=0.125, image_size=16)


def test_shortcuts_leave_pixels_out_before_they_work():
    torch.manual_seed(0)
    ours = conv(4, 8, 1, 2).double()
    theirs = nn.Conv2d(4, 8, 1, stride=2, bias=False).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 4, 7, 8, dtype=torch.float64)
    gradients = []
    for unit in (ours, theirs):
        given = x.clone().requires_grad_()
        answer = unit(given)
        answer.cos().sum().backward()
        gradients.append((answer, given.grad, unit.weight.grad))
    assert gradients[0][0].shape == (3, 8, 4, 4)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(*gradients, strict=True))


@pytest.mark.slow
def test_narrow_networks_do_not_break_the_heap():
    """With its own strided convolution of size 1 oneDNN does; glibc tells it at the latest when memory is freed."""
    code = """
import torch
from sage_snn.models import resnet20
torch.set_num_threads(1)
network = resnet20(width=0.25, time_steps=2, image_size=16)
for _ in range(5):
    network(torch.randn(4, 3, 16, 16)).sum().backward()
print("whole")
"""
    environment = os.environ | {"MALLOC_CHECK_": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "whole\n", done.stderr
    assert done.returncode == 0, done.stderr
