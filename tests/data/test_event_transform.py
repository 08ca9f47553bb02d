import math
from collections import Counter

import pytest
import torch
from event_files import n_mnist

from sage_snn.data import Augmentation, Loader, describe, load_data, mix, train_transform
from sage_snn.data.event_transform import EventTransform
from sage_snn.recipes import RecipeError, load_recipe

SIX = ("Identity", "ShearX", "TranslateX", "TranslateY", "Rotate", "Cutout")


@pytest.fixture
def frames():
    return torch.poisson(torch.full((3, 2, 32, 32), 0.7), generator=torch.Generator().manual_seed(0)) + 1


def test_a_flip_turns_left_and_right_and_nothing_else(frames):
    assert EventTransform(flip=1.0)(frames).equal(frames.flip(-1))
    assert EventTransform()(frames) is frames


def test_shifts_move_by_whole_pixels_up_to_five_and_leave_zeros(frames):
    seen = Counter()
    torch.manual_seed(0)
    for _ in range(300):
        moved = EventTransform(operations=("TranslateX",))(frames)
        empty_left, empty_right = (
            int((moved.flip(-1) if right else moved).sum((0, 1, 2)).cumsum(0).eq(0).sum()) for right in (0, 1)
        )
        by = empty_left - empty_right
        seen[by] += 1
        assert moved.equal(frames.roll(by, -1) * (moved > 0))
    # 31 strengths from -5 to 5 by thirds, cut to whole pixels: five for 0, one for each end, three for each between.
    assert set(seen) == set(range(-5, 6))
    assert seen[0] > seen[1] > seen[5]


def test_rotation_and_shear_are_torchvisions_to_the_nearest_pixel(frames):
    from torchvision.transforms import functional

    torch.manual_seed(3)
    drawn = int(torch.randint(1, ())) or int(torch.randint(31, ()))
    strength = 2 * drawn / 30 - 1
    torch.manual_seed(3)
    assert EventTransform(operations=("Rotate",))(frames).equal(functional.rotate(frames, 30 * strength))
    torch.manual_seed(3)
    sheared = functional.affine(frames, 0.0, [0, 0], 1.0, [math.degrees(0.3 * strength), 0.0])
    assert EventTransform(operations=("ShearX",))(frames).equal(sheared)


def test_cutout_empties_one_square_in_all_frames(frames):
    torch.manual_seed(0)
    for _ in range(50):
        empty = EventTransform(operations=("Cutout",))(frames).eq(0)
        assert empty.eq(empty[0, 0]).all()
        rows, columns = empty[0, 0].any(1).sum(), empty[0, 0].any(0).sum()
        assert int(empty[0, 0].sum()) == rows * columns
        assert rows == columns
        assert 1 <= rows <= math.ceil(32 * 0.11**0.5)


def test_every_operation_treats_all_frames_alike_and_makes_no_event(frames):
    still = frames[:1].expand(3, -1, -1, -1)
    for name in SIX:
        torch.manual_seed(1)
        changed = EventTransform(operations=(name,))(still)
        assert changed.eq(changed[:1]).all()
        assert set(changed.unique().tolist()) <= {0.0, *still.unique().tolist()}


def test_events_are_mixed_recording_by_recording(frames):
    batch = torch.stack([frames, frames.flip(-1), 2 * frames], 1)
    labels = torch.arange(3)
    for augmentation in (Augmentation(mixup=0.5), Augmentation(cutmix=1.0)):
        mixed, targets = mix(batch, labels, 3, augmentation, 0, 5)
        as_images, same = mix(batch.transpose(0, 1), labels, 3, augmentation, 0, 5)
        by_hand = mix(batch.transpose(0, 1).flatten(1, 2), labels, 3, augmentation, 0, 5)[0].unflatten(1, (3, 2))
        assert mixed.equal(by_hand.transpose(0, 1))
        assert targets.equal(same)
        assert not mixed.equal(as_images.transpose(0, 1))


def test_augmented_batches_do_not_depend_on_workers_or_where_one_starts(tmp_path):
    data = load_data("n-mnist", n_mnist(tmp_path), time_steps=2)
    transform = train_transform(Augmentation(flip=0.5, event_operations=SIX), data)
    plain, many = (Loader(data.train, transform, 4, seed=1, shuffle=True, workers=workers) for workers in (0, 2))
    first, second = list(plain.epoch(1)), list(many.epoch(1))
    assert all(a.images.equal(b.images) and a.indices.equal(b.indices) for a, b in zip(first, second, strict=True))
    assert next(plain.epoch(1, 3)).images.equal(first[3].images)
    other = {
        int(i): image
        for batch in plain.epoch(2)
        for i, image in zip(batch.indices, batch.images.unbind(1), strict=True)
    }
    assert any(not other[int(i)].equal(x) for i, x in zip(first[0].indices, first[0].images.unbind(1), strict=True))


def test_what_is_applied_is_told_in_words(tmp_path):
    data = load_data("n-mnist", n_mnist(tmp_path), time_steps=2)
    lines = describe(load_recipe("cifar10-dvs").augmentation, data)
    assert lines == [
        "flip left to right with probability 0.5",
        "one of Identity, ShearX up to ±0.3, TranslateX up to ±5, TranslateY up to ±5, Rotate up to ±30, Cutout, "
        "the same for all frames of a recording",
        "mixup 0.5 with probability 0.5 before epoch 75",
        "label smoothing 0.1",
    ]


@pytest.mark.parametrize(
    ("recipe", "settings", "told"),
    [
        ("cifar10-dvs", {"augmentation.rand_augment": "rand-m9-n1"}, "augmentation.rand_augment is for images"),
        (
            "cifar10-dvs",
            {"augmentation.erasing": 0.2},
            "augmentation.erasing is for images, .* use flip, event_operations",
        ),
        ("digits", {"augmentation.event_operations": ["Rotate"]}, "event_operations is for events"),
        ("cifar10-dvs", {"augmentation.event_operations": ["Rotat"]}, "event_operations"),
        ("cifar10-dvs", {"model.name": "resnet20", "model.neuron": "relu"}, "resnet20 is an ANN"),
        ("cifar10-dvs", {"observe.steps": [4, 32]}, "observe.steps asks for 32"),
    ],
)
def test_what_does_not_fit_events_is_refused(recipe, settings, told):
    with pytest.raises(RecipeError, match=told):
        load_recipe(recipe, settings)
