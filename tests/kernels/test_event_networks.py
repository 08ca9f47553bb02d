import os
import subprocess
import sys

import pytest
import torch

from sage_snn.kernels import events
from sage_snn.kernels.calls import function
from sage_snn.kernels.events import dense_products, event_conv
from sage_snn.models import resnet20, spikformer, vgg11
from sage_snn.models.convolution import batch_norm

pytestmark = pytest.mark.usefixtures("small_products")


@pytest.fixture
def done(monkeypatch):
    """Which calls of the kernels were carried out, and not left to torch."""
    found = []

    def recorded(name, dtype):
        def call(*arguments):
            found.append(function(name, dtype)(*arguments))
            return found[-1]

        return call

    monkeypatch.setattr(events, "function", recorded)
    return found


CONVOLUTIONAL = {
    "resnet": lambda: resnet20(width=2.0, time_steps=2, image_size=16),
    "vgg": lambda: vgg11(width=0.5, time_steps=2, image_size=16, norm=batch_norm),
}


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_networks_of_convolutions_have_the_bits_of_dense_products(name, done):
    torch.manual_seed(0)
    network, images = CONVOLUTIONAL[name](), torch.randn(8, 3, 16, 16)
    with torch.no_grad():
        for _ in range(2):
            by_events = network(images)
            with dense_products():
                assert torch.equal(by_events, network(images))
            network.eval()
    assert by_events.std() > 0
    assert sum(done) >= 4


def test_hidden_layers_of_a_vgg_are_maps_over_events():
    network, makers = CONVOLUTIONAL["vgg"](), []
    for synapse in (network.first, network.second):
        synapse.register_forward_hook(lambda module, inputs, out: makers.append(str(out.grad_fn)))
    network(torch.randn(32, 3, 16, 16))  # 64 rows with T = 2, or they are too few
    assert ["EventMap" in maker for maker in makers] == [True, True]


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.slow
def test_compiled_networks_walk_the_events_that_they_walk_otherwise(name, done):
    torch.manual_seed(0)
    network, images = CONVOLUTIONAL[name]().eval(), torch.randn(8, 3, 16, 16)
    with torch.no_grad():
        network(images)
        eager = sum(done)
        done.clear()
        torch.compile(network, backend="aot_eager")(images)
    assert sum(done) == eager >= 4


def test_a_transformer_has_the_gradients_of_dense_products(done):
    torch.manual_seed(0)
    network = spikformer(depth=1, dim=128, heads=4, time_steps=2, image_size=16).double()
    images = torch.randn(8, 3, 16, 16).double()

    def run():
        logits = network(images)
        return logits.detach(), *torch.autograd.grad(logits.square().sum(), list(network.parameters()))

    found = run()
    assert sum(done) >= 6
    with dense_products():
        for a, b in zip(found, run(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


TRAINING = """
import sys, torch
from contextlib import nullcontext
from sage_snn.kernels.events import dense_products
from sage_snn.models import resnet20
ends = []
for context in (nullcontext(), dense_products()):
    torch.manual_seed(0)
    network = resnet20(width=2.0, time_steps=2, image_size=16)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with context:
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(torch.randn(8, 3, 16, 16)), torch.arange(8)).backward()
            optimizer.step()
    ends.append([p.detach() for p in network.parameters()])
print(all(torch.equal(a, b) for a, b in zip(*ends, strict=True)), len(ends[0]))
"""


@pytest.mark.slow
def test_training_by_events_has_the_bits_of_avx2_convolutions():
    """oneDNN adds up weight gradients in one chain with AVX2; with AVX-512 in parts, which depend on the threads."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", TRAINING], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "65"]


def test_switched_off_by_the_environment(monkeypatch, done):
    x = (torch.rand(4, 32, 8, 8) < 0.1).float().contiguous(memory_format=torch.channels_last)
    weight = torch.randn(64, 32, 3, 3)
    event_conv(x, weight)
    assert done == [1]
    monkeypatch.setenv("SAGE_SNN_EVENTS", "off")
    event_conv(x, weight)
    assert done == [1]
