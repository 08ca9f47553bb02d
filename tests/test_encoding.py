import pytest
import torch

from sage_snn.encoding import SignedPoisson

# Six pixels of one image, and the rates that they should have for a peak of 2.
PIXELS = torch.tensor([0.0, 0.5, -0.5, 1.5, -2.0, 7.0]).view(1, 1, 2, 3)
RATES = [0.0, 0.25, -0.25, 0.75, -1.0, 1.0]


@pytest.mark.parametrize("training", [True, False])
def test_pixels_fire_with_their_sign_and_at_their_rate(training):
    torch.manual_seed(0)
    spikes = SignedPoisson().train(training)(PIXELS, 10_000)
    assert spikes.shape == (10_000, 1, 1, 2, 3)
    assert set(spikes.unique().tolist()) == {-1.0, 0.0, 1.0}
    # Five standard deviations of the mean of 10,000 draws are at most 0.025; 0 and the peak and beyond leave no chance.
    assert spikes.mean(0).flatten().tolist() == pytest.approx(RATES, abs=0.025)
    assert [spikes.mean(0).flatten()[pixel].item() for pixel in (0, 4, 5)] == [0.0, -1.0, 1.0]


def test_steps_and_pixels_are_drawn_apart():
    spikes = SignedPoisson().train()(torch.ones(1, 1, 50, 50), 4)
    assert all(not torch.equal(spikes[0], step) for step in spikes[1:])
    assert 0.4 < spikes.mean() < 0.6


def test_training_draws_from_torchs_generator():
    encode = SignedPoisson().train()
    torch.manual_seed(3)
    first, second = encode(PIXELS, 5), encode(PIXELS, 5)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(encode(PIXELS, 5), first)


def test_evaluations_repeat_and_leave_torchs_generator_alone():
    encode = SignedPoisson().eval()
    before = torch.get_rng_state()
    assert torch.equal(encode(PIXELS, 5), encode(PIXELS, 5))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_peak_sets_the_rate_and_the_precision_stays():
    spikes = SignedPoisson(peak=1.0).eval()(PIXELS.to(torch.bfloat16), 10_000)
    assert spikes.dtype is torch.bfloat16
    assert spikes.float().mean(0).flatten().tolist() == pytest.approx([0.0, 0.5, -0.5, 1.0, -1.0, 1.0], abs=0.025)


def test_events_pass_unchanged():
    events = torch.rand(3, 2, 1, 4, 4)
    assert SignedPoisson()(events, 7) is events


def test_a_peak_that_is_none_is_refused():
    with pytest.raises(ValueError, match="peak must be positive, not 0"):
        SignedPoisson(peak=0.0)
