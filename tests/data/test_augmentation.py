import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from timm.data.auto_augment import NAME_TO_OP
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import Compose, Normalize, ToTensor

from sage_snn.data import Augmentation, Data, DataError, Images, describe, erased, train_transform
from sage_snn.data import test_transform as evaluation_transform
from sage_snn.data.augmentation import OPERATIONS
from sage_snn.data.randomness import borrowed, reseed

FIVE = ("Equalize", "Rotate", "ShearX", "TranslateXRel", "TranslateYRel")
OFFICIAL = Augmentation(
    flip=0.5,
    rand_augment="rand-m9-n1-mstd0.4-inc1",
    operations=FIVE,
    erasing=0.25,
    mixup=0.5,
    smoothing=0.1,
)


def task(channels=3, size=32, n=8):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, channels, size, size), generator=generator, dtype=torch.uint8)
    images = Images(pixels, torch.arange(n) % 2)
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.2470, 0.2435, 0.2616)[:channels]
    return Data("toy", images, images, ("a", "b"), channels=channels, size=size, mean=mean, std=std)


def test_the_official_recipe_draws_from_its_five_operations_only(monkeypatch):
    data, applied = task(), set()
    transform = train_transform(OFFICIAL, data)
    (rand_augment,) = [step for step in transform.steps if hasattr(step, "ops")]
    for operation in rand_augment.ops:
        plain = operation.aug_fn

        def noted(picture, *arguments, name=operation.name, plain=plain, **options):
            applied.add(name)
            return plain(picture, *arguments, **options)

        monkeypatch.setattr(operation, "aug_fn", noted)
    for i in range(300):
        transform(data.train.picture(i % 8))
    assert applied == set(FIVE)
    assert rand_augment.num_layers == 1
    assert {op.magnitude for op in rand_augment.ops} == {9}
    assert {op.magnitude_std for op in rand_augment.ops} == {0.4}
    assert {op.prob for op in rand_augment.ops} == {0.5}
    assert {op.kwargs["fillcolor"] for op in rand_augment.ops} == {(125, 123, 114)}
    assert {op.hparams["translate_const"] for op in rand_augment.ops} == {14}
    assert {op.kwargs["resample"] for op in rand_augment.ops} == {Image.Resampling.BICUBIC}


def test_the_record_names_what_was_really_applied():
    lines = describe(OFFICIAL, task())
    assert lines == [
        "resize to 32 px where needed",
        "RandomHorizontalFlip(p=0.5)",
        "RandAugment rand-m9-n1-mstd0.4-inc1: 1 of Equalize, Rotate, ShearX, TranslateXRel, TranslateYRel, "
        "each with probability 0.5",
        "normalise by mean (0.4914, 0.4822, 0.4465), std (0.247, 0.2435, 0.2616)",
        "mixup 0.5 with probability 1.0",
        "RandomErasing(p=0.25, mode=const, count=(1, 1))",
        "label smoothing 0.1",
    ]


def test_the_record_of_the_stock_list_has_its_fifteen_operations():
    augmentation = Augmentation(
        shift=2, rand_augment="rand-m9-mstd0.5-inc1", crop_scale=(0.08, 1), cutmix=1, mixup_off_epoch=9
    )
    lines = describe(augmentation, task())
    assert lines[0].startswith("RandomResizedCropAndInterpolation(size=(32, 32), scale=(0.08, 1.0)")
    assert lines[1] == "shift by up to 2 px, borders reflected"
    assert "2 of AutoContrast, Equalize, Invert, Rotate, PosterizeIncreasing" in lines[2]
    assert lines[2].count(",") == 15
    assert lines[-1] == "cutmix 1.0 with probability 1.0 before epoch 9"


@pytest.mark.parametrize("channels", [1, 3])
def test_normalising_is_bit_for_bit_torchvisions(channels):
    data = task(channels)
    reference = Compose([ToTensor(), Normalize(data.mean, data.std)])
    for transform in (train_transform(Augmentation(), data), evaluation_transform(data)):
        for i in range(8):
            assert transform(data.train.picture(i)).equal(reference(data.train.picture(i)))


