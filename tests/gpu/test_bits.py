import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.kernels.bits import are_marked, mark_spikes, pack_bits, spikes_as_bits, unpack_bits
from sage_snn.kernels.gpu import bits
from sage_snn.kernels.native import switched_off

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.bool]


def fired(*shape, dtype=torch.float32, seed=0):
    """Spikes as a firing kernel would give them."""
    spikes = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4).to(dtype)
    mark_spikes(spikes)
    return spikes


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.lists(st.integers(0, 17), min_size=1, max_size=3), st.sampled_from(DTYPES), st.booleans())
def test_packed_bits_are_those_of_the_twin_and_come_back(shape, dtype, turned):
    spikes = fired(*shape, dtype=dtype)
    spikes = spikes.movedim(0, -1) if turned else spikes
    packed = pack_bits(spikes)
    with switched_off():
        assert torch.equal(packed, pack_bits(spikes))
        assert torch.equal(unpack_bits(packed, spikes.shape, dtype), spikes)
    for wanted in DTYPES:
        found = unpack_bits(packed, spikes.shape, wanted)
        assert found.dtype == wanted
        assert torch.equal(found, spikes.to(wanted))


def test_several_programs_and_the_highest_bit():
    spikes = fired(bits.WORDS * 64 + 65)
    spikes[63] = 1
    mark_spikes(spikes)
    packed = pack_bits(spikes)
    assert packed.shape == (bits.WORDS + 2,)
    assert packed[0] < 0
    assert torch.equal(unpack_bits(packed, spikes.shape), spikes)


def test_nothing_is_packed_that_no_kernel_fired():
    assert pack_bits(torch.zeros(100)) is None
    spikes = fired(100)
    assert pack_bits(spikes + 0) is None  # a sum may be a count
    assert pack_bits(spikes.view(10, 10).t()) is not None


def test_a_change_in_place_takes_the_mark():
    spikes = fired(100)
    spikes.view(10, 10)[3] += 1
    assert pack_bits(spikes) is None


def test_other_numbers_in_the_same_memory_are_no_spikes():
    spikes = fired(100)
    assert not are_marked(spikes.view(torch.int32))


def test_a_part_of_a_larger_memory_is_not_marked():
    values = torch.full((200,), 0.5)
    values[:100] = 1
    mark_spikes(values[:100])
    assert not are_marked(values[:100])
    assert not are_marked(values)


def test_memory_that_was_freed_is_not_taken_for_spikes():
    spikes = fired(100)
    memory = weakref.ref(spikes.untyped_storage())
    view = spikes.view(4, 25)
    del spikes
    assert are_marked(view)
    del view
    assert memory() is None
    assert not are_marked(torch.full((100,), 0.5))


def test_inference_marks_nothing():
    with torch.inference_mode():
        spikes = torch.ones(5)
        mark_spikes(spikes)
        assert not are_marked(spikes)


def test_only_spikes_are_kept_as_bits_and_come_back_as_they_lay():
    leaf = torch.rand(4, 40, 8, 8, requires_grad=True)

    class Fires(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return (x > 0.5).to(x.dtype).contiguous(memory_format=torch.channels_last)

        @staticmethod
        def backward(ctx, grad):
            return grad

    with spikes_as_bits(leaf):
        spikes = Fires.apply(leaf)
        mark_spikes(spikes)
        counts = spikes + spikes
        squares, others = spikes.view_as(spikes).square(), counts.square()
    kept = squares.grad_fn._saved_self
    assert kept.data_ptr() != spikes.data_ptr()
    assert kept.stride() == spikes.stride()
    assert torch.equal(kept, spikes)
    assert others.grad_fn._saved_self.data_ptr() == counts.data_ptr()
    (squares + others).sum().backward()
    assert torch.equal(leaf.grad, 10 * spikes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_value_is_read_from_the_device(dtype, monkeypatch):
    def reads(*_):
        raise AssertionError("this would wait for a device")

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "cpu"):
            patch.setattr(torch.Tensor, name, reads)
        spikes = fired(70, dtype=dtype)
        back = unpack_bits(pack_bits(spikes), (70,), dtype)
    assert torch.equal(back, spikes)
