"""Signals without attention, on our convolutional networks and on SpikingJelly's."""

import copy
import re
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from spikingjelly.activation_based import functional, neuron, surrogate
from spikingjelly.activation_based.model import sew_resnet, spiking_resnet, spiking_vgg

from sage_snn import (
    SAGE,
    DeadZoneTanh,
    FiringRate,
    HeadEntropy,
    LIFNode,
    MembraneDeviation,
    MembraneMean,
    NearThreshold,
    SilentShare,
    find_layers,
)
from sage_snn.control import nodes_of
from sage_snn.deploy import accelerate
from sage_snn.kernels import switched_off
from sage_snn.models import resnet19, vgg11

STRICT = DeadZoneTanh(dead_zone=0.0)
OPTIONS = {"surrogate_function": surrogate.ATan(), "detach_reset": True}


def images(seed, size=16):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))


def jelly_network(name, node=neuron.LIFNode):
    """Multi-step: (T, B, 3, H, W) -> (T, B, classes)."""
    torch.manual_seed(0)
    build = {
        "sew_resnet18": partial(sew_resnet.sew_resnet18, cnf="ADD"),
        "spiking_resnet18": spiking_resnet.spiking_resnet18,
        "spiking_vgg11_bn": spiking_vgg.spiking_vgg11_bn,
    }[name]
    network = build(spiking_neuron=node, num_classes=4, **OPTIONS)
    if name == "spiking_vgg11_bn":  # 4096 hidden neurons and 7 x 7 pixels are for ImageNet
        network.avgpool = type(network.avgpool)((1, 1))
        network.classifier = type(network.classifier)(torch.nn.Linear(512, 4))
    functional.set_step_mode(network, "m")
    return network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("sew_resnet18", FiringRate()),
        ("sew_resnet18", SilentShare()),
        ("spiking_resnet18", SilentShare()),
        ("spiking_vgg11_bn", FiringRate()),
    ],
    ids=str,
)
def test_firing_of_spikingjellys_networks_moves_their_slopes(name, signal):
    network = jelly_network(name)
    expected, spikes = [], []
    hooks = [n.register_forward_hook(lambda _m, _a, output: spikes.append(output.detach())) for n in nodes_of(network)]
    sage = SAGE(network, warmup_steps=0, groups=find_layers(network), source="firing", signal=signal, law=STRICT)
    for seed in range(3):
        spikes.clear()
        x = images(seed, 32).expand(2, -1, -1, -1, -1)
        assert network(x).shape == (2, 2, 4)
        functional.reset_net(network)
        sage.step()
        if isinstance(signal, FiringRate):
            expected = [float(output.double().mean()) for output in spikes]
        else:
            expected = [float((output.sum((0, 1)) == 0).double().mean()) for output in spikes]
        assert sorted(float(values) for values in sage.readings) == pytest.approx(sorted(expected))
    assert len(set(sage.slopes.tolist())) > 5
    ratio = 0.5  # their ATan has a base slope of 2
    written = [node.surrogate_function.alpha for node in nodes_of(network)]
    assert written == pytest.approx([ratio * slope for slope in sage.slopes.tolist()])
    sage.remove()
    assert all(node.surrogate_function.alpha == 2.0 for node in nodes_of(network))
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("build", [resnet19, vgg11])
def test_firing_of_our_networks_moves_their_slopes(build):
    torch.manual_seed(0)
    network = build(width=0.0625, image_size=16, time_steps=2)
    layers = find_layers(network)
    with SAGE(network, warmup_steps=0, groups=layers, source="firing", signal=SilentShare(), law=STRICT) as sage:
        for seed in range(3):
            network(images(seed)).sum().backward()
            sage.step()
        assert all(0 <= float(values) <= 1 for values in sage.readings)
        assert len(set(sage.slopes.tolist())) > 3
    assert all(node.slope is None for node in nodes_of(network))


def test_the_silent_share_counts_neurons_that_no_image_and_no_step_makes_fire():
    spikes = torch.zeros(2, 3, 2, 4)  # T, B, C, N: eight neurons
    spikes[0, 1, 0, 0] = spikes[1, 2, 0, 0] = spikes[1, 0, 1, 3] = 1
    assert SilentShare()(spikes).tolist() == [6 / 8]


def test_step_by_step_the_silent_share_is_that_of_each_step():
    node, share = LIFNode(tau=2.0, step_mode="s"), []
    groups = find_layers(torch.nn.Sequential(node))
    with pytest.warns(UserWarning, match="one group only"):
        sage = SAGE(node, warmup_steps=0, groups=groups, source="firing", signal=SilentShare())
    for x in (torch.tensor([[9.0, 0.0], [0.0, 0.0]]), torch.tensor([[9.0, 9.0], [0.0, 0.0]])):
        spikes = node(x.requires_grad_())
        share.append(float((spikes.sum(0) == 0).double().mean()))
    sage.step()
    assert share == [0.5, 0.0]
    assert sage.readings[0].tolist() == [0.25]
    sage.remove()


