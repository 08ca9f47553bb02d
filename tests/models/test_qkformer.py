import importlib.util
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional, neuron, surrogate
from spikingjelly.activation_based.layer.attention import QKAttention
from torch.nn.modules.batchnorm import _BatchNorm

from sage_snn import SAGE, LIFNode, find_blocks
from sage_snn.control import watching
from sage_snn.kernels import switched_off
from sage_snn.models import qkformer
from sage_snn.models.qkformer import TokenAttention

_spec = importlib.util.spec_from_file_location("qkformer_twin", Path(__file__).with_name("qkformer_twin.py"))
_twin = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_twin)

SMALL = {"dim": 32, "heads": 2, "time_steps": 2, "image_size": 8}


def pair(apart=True):
    """Our network and the authors' structure with the same weights, in float64."""
    torch.manual_seed(0)
    ours = qkformer(**SMALL).double()
    twin = _twin.QKFormerTwin(32, 2, depth=4, time_steps=2, classes=10, apart=apart).double()
    state = {_twin.authors_name(name): tensor for name, tensor in ours.state_dict().items()}
    assert state.keys() == twin.state_dict().keys()
    twin.load_state_dict({name: tensor.view_as(twin.state_dict()[name]) for name, tensor in state.items()})
    for module in (*ours.modules(), *twin.modules()):
        if isinstance(module, _BatchNorm):
            module.momentum = None  # so that eval mode knows the first batch as training does
    return ours, twin


def inputs(batch=4):
    generator = torch.Generator().manual_seed(1)
    images = 3 * torch.randn(batch, 3, 8, 8, generator=generator, dtype=torch.float64)
    return images, torch.randint(0, 10, (batch,), generator=generator)


@pytest.mark.parametrize(("classes", "parameters"), [(10, 6_706_234), (100, 6_740_884)])
def test_hst_4_384_has_the_parameters_that_the_authors_logs_count(classes, parameters):
    """The paper's 6.74 M is the count for 100 classes."""
    with torch.device("meta"):
        model = timm.create_model("qkformer_4_384", num_classes=classes)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "twins"])
def test_logits_gradients_and_statistics_are_those_of_the_authors_structure(kernels):
    ours, twin = pair()
    images, labels = inputs()
    seen = []
    for model in (ours, twin):
        if kernels or model is twin:
            logits = model(images)
            F.cross_entropy(logits, labels).backward()
        else:
            with switched_off():
                logits = model(images)
                F.cross_entropy(logits, labels).backward()
        seen.append(logits.detach())
    assert seen[0].std(0).max() > 1e-3  # images differ, so something fired
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-9, atol=1e-9)
    gradients, buffers = dict(twin.named_parameters()), dict(twin.named_buffers())
    for name, parameter in ours.named_parameters():
        wanted = gradients[_twin.authors_name(name)].grad.view_as(parameter)
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-9, atol=1e-9)
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, buffers[_twin.authors_name(name)], rtol=1e-9, atol=1e-9)


