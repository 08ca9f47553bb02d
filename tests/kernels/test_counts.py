import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.kernels import switched_off
from sage_snn.kernels.counts import MOST, as_counts, fire, pool_counts
from sage_snn.kernels.lif import lif
from sage_snn.kernels.membrane import Membrane

MEMBRANES = [
    Membrane(),
    Membrane(tau=3.0, reset=None, threshold=0.7),
    Membrane(decay_input=False, reset=-0.2),
    Membrane(tau=1.7, decay_input=False, reset=None),
    Membrane(threshold=torch.tensor([0.4, 1.0, 0.8])),
    Membrane(tau=torch.tensor(2.5), threshold=torch.tensor(0.6)),
]


def currents(*shape, dtype=torch.float32, seed=0):
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_spikes_of_a_neuron_worked_out_by_hand():
    # v: 0 -> (1.2)/2 = 0.6; -> 0.6 + (1.6 - 0.6) / 2 = 1.1 fires, back to 0; -> 0.5
    x = torch.tensor([1.2, 1.6, 1.0]).view(3, 1)
    assert fire(x, Membrane(), 3).flatten().tolist() == [0.0, 1.0, 0.0]
    assert fire(x, Membrane(), 3, as_counts=True).dtype == torch.uint8
    # 1.5 stands still: 0.75, 1.125 fires, 0.75
    assert fire(torch.full((1, 1), 1.5), Membrane(), 3).flatten().tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("membrane", MEMBRANES, ids=range(len(MEMBRANES)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_firing_from_rest_is_the_neuron_to_the_bit(either, membrane, dtype, as_bytes):
    x = currents(3, 2, 5, 37, dtype=dtype).transpose(2, 3)  # tiles that are cut off, axes not in order
    rest = x.new_full(x.shape[1:], membrane.rest)
    expected, _ = lif(x, rest, torch.tensor(4.0), membrane)
    found = fire(x, membrane, 3, as_counts=as_bytes)
    assert found.dtype == (torch.uint8 if as_bytes else dtype)
    assert torch.equal(found.to(dtype), expected)
    assert found.stride() == expected.stride()
    assert 0.05 < expected.mean() < 0.95


def test_currents_that_stand_still_are_those_of_every_step(either):
    x = currents(1, 2, 70)
    assert torch.equal(fire(x, Membrane(), 4), fire(x.expand(4, -1, -1), Membrane(), 4))


def test_other_numbers_of_time_steps_are_refused():
    with pytest.raises(ValueError, match="currents of 2 time steps cannot be fired over 4"):
        fire(currents(2, 3), Membrane(), 4)


@settings(deadline=None, max_examples=30)
@given(st.tuples(st.integers(1, 3), st.integers(1, 140), st.integers(1, 9), st.integers(1, 9)), st.booleans())
def test_pooled_bytes_are_those_of_torch(size, channels_last):
    x = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    expected = F.max_pool2d(x.double(), 3, stride=2, padding=1)
    assert torch.equal(pool_counts(x).double(), expected)
    with switched_off():
        assert torch.equal(pool_counts(x).double(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_numbers_become_bytes_in_their_order(either, dtype):
    x = torch.randint(0, MOST + 1, (3, 5, 70), generator=torch.Generator().manual_seed(0)).to(dtype).transpose(1, 2)
    counts = as_counts(x)
    assert counts.dtype == torch.uint8
    assert torch.equal(counts.to(dtype), x)
    assert counts.stride() == x.stride()


@pytest.mark.parametrize("other", [0.5, -1.0, MOST + 1.0, 1e9, math.nan, math.inf, -math.inf, 1 + 2**-20])
@pytest.mark.parametrize("place", [0, 4099])
def test_any_other_number_is_noticed(either, other, place):
    x = torch.ones(4100)
    assert as_counts(x) is not None
    x[place] = other
    assert as_counts(x) is None


def test_bits_do_not_depend_on_the_number_of_threads(with_threads):
    x = currents(3, 2, 9001)
    image = torch.randint(0, 2, (3, 70, 9, 8), dtype=torch.uint8)
    found = with_threads(
        lambda: (fire(x, Membrane(), 3, as_counts=True), pool_counts(image), as_counts(x.abs().round()))
    )
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_nothing_stays_nothing(either):
    assert fire(torch.empty(4, 0, 3), Membrane(), 4, as_counts=True).shape == (4, 0, 3)
    assert pool_counts(torch.empty(0, 2, 4, 4, dtype=torch.uint8)).shape == (0, 2, 2, 2)