def test_names_of_operations_are_timms():
    assert set(NAME_TO_OP) == OPERATIONS


def test_erasing_belongs_to_the_image_and_leaves_the_generators_alone():
    images, indices = torch.rand(64, 3, 16, 16) + 1, torch.arange(64) + 100
    before = random.getstate(), torch.get_rng_state()
    made = erased(images, indices, 0.25, seed=1, epoch=2)
    assert before[0] == random.getstate()
    assert before[1].equal(torch.get_rng_state())
    touched = (made != images).flatten(1).any(1)
    assert 5 < int(touched.sum()) < 30  # a quarter
    assert (made[made != images] == 0).all()
    assert erased(images, indices, 0.0, 1, 2) is images
    back = erased(images.flip(0), indices.flip(0), 0.25, seed=1, epoch=2).flip(0)
    assert back.equal(made)
    assert not erased(images, indices, 0.25, seed=1, epoch=3).equal(made)
    assert (images > 0).all()


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_a_batch_erased_at_once_is_that_of_timms_eraser_image_by_image(order):
    images = torch.randn(32, 3, 17, 17).contiguous(memory_format=order)
    indices, expected, erase = torch.randperm(500)[:32], images.clone(), RandomErasing(0.6, device="cpu")
    with borrowed():
        for image, index in zip(expected, indices.tolist(), strict=True):
            reseed(3, 4, -1 - index)
            erase(image)
    made = erased(images, indices, 0.6, seed=3, epoch=4)
    assert made.equal(expected)
    assert not made[made == 0].signbit().any()
    assert made.is_contiguous(memory_format=order)
    assert 5 < (made != images).flatten(1).any(1).sum() < 32


def test_flip_and_shift_do_what_they_say():
    data = task(channels=1, size=6)
    plain = train_transform(Augmentation(), data)(data.train.picture(0))
    flipped = train_transform(Augmentation(flip=1), data)(data.train.picture(0))
    assert flipped.equal(plain.flip(2))
    padded = torch.nn.functional.pad(plain, (2, 2, 2, 2), mode="reflect")
    windows = [padded[:, y : y + 6, x : x + 6] for y in range(5) for x in range(5)]
    shift, seen = train_transform(Augmentation(shift=2), data), set()
    torch.manual_seed(0)
    for _ in range(150):
        moved = shift(data.train.picture(0))
        seen |= {i for i, window in enumerate(windows) if moved.equal(window)}
    assert len(seen) == 25


def test_images_of_another_size_are_resized_and_cropped_in_the_middle():
    data = task(channels=3, size=8)
    wide = Image.new("RGB", (40, 16), (255, 0, 0))
    wide.paste((0, 0, 255), (12, 0, 28, 16))
    for transform in (train_transform(Augmentation(), data), evaluation_transform(data)):
        image = transform(wide)
        assert image.shape == (3, 8, 8)
        assert image[2].mean() > image[0].mean()  # blue, the middle
    cropped = train_transform(Augmentation(crop_scale=(0.2, 0.5), interpolation="random"), data)(wide)
    assert cropped.shape == (3, 8, 8)


def test_the_centre_of_photographs_is_cut_out_for_evaluation():
    in_memory = task(size=224, n=1)
    in_files = replace(in_memory, test=Images([Path("a.png")], torch.zeros(1, dtype=torch.int64)))
    picture = Image.new("RGB", (224, 224), 0)
    picture.paste(
        (255, 255, 255), (10, 10, 214, 214)
    )  # a frame narrower than the sixteenth that is cut off on each side
    whole, centre = evaluation_transform(in_memory)(picture), evaluation_transform(in_files)(picture)
    assert whole[0, 0, 0] == whole[0].min()
    assert centre[0, 0, 0] == centre[0].max()


def test_every_operation_works_on_colour_and_those_without_colour_on_grey():
    for channels, names in ((3, OPERATIONS), (1, OPERATIONS - {"Color", "ColorIncreasing", "Desaturate"})):
        data = task(channels)
        for name in sorted(names):
            augmentation = Augmentation(rand_augment="rand-m9-n1-p1", operations=(name,))
            image = train_transform(augmentation, data)(data.train.picture(0))
            assert image.shape == (channels, 32, 32), name


