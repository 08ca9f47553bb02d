import copy

import pytest
import torch
from torch import nn

from sage_snn.kernels import switched_off
from sage_snn.kernels.norm import batch_norm
from sage_snn.layers import NormMap, ThresholdNorm

SIZES = [(2, 1, 3, 3), (8, 3, 5, 7), (8, 24, 4, 4), (3, 64, 5, 5), (40, 100, 9, 3)]


def channels_last(x):
    """The same values, their channels last in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def data(shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return channels_last(torch.randn(shape, generator=generator, dtype=dtype) * 1.7 + 0.6)


def answers(norm, x):
    """Normalised values, gradients and the state afterwards."""
    norm, x = copy.deepcopy(norm), x.clone().requires_grad_()
    normal = batch_norm(norm, x)
    (normal * torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view_as(x)).sum().backward()
    return [normal.detach(), x.grad, *(p.grad for p in norm.parameters()), *norm.state_dict().values()]


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("build", [nn.BatchNorm2d, lambda c: nn.BatchNorm2d(c, affine=False), ThresholdNorm])
def test_kernel_equals_its_twin_in_float64(shape, training, build):
    norm, x = build(shape[1]).double().train(training), data(shape)
    norm.running_mean.fill_(0.4)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    ours = answers(norm, x)
    assert ours[0].stride() == ours[1].stride() == x.stride()
    with switched_off():
        twin = answers(norm, x)
    for a, b in zip(ours, twin, strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-9)


def test_values_worked_out_by_hand():
    # The channels are 1, 3, 5, 7 and ten times that: means 4 and 40, variances 5 and 500.
    x = torch.tensor([[1.0, 10], [3, 30], [5, 50], [7, 70]], dtype=torch.float64).view(4, 1, 1, 2).movedim(-1, 1)
    norm = nn.BatchNorm2d(2, eps=0.0, momentum=1.0).double()
    x = channels_last(torch.cat([x, x], 2))
    normal = batch_norm(norm, x)
    expected = torch.tensor([-3, -1, 1, 3], dtype=torch.float64) / 5**0.5
    assert torch.allclose(normal[:, 0, 0, 0], expected, rtol=1e-12, atol=0)
    assert torch.allclose(normal[:, 1, 1, 0], expected, rtol=1e-12, atol=0)
    assert torch.allclose(norm.running_mean, torch.tensor([4.0, 40]).double())
    assert torch.allclose(norm.running_var, torch.tensor([5.0, 500]).double() * 8 / 7)


def test_statistics_are_accurate_far_from_zero():
    norm, x = nn.BatchNorm2d(2, momentum=1.0), channels_last(torch.randn(64, 2, 10, 100) + 1000)
    batch_norm(norm, x)
    exact = x.double().transpose(0, 1).flatten(1)
    assert torch.allclose(norm.running_mean.double(), exact.mean(1), rtol=1e-7, atol=0)
    assert torch.allclose(norm.running_var.double(), exact.var(1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(shape, with_threads):
    first, *others = with_threads(lambda: answers(nn.BatchNorm2d(shape[1]), data(shape, torch.float32)))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_gradients_are_taken_in_any_memory_order_and_left_alone():
    norm, grads = nn.BatchNorm2d(3).double(), []
    for order in (torch.contiguous_format, torch.channels_last):
        x = data((4, 3, 5, 6)).requires_grad_()
        grad = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view_as(x).contiguous(memory_format=order)
        before = grad.clone()
        batch_norm(norm, x).backward(grad)
        assert torch.equal(grad, before)
        grads.append(x.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_torchs(dtype):
    norm, x = nn.BatchNorm2d(3), data((4, 3, 5, 6), torch.float32).to(dtype)
    assert torch.equal(batch_norm(copy.deepcopy(norm), x), norm(x.contiguous()))


def test_a_norm_of_another_width_and_a_single_value_are_refused():
    with pytest.raises(ValueError, match="the normalisation is for 3 channels, its input has 2"):
        batch_norm(nn.BatchNorm2d(3), data((4, 2, 5, 6)))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batch_norm(nn.BatchNorm2d(3), torch.zeros(1, 3, 1, 1))


def test_hooks_on_the_normalisation_are_called():
    unit, calls = NormMap(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), []
    unit.norm.register_forward_hook(lambda *_: calls.append(1))
    assert unit(torch.randn(2, 3, 3, 5, 5)).shape == (2, 3, 4, 5, 5)
    assert calls == [1]


@pytest.mark.slow
def test_compiled_graph_is_one_and_gives_the_gradients_of_eager():
    torch.compiler.reset()
    norm, x, results = nn.BatchNorm2d(3), data((8, 3, 4, 5), torch.float32), []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)):
        module, a = copy.deepcopy(norm), x.clone().requires_grad_()
        wrap(lambda a, m=module: batch_norm(m, a))(a).pow(3).sum().backward()
        results.append([a.grad, *module.state_dict().values(), *(p.grad for p in module.parameters())])
    assert all(torch.allclose(a, b) for a, b in zip(*results, strict=True))
