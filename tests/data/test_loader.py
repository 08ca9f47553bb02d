import multiprocessing
import os
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sage_snn.data import Augmentation, Batch, Data, DataError, Images, Loader, train_transform
from sage_snn.data import loader as loader_module
from sage_snn.data import test_transform as evaluation_transform

OFFICIAL = Augmentation(
    flip=0.5,
    shift=2,
    rand_augment="rand-m9-n1-mstd0.4-inc1",
    operations=("Equalize", "Rotate", "ShearX", "TranslateXRel", "TranslateYRel"),
    erasing=0.25,
)


def task(n=50, channels=3, size=16):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, channels, size, size), generator=generator, dtype=torch.uint8)
    images = Images(pixels, torch.arange(n) % 5)
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.2470, 0.2435, 0.2616)[:channels]
    return Data("toy", images, images, tuple("abcde"), channels=channels, size=size, mean=mean, std=std)


def augmented(data, batch_size=8, **options):
    options = {"seed": 3, "shuffle": True, "drop_last": True} | options
    return Loader(data.train, train_transform(OFFICIAL, data), batch_size, **options)


def same(first, second):
    first, second = list(first), list(second)
    assert len(first) == len(second)
    return all(a.equal(b) for one, two in zip(first, second, strict=True) for a, b in zip(one, two, strict=True))


def test_a_batch_holds_what_it_says():
    data = task()
    batch = next(Loader(data.test, evaluation_transform(data), 8, shuffle=True).epoch(0))
    assert isinstance(batch, Batch)
    assert (batch.images.shape, batch.images.dtype) == ((8, 3, 16, 16), torch.float32)
    assert batch.labels.equal(data.test.labels[batch.indices])
    assert (batch.labels.dtype, batch.indices.dtype) == (torch.int64, torch.int64)
    for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
        assert image.equal(evaluation_transform(data)(data.test.picture(index)))


def test_workers_change_no_bit_and_never_keep_a_stale_epoch():
    data = task()
    alone, two = augmented(data), augmented(data, workers=2)
    epochs = [list(alone.epoch(epoch)) for epoch in range(3)]
    for epoch in (0, 1, 2, 0):
        assert same(epochs[epoch], two.epoch(epoch))
    assert same(epochs[1][3:], two.epoch(1, start=3))
    leaving = two.epoch(2)
    next(leaving)  # left in the middle, as an interrupted run does
    assert same(epochs[0], two.epoch(0))
    assert not same(epochs[0], epochs[1])
    with pytest.raises(RuntimeError, match="took the workers over; make a second Loader"):
        next(leaving)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_that_are_asked_to_stop_make_batches_until_whoever_trains_has_stopped(number):
    data = task(100)
    batches = augmented(data, workers=2).epoch(0)
    first = [next(batches), next(batches)]  # one of each: a worker that is only starting would die
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker.pid, number)
    whole = augmented(data).epoch(0)
    assert same(first, [next(whole), next(whole)])
    assert same(batches, whole)


def test_a_worker_that_dies_is_told_with_the_cure():
    batches = augmented(task(), workers=2).epoch(0)
    next(batches)
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    told = r"^a process that makes batches died \(.+\); .*fewer `workers`.* --resume$"
    with pytest.raises(DataError, match=told), loader_module.telling_of_lost_workers():  # torch may speak anywhere
        list(batches)


def test_there_are_no_more_workers_than_cores(monkeypatch):
    monkeypatch.setattr(loader_module, "usable_cores", lambda: 1)
    assert augmented(task(), workers=8)._workers.num_workers == 1