def test_colour_operations_on_grey_images_are_refused_with_the_others_named():
    with pytest.raises(
        DataError, match=r"ColorIncreasing of RandAugment would do nothing.*operations=\['AutoContrast'"
    ):
        train_transform(Augmentation(rand_augment="rand-m9-inc1"), task(channels=1))


def test_a_shift_beyond_the_image_is_refused():
    with pytest.raises(DataError, match="shift is 8 pixels, the images have 8"):
        train_transform(Augmentation(shift=8), task(size=8))


def test_transforms_can_be_sent_to_workers():
    data = task()
    copy = pickle.loads(pickle.dumps(train_transform(OFFICIAL, data)))
    assert copy(data.train.picture(0)).shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flip": 1.5}, "flip"),
        ({"erasing": -0.1}, "erasing"),
        ({"mixup_probability": 2}, "mixup_probability"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"mixup": -1}, "mixup"),
        ({"shift": -1}, "shift"),
        ({"flop": 0.5}, "flop"),
        ({"interpolation": "cubic"}, "bicubic"),
        ({"crop_scale": (0.5, 0.2)}, "smallest and the largest share"),
        ({"crop_scale": (0, 1)}, "smallest and the largest share"),
        ({"rand_augment": "rand-x9"}, "is not timm's notation; write it like rand-m9"),
        ({"rand_augment": "augmix-m5"}, "is not timm's notation"),
        ({"rand_augment": "rand-m9", "operations": ["Rotat"]}, "'Rotat' is no operation of RandAugment; .* Rotate"),
        ({"rand_augment": "rand-m9", "operations": []}, "at least one operation"),
        ({"operations": ["Rotate"]}, "operations are those of rand_augment"),
        ({"rand_augment": "rand-m9-tweights", "operations": ["Rotate"]}, "keep one"),
    ],
)
def test_wrong_settings_are_explained(fields, message):
    with pytest.raises(ValidationError, match=message):
        Augmentation(**fields)


def test_lists_from_a_file_are_taken():
    augmentation = Augmentation(rand_augment="rand-m9", operations=["Rotate"], crop_scale=[0.5, 1])
    assert augmentation.operations == ("Rotate",)
    assert Augmentation(**augmentation.model_dump()) == augmentation


def test_cutout_covers_a_square_and_no_more_than_the_picture():
    data = task()
    (cutout,) = train_transform(Augmentation(cutout=16), data).steps
    covered = []
    for seed in range(60):
        torch.manual_seed(seed)
        white = Image.new("RGB", (32, 32), (255, 255, 255))
        pixels = torch.from_numpy(np.array(cutout(white)))
        square = (pixels == torch.tensor([125, 123, 114], dtype=torch.uint8)).all(-1)
        rows, columns = square.any(1).nonzero().flatten(), square.any(0).nonzero().flatten()
        assert int(square.sum()) == len(rows) * len(columns)
        assert rows.tolist() == list(range(int(rows[0]), int(rows[-1]) + 1))
        assert white.getpixel((0, 0)) == (255, 255, 255)  # the picture itself stays
        covered.append(int(square.sum()))
    assert max(covered) == 16 * 16
    assert min(covered) >= 8 * 8
    grey = train_transform(Augmentation(cutout=4), task(channels=1, size=8)).steps[0]
    assert grey(Image.new("L", (8, 8), 255)).getcolors() != [(64, 255)]


def test_auto_augment_is_torchvisions_and_excludes_rand_augment():
    transform = train_transform(Augmentation(auto_augment=True, cutout=8), task())
    assert [type(step).__name__ for step in transform.steps] == ["AutoAugment", "Cutout"]
    assert transform(task().train.picture(0)).shape == (3, 32, 32)
    assert any("AutoAugment" in line for line in describe(Augmentation(auto_augment=True), task()))
    with pytest.raises(ValidationError, match="auto_augment and rand_augment both choose the operations; keep one"):
        Augmentation(auto_augment=True, rand_augment="rand-m9-n1")
