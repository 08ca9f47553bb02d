import numpy as np
import pytest
import torch
from timm.data import Mixup

from sage_snn.data import Augmentation, mix


def batch(count=4, seed=0):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)), torch.arange(count) % 3


def test_without_mixing_the_targets_are_smoothed_by_hand():
    images, labels = batch(2)
    same, targets = mix(images, labels, 4, Augmentation(smoothing=0.1), epoch=0, generator_seed=1)
    assert same.equal(images)
    torch.testing.assert_close(targets, torch.tensor([[0.925, 0.025, 0.025, 0.025], [0.025, 0.925, 0.025, 0.025]]))


def test_mixup_targets_and_images_are_those_of_the_drawn_share_by_hand():
    images, labels = batch(2)
    draw = np.random.RandomState(7)
    draw.rand()  # decides whether to mix at all
    share = float(draw.beta(0.5, 0.5))
    mixed, targets = mix(images, labels, 2, Augmentation(mixup=0.5, smoothing=0.2), epoch=0, generator_seed=7)
    one, two = 0.9 * share + 0.1 * (1 - share), 0.1 * share + 0.9 * (1 - share)
    torch.testing.assert_close(targets, torch.tensor([[one, two], [two, one]]))
    torch.testing.assert_close(mixed[0], share * images[0] + (1 - share) * images[1])
    torch.testing.assert_close(mixed[1], share * images[1] + (1 - share) * images[0])


@pytest.mark.parametrize(
    ("mixup", "cutmix", "probability"), [(0.5, 0.0, 1.0), (0.8, 1.0, 1.0), (0.0, 1.0, 1.0), (0.8, 1.0, 0.5)]
)
def test_timm_seeded_alike_gives_the_same_bits(mixup, cutmix, probability):
    augmentation = Augmentation(mixup=mixup, cutmix=cutmix, mixup_probability=probability, smoothing=0.1)
    timm = Mixup(mixup, cutmix, prob=probability, label_smoothing=0.1, num_classes=3)
    before = np.random.get_state()
    try:
        for seed in range(40):
            images, labels = batch(6, seed)
            mixed, targets = mix(images, labels, 3, augmentation, epoch=0, generator_seed=seed)
            np.random.seed(seed)
            timm_mixed, timm_targets = timm(images, labels)
            assert mixed.equal(timm_mixed)
            assert targets.equal(timm_targets)
    finally:
        np.random.set_state(before)


def test_the_seed_alone_decides_and_the_global_state_and_the_input_are_left_alone():
    images, labels = batch()
    kept, augmentation = images.clone(), Augmentation(mixup=0.8, cutmix=1.0)
    first = [mix(images, labels, 3, augmentation, 0, seed)[0] for seed in range(6)]
    state = np.random.get_state()[1].copy()
    second = [mix(images, labels, 3, augmentation, 0, seed)[0] for seed in range(6)]
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    assert not first[0].equal(first[1])
    assert images.equal(kept)
    assert np.array_equal(np.random.get_state()[1], state)


def test_seeds_beyond_32_bits_are_told_apart():
    images, labels = batch()
    shares = {float(mix(images, labels, 3, Augmentation(mixup=0.5), 0, n << 32 | 5)[1][1, 1]) for n in range(8)}
    assert len(shares) == 8


@pytest.mark.parametrize("count", [1, 3, 5])
def test_odd_batches_are_mixed(count):
    images, labels = batch(count)
    for augmentation in (Augmentation(mixup=0.5, smoothing=0.1), Augmentation(cutmix=1.0)):
        mixed, targets = mix(images, labels, 3, augmentation, 0, 3)
        assert mixed.shape == images.shape
        torch.testing.assert_close(targets.sum(1), torch.ones(count))


def test_mixing_stops_at_its_epoch_and_smoothing_goes_on():
    images, labels = batch()
    augmentation = Augmentation(mixup=0.5, mixup_off_epoch=3, smoothing=0.3)
    assert not mix(images, labels, 3, augmentation, 2, 1)[0].equal(images)
    same, targets = mix(images, labels, 3, augmentation, 3, 1)
    assert same.equal(images)
    torch.testing.assert_close(targets[0], torch.tensor([0.8, 0.1, 0.1]))
