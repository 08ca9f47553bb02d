import pytest
import torch
from torch import nn

from sage_snn.inference import WholeSynapse
from sage_snn.kernels.events import dense_products
from sage_snn.layers import SpikeConv
from sage_snn.runs.work import measure_work


def images(*events):
    """One image of 32 channels and 16 x 16 pixels, with counts at (channel, row, column)."""
    x = torch.zeros(1, 32, 16, 16)
    for place, count in events:
        x[0][place] = count
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("stride", "seen"), [(1, 9 + 2 * 4), (2, 4 + 2 * 1)])
def test_products_over_events_count_what_they_add_up(whole, stride, seen):
    conv = SpikeConv(32, 40, 3, stride=stride, padding=1, bias=False)
    layer = WholeSynapse(conv) if whole else conv
    # In the middle nine outputs see an event, or four of every second; in the corner four, or one.
    x = images(((5, 3, 3), 1.0), ((7, 0, 0), 2.0))
    if not whole:  # there a count of two is one product
        seen = {1: 9 + 4, 2: 4 + 1}[stride]
    assert measure_work(nn.Sequential(layer), [x]).macs == 40 * seen


def test_dense_products_count_zeros_too():
    layer = SpikeConv(32, 40, 3, padding=1, bias=False)
    many = images(((slice(None), slice(None), slice(None)), 1.0))
    assert measure_work(nn.Sequential(layer), [many]).macs == 40 * 32 * 9 * 256
    with dense_products():
        assert measure_work(nn.Sequential(layer), [images(((5, 3, 3), 1.0))]).macs == 40 * 32 * 9 * 256
