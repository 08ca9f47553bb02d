import pytest
import torch
from spikingjelly.activation_based import neuron
from torch import nn

from sage_snn.conversion import QCFS
from sage_snn.inference import FoldedLIF, FoldedMap, FuseError, WholeSynapse, fuse
from sage_snn.kernels import switched_off
from sage_snn.layers import ThresholdNorm
from sage_snn.models import qkformer, resnet20, spikformer, spikingresformer, vgg11, vgg16
from sage_snn.neurons import LIFNode, RateIF

SMALL = {"time_steps": 2, "image_size": 16}
NETWORKS = {
    "cifar": lambda: spikformer(2, 32, 4, **SMALL),
    "imagenet": lambda: spikformer(2, 32, 4, form="imagenet", **SMALL),
    "qkformer": lambda: qkformer(3, 32, 4, **SMALL),
    "spikingresformer": lambda: spikingresformer(heads=(1, 2, 2), depths=(1, 1, 1), head_width=8, **SMALL),
    "resnet20": lambda: resnet20(width=0.25, **SMALL),
    "tdbn": lambda: resnet20(width=0.25, norm=ThresholdNorm, **SMALL),
}


def images(count=8):
    return 2 * torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def lively(build):
    """A network whose normalisation knows the data, and is shifted so that neurons fire."""
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.bias.fill_(0.5)
                module.momentum = 0.5
        for _ in range(8):
            model(images())
    return model.eval()


@torch.no_grad()
def spikes_of(model, batch):
    """Logits, and the spikes of all nodes in the order in which they fire."""
    seen = []
    nodes = [m for m in model.modules() if isinstance(m, neuron.LIFNode)]
    handles = [m.register_forward_hook(lambda m, a, out: seen.append(out.flatten().float())) for m in nodes]
    logits = model(batch)
    for handle in handles:
        handle.remove()
    return logits, seen


def all_spikes(model, batch):
    logits, seen = spikes_of(model, batch)
    return logits, torch.cat(seen)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_folded_form_fires_the_same_spikes_in_float64(kind):
    model = lively(NETWORKS[kind]).double()
    logits, spikes = all_spikes(model, images().double())
    folded, folded_spikes = all_spikes(fuse(model), images().double())
    assert 0.01 < spikes.mean() < 0.9
    assert torch.equal(spikes, folded_spikes)
    torch.testing.assert_close(folded, logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", NETWORKS)
def test_counting_with_onednn_fires_as_the_simulation_does(kind, monkeypatch):
    fast = fuse(lively(NETWORKS[kind]), "int8")
    logits, spikes = all_spikes(fast, images())
    monkeypatch.setattr("sage_snn.inference.whole._has_onednn", lambda counts: False)
    with switched_off():
        expected, expected_spikes = all_spikes(fast, images())
    assert (spikes != expected_spikes).double().mean() <= 1e-5
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert 0.01 < spikes.mean() < 0.9
    assert any(isinstance(module, WholeSynapse) for module in fast.modules())


@pytest.mark.parametrize("kind", NETWORKS)
def test_rounding_begins_behind_the_first_neurons_and_moves_few_spikes_of_the_next(kind):
    model = lively(NETWORKS[kind])
    spikes, rounded = (spikes_of(network, images())[1] for network in (model, fuse(model, "int8")))
    assert torch.equal(spikes[0], rounded[0])
    assert (spikes[1] != rounded[1]).double().mean() < 0.02
    assert 0 < spikes[1].mean() < 1


def test_bytes_run_between_the_layers_and_the_first_sees_the_image():
    fused = fuse(lively(NETWORKS["cifar"]), "int8")
    kinds = {}
    for name, module in fused.named_modules():
        if isinstance(module, FoldedLIF):
            module.register_forward_hook(lambda m, a, out, name=name: kinds.update({name: (a[0].dtype, out.dtype)}))
    fused(images())
    assert isinstance(fused.stem.stages[0].synapse, nn.Conv2d)
    assert kinds["stem.stages.1"] == (torch.uint8, torch.uint8)
    assert kinds["blocks.1.mlp.second"] == (torch.uint8, torch.uint8)
    assert kinds["blocks.0.attention.query"] == (torch.uint8, torch.float32)
    assert fused.head.weight.dtype == torch.float32


def test_weights_take_a_quarter_of_the_room():
    model = lively(NETWORKS["cifar"])
    sizes = [
        sum(value.numel() * value.element_size() for value in network.state_dict().values())
        for network in (fuse(model), fuse(model, "int8"))
    ]
    assert sizes[1] < 0.35 * sizes[0]


def test_a_network_fuses_itself_and_stays_as_it_was():
    model = lively(NETWORKS["cifar"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        assert torch.equal(model.fuse()(images()), fuse(model)(images()))
        assert torch.equal(model.fuse("int8")(images()), fuse(model, "int8")(images()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_maps_without_a_neuron_are_folded_too():
    fused = fuse(lively(NETWORKS["resnet20"]))
    assert isinstance(fused.stages[1][0].shortcut, FoldedMap)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in fused.modules())


def test_networks_without_normalisation_stay_as_they_are():
    model = vgg11(width=0.0625, **SMALL).eval()
    with torch.no_grad():
        torch.testing.assert_close(fuse(model)(images()), model(images()))


def test_the_folded_form_keeps_gradients_of_its_input():
    batch = images().requires_grad_()
    fuse(lively(NETWORKS["cifar"]))(batch).square().sum().backward()
    assert batch.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), LIFNode()), "of Sequential that is not known"),
        (lambda: spikformer(63, 8, 1, **SMALL), "adds up to 128 spikes in one number, more than the 127"),
        (lambda: resnet20(width=0.25, activation=RateIF, **SMALL), "fires through RateIF, whose outputs"),
        (lambda: resnet20(width=0.25, activation=QCFS, **SMALL), "fires through QCFS, whose outputs"),
        (lambda: vgg16(width=0.0625, time_steps=2), "averages spikes, and fractions are not whole numbers"),
    ],
    ids=["foreign", "deep", "rate", "ann", "average"],
)
def test_networks_that_do_not_count_are_refused_with_the_reason(build, message):
    with pytest.raises(FuseError, match=message):
        fuse(build(), "int8")


def test_spikingjellys_network_is_refused(jelly):
    with pytest.raises(FuseError, match=r"of Spikformer that is not known: use weights='float32'"):
        fuse(jelly(), "int8")


def test_other_weights_are_refused():
    with pytest.raises(FuseError, match="'float32' or 'int8', not 'int4'"):
        fuse(NETWORKS["cifar"](), "int4")
