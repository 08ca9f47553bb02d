"""What kernels keep without launches of their own: running statistics, and spikes as bits."""

import pytest
import torch
from torch import nn

from sage_snn.kernels import norm, norm_lif, switched_off
from sage_snn.kernels.bits import _packed, pack_bits, spikes_as_bits, unpack_bits
from sage_snn.kernels.calls import inverse
from sage_snn.kernels.gpu import bits as packing
from sage_snn.kernels.lif import Membrane, lif

SLOPE = torch.tensor(4.0)
TESTS = ("test_schema", "test_faketensor")
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
both_layouts = pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])


def values(*shape, dtype=torch.float32, last=False, seed=0):
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1.5 + 0.4).to(dtype)
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x


@pytest.fixture
def nothing_else(monkeypatch):
    """No kernel packs, and nothing moves running statistics."""

    def fails(*_, **__):
        pytest.fail("this is a launch of its own")

    monkeypatch.setattr(packing, "pack", fails)
    monkeypatch.setattr(norm, "keep_statistics", fails)
    monkeypatch.setattr(norm_lif, "keep_statistics", fails)


def assert_bits(spikes):
    """What autograd keeps of these spikes are their bits, as the twin packs them."""
    kept = _packed(spikes)
    assert len(kept) == 4
    words, shape, dtype, order = kept
    with switched_off():
        assert torch.equal(words, pack_bits(spikes.detach().permute(inverse(order))))
    assert torch.equal(unpack_bits(words, shape, dtype).permute(order), spikes)
    assert 0.02 < spikes.float().mean() < 0.98


# Channels or positions that fill tiles, that leave a part of one, and of which eight alone divide them.
SIZES = [(2, 64, (8, 8)), (3, 24, (8, 12)), (2, 40, (16, 4)), (4, 8, (56,)), (16, 128, ())]


@pytest.mark.usefixtures("nothing_else")
@dtypes
@both_layouts
@pytest.mark.parametrize(("batch", "channels", "length"), SIZES)
def test_the_firing_kernel_writes_the_bits_that_autograd_keeps(batch, channels, length, last, dtype):
    x = values(4 * batch, channels, *length, dtype=dtype, last=last).requires_grad_()
    with spikes_as_bits(x):
        spikes = norm_lif.norm_lif(x, *[None] * 4, SLOPE, Membrane(), 4, training=True)
        assert_bits(spikes)
        assert_bits(spikes.unflatten(0, (4, -1)))


@pytest.mark.usefixtures("nothing_else")
@dtypes
@pytest.mark.parametrize("shape", [(4, 2, 64, 10), (1, 4096), (12, 1032, 8)])
def test_so_does_that_without_a_normalisation(shape, dtype):
    x = values(*shape, dtype=dtype).requires_grad_()
    with spikes_as_bits(x):
        spikes, _ = lif(x, torch.zeros(shape[1:]), SLOPE, Membrane())
        assert_bits(spikes)


@pytest.mark.parametrize("length", [(7, 9), (4,)])  # bytes that would straddle rows; the least that is worth it
def test_other_sizes_are_packed_by_themselves(length, monkeypatch):
    packed, pack = [], packing.pack
    monkeypatch.setattr(packing, "pack", lambda spikes: packed.append(spikes.shape) or pack(spikes))
    x = values(32, 33, *length).requires_grad_()
    with spikes_as_bits(x):
        spikes = norm_lif.norm_lif(x, *[None] * 4, SLOPE, Membrane(), 4, training=True)
        assert_bits(spikes)
    assert len(packed) == 1


def test_a_part_of_the_spikes_is_packed_by_itself_and_counts_are_kept_as_they_are():
    x = values(16, 64, 16).requires_grad_()
    with spikes_as_bits(x):
        spikes = norm_lif.norm_lif(x, *[None] * 4, SLOPE, Membrane(), 4, training=True)
        assert_bits(spikes[:8])
        assert len(_packed(spikes + spikes)) == 2