def test_cores_are_counted_where_the_system_tells_no_affinity(monkeypatch):
    monkeypatch.delattr(loader_module.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(loader_module.os, "cpu_count", lambda: 5)
    assert loader_module.usable_cores() == 5


def test_workers_leave_the_global_generators_alone():
    data = task(16)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    for workers in (0, 1):
        list(augmented(data, workers=workers).epoch(0))
        assert before[0].equal(torch.get_rng_state())
        assert before[1] == random.getstate()
        assert np.array_equal(before[2], np.random.get_state()[1])


def test_an_image_that_cannot_be_read_stops_a_worker_with_its_name(tmp_path):
    path = tmp_path / "broken.png"
    path.write_text("no picture")
    images = Images([path], torch.tensor([0]))
    data = Data("toy", images, images, ("a",), channels=3, size=4, mean=(0.5,) * 3, std=(1.0,) * 3)
    with pytest.raises(DataError, match=r"^\S+broken\.png cannot be read as a picture [^\n]+ again$"):  # no traceback
        list(Loader(images, evaluation_transform(data), 1, workers=1).epoch(0))


def test_files_and_memory_give_the_same_batches(tmp_path):
    data = task(12)
    paths = [tmp_path / f"{i}.png" for i in range(12)]
    for i, path in enumerate(paths):
        data.train.picture(i).save(path)
    files = Images(paths, data.train.labels)
    transform = train_transform(OFFICIAL, data)
    assert same(Loader(files, transform, 4).epoch(1), Loader(data.train, transform, 4).epoch(1))
    plain = evaluation_transform(data)
    assert same(Loader(files, plain, 5).epoch(0), Loader(data.train, plain, 5).epoch(0))


@pytest.mark.parametrize("start", [0, 2, 5, 6])
def test_resuming_in_the_middle_of_an_epoch_gives_its_tail(start):
    loader = augmented(task())
    whole = list(loader.epoch(4))
    assert len(whole) == len(loader) == 6
    assert same(whole[start:], augmented(task()).epoch(4, start))
    assert same(whole[1:start], loader.epoch(4, 1, start))
    assert same(whole, loader.epoch(4, 0, 100))


@pytest.mark.parametrize("start", [-1, 7])
def test_resuming_outside_an_epoch_is_refused(start):
    with pytest.raises(DataError, match=f"cannot start epoch 0 at batch {start}: an epoch has 6 batches"):
        augmented(task()).epoch(0, start)


def test_randomness_depends_on_seed_epoch_and_image_only():
    data = task()
    by_index = {
        int(i): image for batch in augmented(data).epoch(2) for image, i in zip(batch[0], batch[2], strict=True)
    }
    in_order = Loader(data.train, train_transform(OFFICIAL, data), 7, seed=3)
    for batch in in_order.epoch(2):
        for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
            assert index not in by_index or image.equal(by_index[index])
    assert not same(in_order.epoch(2), Loader(data.train, train_transform(OFFICIAL, data), 7, seed=4).epoch(2))


def test_a_seed_is_its_number_whoever_counted_it():
    assert same(augmented(task(), seed=5).epoch(1), augmented(task(), seed=np.int64(5)).epoch(np.int32(1)))


def test_orders_of_epochs_and_seeds_differ_and_each_is_a_permutation():
    data = task()
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        loader = Loader(data.train, evaluation_transform(data), 8, seed=seed, shuffle=True)
        orders.append(torch.cat([batch.indices for batch in loader.epoch(epoch)]).tolist())
        assert sorted(orders[-1]) == list(range(50))
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_two_ranks_see_the_batches_of_one_process():
    data = task()
    one = list(augmented(data, 8).epoch(1))
    ranks = [list(augmented(data, 4, rank=rank, ranks=2).epoch(1)) for rank in (0, 1)]
    assert len(ranks[0]) == len(ranks[1]) == len(one)
    for whole, first, second in zip(one, *ranks, strict=True):
        for field in range(3):
            assert whole[field][0::2].equal(first[field])
            assert whole[field][1::2].equal(second[field])


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_evaluation_on_ranks_sees_every_image_once(n, batch_size, ranks):
    data = task(n, channels=1, size=2)
    seen = []
    for rank in range(ranks):
        loader = Loader(data.test, evaluation_transform(data), batch_size, rank=rank, ranks=ranks)
        batches = list(loader.epoch(0))
        assert len(batches) == len(loader)
        assert all(0 < len(batch.labels) <= batch_size for batch in batches)
        seen += [index for batch in batches for index in batch.indices.tolist()]
    assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_fast_path_equals_the_slow_one_bit_for_bit(channels):
    # Every byte value in every channel.
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(3, channels, 1, 1)
    data = task(3, channels)
    images = Images(pixels, data.train.labels)
    for transform in (evaluation_transform(data), train_transform(Augmentation(), data)):
        assert transform.is_plain_for(pixels)
        fast = Loader(images, transform, 2)
        slow = Loader(images, lambda picture, transform=transform: transform(picture), 2)
        assert same(fast.epoch(0), slow.epoch(0))
        assert next(fast.epoch(0)).images.is_contiguous()


def test_the_fast_path_is_taken_only_where_nothing_else_is_to_be_done():
    data = task()
    assert not train_transform(OFFICIAL, data).is_plain_for(data.train.pixels)
    assert train_transform(Augmentation(erasing=0.1), data).is_plain_for(data.train.pixels)  # batches are erased later
    assert not train_transform(Augmentation(crop_scale=(1, 1)), data).is_plain_for(data.train.pixels)
    assert not evaluation_transform(data).is_plain_for(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    assert not evaluation_transform(data).is_plain_for([Image.new("L", (16, 16))])


def test_unseeded_augmentation_follows_the_global_generators():
    data = task(16)
    loader = augmented(data, seeded=False)

    def drawn(seed):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return list(loader.epoch(0))

    assert same(drawn(1), drawn(1))
    assert not same(drawn(1), drawn(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size 0 must be at least 1"),
        ({"rank": 2, "ranks": 2}, r"rank 2 in 0\.\.1"),
        ({"workers": -1}, "workers -1 at least 0"),
        ({"batch_size": 51}, "50 images do not fill one batch of 51; use a smaller batch_size"),
        ({"batch_size": 7, "ranks": 7, "drop_last": False}, "the last batch has 1 images for 7 processes"),
    ],
)
def test_wrong_settings_of_a_loader_are_explained(options, message):
    with pytest.raises(DataError, match=message):
        augmented(task(), **options)
