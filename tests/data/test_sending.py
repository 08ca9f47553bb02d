"""Batches are asked for and sent one ahead of their use on devices, and never early on a CPU."""

import pytest
import torch

from sage_snn.data import Batch, ahead

DONE = [("made", 0), ("made", 1), ("used", 0), ("made", 2), ("used", 1), ("used", 2)]
CALM = [("made", 0), ("used", 0), ("made", 1), ("used", 1), ("made", 2), ("used", 2)]


def made(count, done):
    for number in range(count):
        done.append(("made", number))
        yield Batch(torch.full((2, 3), float(number)), torch.tensor([number, 0]), torch.tensor([number]))


@pytest.mark.parametrize(("device", "expected"), [("meta", DONE), ("cpu", CALM)])
def test_a_device_has_the_next_batch_before_this_one_is_used(device, expected):
    done = []
    for batch in ahead(made(3, done), torch.device(device)):
        done.append(("used", batch.indices.item()))
        assert batch.images.device.type == batch.labels.device.type == device
        assert batch.images.shape == (2, 3)
        assert batch.indices.device.type == "cpu"
    assert done == expected


def test_on_a_cpu_batches_pass_as_they_are():
    batch = next(made(1, []))
    (passed,) = ahead(iter([batch]), torch.device("cpu"))
    assert passed is batch


@pytest.mark.parametrize("count", [0, 1])
def test_few_batches_are_all_there(count):
    assert len(list(ahead(made(count, []), torch.device("meta")))) == count
