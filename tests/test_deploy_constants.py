"""Networks whose thresholds and time constants are part of the weights, at work elsewhere."""

import copy

import pytest
import torch
from spikingjelly.activation_based import layer
from torch import nn

from sage_snn import LIFNode
from sage_snn.deploy import ExportError, export, formats, fuse
from sage_snn.deploy.plain import plain
from sage_snn.models import spikformer

SIZES = {"depth": 2, "dim": 16, "heads": 2, "time_steps": 2, "image_size": 8, "patch_size": 2, "in_channels": 1}


def nodes(model):
    return [module for module in model.modules() if isinstance(module, LIFNode)]


@pytest.fixture(scope="module")
def network():
    """A Spikformer whose nodes have thresholds, some per time step, and time constants, some trained."""
    torch.manual_seed(0)
    model = spikformer(**SIZES)
    for i, node in enumerate(nodes(model)):
        threshold = torch.tensor([0.3, 0.25]) if i % 2 else nn.Parameter(torch.tensor(0.3))
        node.set_constants(threshold, [None, torch.tensor(1.7), nn.Parameter(torch.tensor(2.5))][i % 3])
    with torch.no_grad():
        for _ in range(30):
            model(torch.randn(32, 1, 8, 8))
    return model.eval()


@pytest.fixture(scope="module")
def many():
    return torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def spikes_of(model, images):
    """Logits, and the spikes of all nodes."""
    seen = []
    hooks = [node.register_forward_hook(lambda _, __, out: seen.append(out.flatten())) for node in nodes(model)]
    with torch.no_grad():
        logits = model(images)
    for hook in hooks:
        hook.remove()
    return logits, torch.cat(seen)


def test_a_network_with_plain_nodes_fires_the_same_spikes(network):
    for node in nodes(network):
        x = torch.randn(2, 5, 7)
        assert torch.equal(plain(node)(x), node(x))


@pytest.mark.slow
def test_onnx_gives_the_same_classes(network, many, tmp_path):
    import onnxruntime

    path = export(network, tmp_path / "constants.onnx", "onnx", many[:1])
    (logits,) = onnxruntime.InferenceSession(str(path)).run(["logits"], {"images": many.numpy()})
    with torch.no_grad():
        expected = network(many).argmax(1)
        other = copy.deepcopy(network)
        for node in nodes(other):
            node.set_constants()
        without = other(many).argmax(1)
    found = torch.from_numpy(logits).argmax(1)
    assert (found == expected).double().mean() >= 0.99
    assert (without != expected).double().mean() > 0.02  # or agreeing would mean nothing


def test_the_deployment_form_fires_the_same_spikes(network, many):
    exact = copy.deepcopy(network).double()
    logits, spikes = spikes_of(exact, many.double())
    folded, folded_spikes = spikes_of(fuse(exact), many.double())
    assert spikes.mean() > 0.01
    assert torch.equal(spikes, folded_spikes)
    torch.testing.assert_close(logits, folded, rtol=1e-9, atol=1e-9)


def test_weights_in_a_file_bring_the_constants_back(network, many, tmp_path):
    from safetensors.torch import load_file

    other = spikformer(**SIZES)
    other.load_state_dict(load_file(export(network, tmp_path / "weights.safetensors", "safetensors", many[:1])))
    with torch.no_grad():
        assert torch.equal(other.eval()(many), network(many))


def test_the_authors_checkpoint_cannot_hold_them(network, many, tmp_path):
    assert formats(network) == ["onnx", "safetensors"]
    with pytest.raises(
        ExportError, match=r"no threshold or time constant of their own, as stem.* has; export to onnx or"
    ):
        export(network, tmp_path / "w.pth", "official", many[:1])


def chain():
    return nn.Sequential(layer.Conv2d(1, 2, 3, padding=1, step_mode="m"), LIFNode(step_mode="m"))


def test_nir_holds_constants_that_do_not_change_over_time(tmp_path):
    import nir

    network = chain()
    network[1].set_constants(torch.tensor(0.25), torch.tensor(4.0))
    graph = nir.read(export(network, tmp_path / "chain.nir", "nir", torch.rand(2, 1, 1, 4, 4)))
    (node,) = (node for node in graph.nodes.values() if isinstance(node, nir.LIF))
    expected = chain()
    expected[1].v_threshold, expected[1].tau = 0.25, 4.0
    graph = nir.read(export(expected, tmp_path / "numbers.nir", "nir", torch.rand(2, 1, 1, 4, 4)))
    (number,) = (node for node in graph.nodes.values() if isinstance(node, nir.LIF))
    assert (node.v_threshold == 0.25).all()
    assert (node.tau == number.tau).all()
    assert (network[1].v_threshold, network[1].tau) == (1.0, 2.0)


def test_nir_refuses_a_threshold_per_time_step(tmp_path):
    network = chain()
    network[1].set_constants(torch.tensor([0.5, 0.6]))
    with pytest.raises(ExportError, match=r"nothing for a threshold per time step.*Export to onnx or safetensors"):
        export(network, tmp_path / "chain.nir", "nir", torch.rand(2, 1, 1, 4, 4))
