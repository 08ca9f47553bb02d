import subprocess
import sys

import pytest
import torch

from sage_snn.data import DATASETS, DataError, load_data


def test_digits_come_without_a_folder_and_split_evenly():
    data = load_data("digits")
    assert (len(data.train), len(data.test), data.channels, data.size) == (1437, 360, 1, 8)
    assert data.classes == tuple("0123456789")
    assert int(data.train.pixels.max()) == 255
    everyone = torch.bincount(torch.cat([data.train.labels, data.test.labels]))
    assert (torch.bincount(data.test.labels) - everyone * 360 / 1797).abs().max() < 1


def test_digits_are_the_same_each_time():
    first, second = load_data("digits"), load_data("digits")
    assert first.train.pixels.equal(second.train.pixels)
    assert first.test.labels.equal(second.test.labels)


def test_subsets_are_asked_for_by_number():
    data = load_data("digits", train_images=100, test_images=50)
    assert (len(data.train), len(data.test)) == (100, 50)
    assert torch.bincount(data.train.labels).min() >= 9
    assert data.mean == load_data("digits").mean


def test_subsets_of_another_number_share_no_image():
    first, second = (load_data("digits", train_images=100, test_images=50, subset=number) for number in (0, 1))
    assert first.train.pixels.equal(load_data("digits", train_images=100).train.pixels)
    for part in ("train", "test"):
        mine, other = ({bytes(p.numpy()) for p in getattr(data, part).pixels} for data in (first, second))
        assert not mine & other
    with pytest.raises(DataError, match="no subset 7 of 50 images: 360 hold 7 that share none, from 0 on"):
        load_data("digits", test_images=50, subset=7)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("cifar-10", "cifar10"), ("digit", "digits"), ("imagenet", "imagenet200"), ("tiny-imagenet", "tiny-imagenet200")],
)
def test_an_unknown_name_is_answered_with_the_nearest(wrong, right):
    with pytest.raises(DataError, match=rf"no data set is called '{wrong}'; did you mean {right}\?"):
        load_data(wrong)


def test_a_name_like_none_is_answered_with_all():
    with pytest.raises(DataError, match="There are digits, cifar10, cifar100"):
        load_data("zzz")


@pytest.mark.parametrize("count", [0, 361])
def test_a_subset_larger_than_the_set_says_how_many_there_are(count):
    with pytest.raises(DataError, match=f"test_images is {count}, but digits has 360 test images"):
        load_data("digits", test_images=count)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"digits", "fashion-mnist"}))
def test_a_missing_folder_is_asked_for(name):
    with pytest.raises(DataError, match=rf"{name} needs .*--data-dir"):
        load_data(name, time_steps=2)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"digits"}))
def test_a_folder_that_is_not_there_is_named(name, tmp_path):
    with pytest.raises(DataError, match="nowhere is not there"):
        load_data(name, tmp_path / "nowhere", time_steps=2)


def test_options_of_other_sets_are_refused(tmp_path):
    with pytest.raises(DataError, match="fashion-mnist cannot be downloaded"):
        load_data("fashion-mnist", tmp_path, download=True)
    with pytest.raises(DataError, match="classes_file belongs to imagenet200"):
        load_data("digits", classes_file="list.txt")


def test_the_room_is_entered_without_torchvision_timm_and_scikit_learn():
    # sage_snn itself brings SpikingJelly, which may bring what it likes; only what is added here counts.
    code = """
import sys, torch, sage_snn
before = set(sys.modules)
import sage_snn.data
sage_snn.data.Augmentation(rand_augment="rand-m9-n1", operations=("Rotate",))
print(*sorted({"torchvision", "timm", "sklearn"} & (set(sys.modules) - before)))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