def test_nobody_writes_bits_that_nobody_keeps(monkeypatch):
    asked = []
    monkeypatch.setattr(norm_lif, "room_for_words", None)
    made = norm_lif._made
    monkeypatch.setattr(
        norm_lif, "_made", lambda inputs, kept, **o: asked.append(kept.packs) or made(inputs, kept, **o)
    )
    x = values(16, 64, 8)
    run = {"slope": SLOPE, "membrane": Membrane(), "times": 4, "training": True}
    norm_lif.norm_lif(x, *[None] * 4, **run)
    with spikes_as_bits(x):
        norm_lif.norm_lif(x[:4], *[None] * 4, **run)  # too few
        with torch.no_grad():
            norm_lif.norm_lif(x, *[None] * 4, **run)
        norm_lif.norm_lif(x, *[None] * 4, **run)
    assert asked == [False, False, False, True]


@pytest.mark.usefixtures("nothing_else")
@both_layouts
@pytest.mark.parametrize("momentum", [0.1, 1.0, 0.0, None])
@pytest.mark.parametrize("fused", [True, False])
def test_running_statistics_are_those_of_torch_and_nothing_is_read(fused, momentum, last, monkeypatch):
    ours, theirs = nn.BatchNorm1d(5, momentum=momentum), nn.BatchNorm1d(5, momentum=momentum)

    def reads(*_):
        raise AssertionError("this would wait for a device")

    batches = [values(8, 5, 33, last=last, seed=seed) * (seed + 1) for seed in range(3)]
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__float__", "cpu"):
            patch.setattr(torch.Tensor, name, reads)
        for x in batches:
            if fused:
                norm_lif.batch_norm_lif(ours, x, SLOPE, Membrane(), 4)
            else:
                norm.batch_norm(ours, x)
    for x in batches:
        theirs(x.contiguous())
    assert torch.equal(ours.num_batches_tracked, theirs.num_batches_tracked)
    assert torch.allclose(ours.running_mean, theirs.running_mean, rtol=1e-5, atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var, rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_so_are_those_of_the_twin(momentum):
    ours, theirs = nn.BatchNorm1d(5, momentum=momentum), nn.BatchNorm1d(5, momentum=momentum)
    for seed in range(3):
        x = values(8, 5, 33, seed=seed).double()  # for which no kernel on a device is
        norm_lif.batch_norm_lif(ours.double(), x, SLOPE, Membrane(), 4)
        theirs.double()(x)
    assert torch.allclose(ours.running_mean, theirs.running_mean)
    assert torch.allclose(ours.running_var, theirs.running_var)


def test_evaluation_moves_no_statistics():
    module = nn.BatchNorm1d(5).eval()
    norm_lif.batch_norm_lif(module, values(8, 5, 33), SLOPE, Membrane(), 4)
    assert torch.equal(module.running_mean, torch.zeros(5))


def test_half_precision_buffers_are_moved_too():
    module = nn.BatchNorm1d(5, momentum=1.0).half()
    x = values(8, 5, 33, dtype=torch.float16)
    norm.batch_norm(module, x)
    assert module.running_mean.dtype == torch.float16
    assert torch.allclose(module.running_mean.float(), x.float().mean((0, 2)), atol=2e-3)


@both_layouts
def test_what_is_kept_does_not_depend_on_the_order_of_programs(in_any_order, last):
    x = values(8, 40, 64, last=last).requires_grad_()

    def compute():
        mean, var = torch.zeros(40), torch.ones(40)
        with spikes_as_bits(x):
            spikes = norm_lif.norm_lif(x, None, None, mean, var, SLOPE, Membrane(), 2, training=True)
            return [mean, var, _packed(spikes)[0]]

    found = in_any_order(compute)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@dtypes
@pytest.mark.parametrize("share", [None, torch.tensor(0.5)])
def test_operators_tell_torch_what_they_write(dtype, share):
    x, options = values(4, 16, 8, dtype=dtype), Membrane().options
    statistics = torch.zeros(16), torch.ones(16), share
    chosen = options | {"times": 2, "eps": 1e-5, "momentum": 0.1, "packs": True}
    inputs = x, None, None, None, None, None, *statistics
    torch.library.opcheck(torch.ops.sage_snn.norm_lif_kept.default, inputs, chosen, test_utils=TESTS)
    inputs = x, None, None, *statistics
    chosen = {"momentum": 0.1, "eps": 1e-5}
    torch.library.opcheck(torch.ops.sage_snn.norm_kept.default, inputs, chosen, test_utils=TESTS)
    inputs = x, torch.zeros(16, 8)
    torch.library.opcheck(torch.ops.sage_snn.lif_packed.default, inputs, options, test_utils=TESTS)
