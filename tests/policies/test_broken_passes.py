"""A signal that breaks in the middle of a pass: what earlier groups had shown of that pass counts for nothing."""

import pytest
import torch

from sage_snn import SAGE
from sage_snn.signals import HeadEntropy


class Breaks:
    """Entropy, but its `at`-th call finds no memory."""

    reads = "attention"

    def __init__(self, at):
        self.at, self.entropy = at, HeadEntropy()

    def __call__(self, q, k, scale):
        self.at -= 1
        if self.at == 0:
            raise torch.OutOfMemoryError("no memory for the signal")
        return self.entropy(q, k, scale)


def readings(model, passes, signal):
    """Of one step after these passes; those that break are gone on from."""
    broken = 0
    with SAGE(model, warmup_steps=0, signal=signal) as sage:
        for images in passes:
            try:
                model(images)
            except torch.OutOfMemoryError:
                broken += 1
        sage.step()
        return torch.stack(sage.readings), broken


def test_a_pass_whose_signal_breaks_is_not_in_the_mean(ours, images):
    model = ours()
    expected, _ = readings(model, [images], HeadEntropy())
    found, broken = readings(model, [2 * images.flip(0), images], Breaks(at=2))  # the second of two blocks
    assert broken == 1
    assert torch.equal(found, expected)


def test_the_policy_stays_and_the_error_is_that_of_the_signal(ours, images):
    model = ours()
    with SAGE(model, warmup_steps=0, signal=Breaks(at=2)) as sage:
        with pytest.raises(torch.OutOfMemoryError, match="no memory for the signal"):
            model(images)
        with pytest.raises(RuntimeError, match="before any forward pass"):
            sage.step()
        model(images)
        sage.step()
        assert sage.dispersion.isfinite().all()


def test_an_error_at_the_step_itself_leaves_nothing_for_the_next(ours, images):
    model = ours()
    with SAGE(model, warmup_steps=0) as sage:
        first, second = sage._reader.all_taps
        model(images)
        kept = [first.source, second.source]
        expected = first.sums.clone()

        def breaks():
            raise RuntimeError("nothing to read")

        second.source = type("Given", (), {"read": staticmethod(breaks)})()
        with pytest.raises(RuntimeError, match="nothing to read"):
            sage.step()
        second.source = kept[1]
        model(images)
        assert torch.equal(first.sums, expected)