def test_in_eval_mode_too_and_an_image_does_not_depend_on_its_batch():
    ours, twin = pair()
    images, _ = inputs()
    ours(images), twin(images)
    functional.reset_net(twin)
    ours.eval(), twin.eval()
    with torch.no_grad():
        logits = ours(images)
        assert logits.std(0).max() > 1e-3  # images differ, so something fired
        torch.testing.assert_close(logits, twin(images), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ours(images[1:]), logits[1:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("apart", [True, False], ids=["as here", "as published"])
def test_in_the_authors_attention_alone_an_image_depends_on_its_batch(apart):
    """Why the projection's node of the last stage is not as they have it."""
    torch.manual_seed(0)
    attention = _twin.SpikingSelfAttention(16, 2, apart).double().eval()
    for parameter in attention.parameters():
        parameter.data *= 4
    x = torch.randint(0, 3, (2, 4, 16, 2, 2)).double()
    spikes = attention(x)
    functional.reset_net(attention)
    assert 0 < spikes.mean() < 1
    assert torch.equal(attention(x.flip(1)).flip(1), spikes) == apart


def test_token_attention_is_that_of_spikingjelly():
    torch.manual_seed(0)
    node = {"detach_reset": True, "surrogate_function": surrogate.Sigmoid(4.0)}
    theirs = QKAttention(16, 2, qka_type="token", **node).double()
    ours = TokenAttention(16, 2, lambda **o: LIFNode(step_mode="m", detach_reset=True, carry_state=False, **o)).double()
    conv, norm = theirs.qk_conv_bn[0], theirs.qk_conv_bn[1]
    with torch.no_grad():
        for i, part in enumerate((ours.query, ours.key)):
            part.synapse.weight.copy_(conv.weight[16 * i : 16 * (i + 1)])
            part.norm.weight.copy_(norm.weight[16 * i : 16 * (i + 1)])
        ours.projection.synapse.weight.copy_(theirs.proj_conv_bn[0].weight)  # it has no bias, normalisation takes it
        ours.projection.norm.load_state_dict(theirs.proj_conv_bn[1].state_dict())
    x = torch.randint(0, 3, (2, 3, 16, 9)).double()
    spikes = ours(x)
    assert 0 < spikes.mean() < 1
    torch.testing.assert_close(spikes, theirs(x), rtol=0, atol=0)


def test_26_nodes_in_four_blocks_and_nine_outside_with_the_authors_constants():
    model = qkformer(**SMALL)
    blocks = find_blocks(model)
    assert [len(block.neurons) for block in blocks] == [6, 6, 7, 7]
    assert [block.heads for block in blocks] == [2, 2, 2, 2]
    assert [block.name for block in blocks] == [f"stages.{i}.attention" for i in ("0.0", "1.0", "2.0", "2.1")]
    nodes = [m for m in model.modules() if isinstance(m, LIFNode)]
    assert len(nodes) == 26 + 9
    assert sum(node.v_threshold == 0.5 for node in nodes) == 4
    assert {(n.tau, n.detach_reset, n.surrogate_function.alpha) for n in nodes} == {(2.0, True, 4.0)}


@pytest.mark.parametrize("published", [False, True], ids=["apart", "as published"])
def test_sage_reads_the_same_in_the_authors_modules_and_in_ours(published):
    """Of token attention too: query and key are there, though the network does not multiply them."""
    ours, twin = pair(apart=not published)
    images, labels = inputs()
    read = []
    for model in (ours, twin):
        sage = SAGE(model, warmup_steps=0)
        F.cross_entropy(model(images), labels).backward()
        sage.step()
        assert [len(block.neurons) for block in sage.blocks] == [6, 6, 7, 7]
        read.append(sage.head_entropy)
    blocks = 3 if published else 4  # in the last one the images have met
    for mine, theirs in list(zip(*read, strict=True))[:blocks]:
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
        assert 0 < mine.min() < 1


def test_sage_moves_slopes_in_two_lines():
    torch.manual_seed(0)
    model = qkformer(**SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sage = SAGE(model, warmup_steps=1)
    for _ in range(4):
        F.cross_entropy(model(3 * torch.randn(4, 3, 8, 8)), torch.randint(0, 10, (4,))).backward()
        optimizer.step()
        optimizer.zero_grad()
        sage.step()
    assert (sage.slopes != 4).any()


def test_an_image_is_the_same_as_equal_events_and_every_pass_starts_from_rest():
    images, _ = inputs()
    stock = lambda **options: neuron.LIFNode(surrogate_function=surrogate.Sigmoid(4.0), **options)  # noqa: E731
    for options in ({}, {"neuron": stock}):
        model = qkformer(**SMALL, **options).double().eval()
        with torch.no_grad():
            logits = model(images)
            torch.testing.assert_close(model(images.expand(2, -1, -1, -1, -1)), logits, rtol=1e-9, atol=1e-9)
            assert torch.equal(model(images), logits)
            steps = model.forward_steps(torch.stack([images, -images, images]))
        assert steps.shape == (3, 4, 10)


@pytest.mark.parametrize("channels", [1, 3])
def test_with_the_kernels_channels_lie_last_in_memory_all_the_way(channels):
    model, seen = qkformer(**SMALL, in_channels=channels), []
    with watching((module, seen.append) for module in model.modules() if isinstance(module, LIFNode)):
        model(torch.randn(2, channels, 8, 8))
    assert len(seen) == 35
    assert all(spikes.movedim(2, -1).is_contiguous() for spikes in seen[channels == 1 :])


@pytest.mark.parametrize("size", [7, 10])
def test_images_of_odd_size_are_halved_up(size):
    assert qkformer(**SMALL | {"image_size": size})(torch.randn(2, 3, size, size)).shape == (2, 10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 3}, "3 heads do not divide the first stage's width of 8.*divisors of 8"),
        ({"dim": 36}, "dim must be a multiple of 8"),
        ({"depth": 2}, "depth must be at least 3, a block for each"),
        ({"heads": 0}, "heads must be at least 1"),
        ({"time_steps": 0}, "time_steps must be at least 1"),
        ({"image_size": 3}, "too small to be halved twice"),
    ],
)
def test_impossible_sizes_are_refused_with_the_cure(wrong, message):
    with pytest.raises(ValueError, match=message):
        qkformer(**SMALL | wrong)
