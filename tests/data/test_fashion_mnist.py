import gzip
import struct

import numpy as np
import pytest

from sage_snn.data import DataError, fashion_mnist, load_data


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path):
    source = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 10)):
        pixels = source.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


def test_packed_and_plain_files_are_read(folder):
    data = load_data("fashion-mnist", folder)
    expected = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    assert np.array_equal(data.train.pixels[:, 0].numpy(), expected)
    assert data.test.labels.tolist() == list(range(10))
    assert (len(data.classes), data.channels, data.size) == (10, 1, 28)
    assert data.test.picture(0).mode == "L"


def test_torchvisions_layout_and_debians_folder_are_found(folder, tmp_path, monkeypatch):
    raw = tmp_path / "root" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for path in folder.glob("*ubyte*"):
        (raw / path.name).write_bytes(path.read_bytes())
    assert len(load_data("fashion-mnist", tmp_path / "root").train) == 30
    monkeypatch.setattr(fashion_mnist, "DEBIAN", folder)
    assert len(load_data("fashion-mnist").train) == 30


def test_without_any_folder_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"fashion-mnist needs its data folder .* package dataset-fashion-mnist"):
        load_data("fashion-mnist")


def test_a_missing_file_is_named(folder):
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte\.gz; Debian"):
        load_data("fashion-mnist", folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda old: old[:-3], r"holds 27 bytes of values, its header says 30 \(30,\)"),
        (lambda old: old + b"x", "holds 31 bytes of values, its header says 30"),
        (lambda old: old[:6], "ends inside its header after 6 bytes"),
        (lambda old: b"<html>not found", "starts with '3c 68 74 6d', an IDX file of this kind with 00 00 08 01; "),
        (lambda old: b"", "starts with '', an IDX file"),
        (lambda old: idx(np.zeros(29, np.uint8)), "has 29 labels for 30 images"),
        (lambda old: idx(np.full(30, 10, np.uint8)), r"label 10 of image 0 is outside 0\.\.9"),
    ],
)
def test_wrong_labels_are_reported_precisely(folder, content, message):
    path = folder / "train-labels-idx1-ubyte"
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(DataError, match=rf"train-labels-idx1-ubyte.* {message}.*; .*get them from https://"):
        load_data("fashion-mnist", folder)


def test_files_without_an_image_are_named(folder):
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros((0, 28, 28), np.uint8))))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8)))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte holds no label; .*get them from"):
        load_data("fashion-mnist", folder)


@pytest.mark.parametrize("content", [lambda old: old[:1000], lambda old: b"no gzip", lambda old: old[:-20] + b"0" * 20])
def test_a_packed_file_that_cannot_be_unpacked_is_named(folder, content):
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz cannot be unpacked .* truncated or no gzip"):
        load_data("fashion-mnist", folder)


def test_images_of_another_size_are_refused(folder):
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((10, 14, 14), np.uint8)))
    with pytest.raises(DataError, match=r"t10k images are \(14, 14\), expected \(28, 28\)"):
        load_data("fashion-mnist", folder)
