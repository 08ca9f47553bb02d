"""Losses that look at every time step, through the wrapped model's own call: DDP, autocast, torch.compile."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sage_snn.losses import TET
from sage_snn.models import resnet20, spikformer

LOSS = TET(weight=0.05)


def small_resnet():
    torch.manual_seed(0)
    return resnet20(width=0.25, time_steps=2, image_size=16)


def small_spikformer():
    torch.manual_seed(0)
    return spikformer(depth=2, dim=32, heads=4, time_steps=2, image_size=16)


both = pytest.mark.parametrize("build", [small_resnet, small_spikformer])


def gradients(model, images, labels, call):
    LOSS(call(images, steps=True), labels).backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 16, 16, generator=generator), torch.tensor([0, 1, 2, 3])


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@both
def test_ddp_sees_the_gradients_of_every_step(build, batch, one_rank):
    plain, wrapped = build(), DistributedDataParallel(build())
    expected = gradients(plain, *batch, plain)
    assert all(torch.equal(a, b) for a, b in zip(gradients(wrapped, *batch, wrapped), expected, strict=True))
    assert wrapped.reducer is not None


@both
def test_autocast_gives_step_logits_in_half_precision_and_a_finite_loss(build, batch):
    model = build()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[0], steps=True)
    assert logits.dtype is torch.bfloat16
    assert logits.shape == (2, 4, 10)
    loss = LOSS(logits.float(), batch[1])
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.slow
@both
def test_compiled_models_learn_from_every_step_alike(build, batch):
    torch._dynamo.reset()
    plain, inner = build(), build()
    expected = gradients(plain, *batch, plain)
    for ours, theirs in zip(gradients(inner, *batch, torch.compile(inner)), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * (1 + theirs.abs().max()))