def test_signals_that_their_source_cannot_give_are_refused_with_the_cure(ours):
    network = vgg11(width=0.0625, image_size=16, time_steps=2)
    layers = find_layers(network)
    cases = [
        (
            network,
            {},
            r"no spiking self-attention found in VGG; pass blocks=.*groups=find_layers\(model\) with source=",
        ),
        (
            network,
            {"groups": layers, "source": "firing", "signal": HeadEntropy()},
            "HeadEntropy reads attention.*gives",
        ),
        (
            ours(),
            {"signal": FiringRate()},
            "FiringRate reads firing, and group .* gives attention.*pass source='firing'",
        ),
    ]
    for model, options, told in cases:
        with pytest.raises(ValueError, match=told):
            SAGE(model, warmup_steps=0, **options)
        assert all(node.slope is None for node in nodes_of(model))
        assert not any(node._forward_hooks for node in nodes_of(model))


def test_membrane_signals_are_those_worked_out_by_hand():
    # Two steps of 4 and 2 distances: -1, 0.2, 1, 1.4 and 3, -3, of which the second is near.
    moments = torch.tensor([[4.0, 1.6, 1 + 0.04 + 1 + 1.96, 1.0], [2.0, 0.0, 18.0, 0.0]], dtype=torch.float64)
    assert MembraneMean()(moments).tolist() == pytest.approx([1.6 / 6])
    assert MembraneDeviation()(moments).tolist() == pytest.approx([((22 / 6) - (1.6 / 6) ** 2) ** 0.5])
    assert NearThreshold()(moments).tolist() == pytest.approx([1 / 6])
    assert MembraneMean()(torch.zeros(2, 4)).tolist() == [0.0]  # of an empty batch


@pytest.mark.parametrize("kernels", [True, False], ids=["fused", "twin"])
@pytest.mark.parametrize(
    "signal", [MembraneMean(), MembraneDeviation(), NearThreshold()], ids=lambda s: type(s).__name__
)
def test_sage_follows_membranes_on_the_fused_path(signal, kernels):
    torch.manual_seed(0)
    network = resnet19(width=0.0625, image_size=16, time_steps=2).double()
    kept, expected = [], []
    with switched_off() if not kernels else nullcontext():
        groups = find_layers(network)
        with SAGE(network, warmup_steps=0, groups=groups, source="membrane", signal=signal, law=STRICT) as sage:
            for seed in range(3):
                network(images(seed).double()).sum().backward()
                twin = copy.deepcopy(network)
                sage.step()
            for node in nodes_of(twin):
                node.register_forward_pre_hook(lambda node, args: kept.append(charged(node, args[0])))
            twin.train()(images(2).double())
            told = str(sage)
            readings = [float(values) for values in sage.readings]
        for h in kept:
            distance = h - 1.0
            expected.append(
                {
                    "MembraneMean": distance.mean(),
                    "MembraneDeviation": distance.std(correction=0),
                    "NearThreshold": (distance.abs() < 0.5).double().mean(),
                }[type(signal).__name__].item()
            )
    assert sorted(readings) == pytest.approx(sorted(expected), abs=1e-6)
    assert len(set(sage.slopes.tolist())) > 3
    assert "the membranes of LIFNode" in told
    if kernels:
        assert re.search(r"(\d+) of \1 pairs of BatchNorm and neuron fused", told)
    assert all(node.membranes is None for node in nodes_of(network))


def charged(node, currents):
    """All charged membranes (T, ...) of an LIF node without input decay, from rest."""
    v, kept = torch.zeros_like(currents[0]), []
    for current in currents:
        kept.append(h := v - v / node.tau + current)
        v = torch.where(h >= node.v_threshold, torch.zeros_like(h), h)
    return torch.stack(kept).detach()


def test_membranes_of_spikingjellys_networks_are_read_once_they_are_accelerated():
    network = accelerate(jelly_network("sew_resnet18"))
    groups = find_layers(network)
    with SAGE(network, warmup_steps=0, groups=groups, source="membrane", law=STRICT) as sage:
        for seed in range(2):
            network(images(seed, 32).expand(2, -1, -1, -1, -1)).sum().backward()
            functional.reset_net(network)
            sage.step()
        assert all(0 <= float(values) < 1 for values in sage.readings)
        assert len(set(sage.slopes.tolist())) > 5


def test_a_copied_network_does_not_report_to_the_policy():
    network = resnet19(width=0.0625, image_size=16, time_steps=1)
    with SAGE(network, warmup_steps=0, groups=find_layers(network), source="membrane") as sage:
        copy.deepcopy(network)(images(0)).sum().backward()
        with pytest.raises(RuntimeError, match=r"step\(\) before any forward pass"):
            sage.step()
        network(images(0)).sum().backward()
        sage.step()


@pytest.mark.parametrize("source", ["membrane", "gradient"])
def test_nodes_that_hide_their_insides_are_refused_with_the_cure(source, jelly):
    network = jelly()
    with pytest.raises(ValueError, match=r"spikingjelly's LIFNode keeps .* to itself; .*accelerate\(model\)"):
        SAGE(network, warmup_steps=0, groups=find_layers(network), source=source)
    assert all(node.surrogate_function.alpha == 4.0 for node in nodes_of(network))
