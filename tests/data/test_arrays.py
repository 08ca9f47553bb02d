import hashlib
import struct
import zipfile

import numpy as np
import pytest

from sage_snn.data import DataError, load_data
from sage_snn.data.digest import arrays_digest as digest

LABELS = np.arange(40) % 4


def pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def save(folder, **arrays):
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((40, 6, 6), 1), ((40, 6, 6, 1), 1), ((40, 6, 6, 3), 3), ((40, 1, 6, 6), 1), ((40, 3, 6, 6), 3)],
)
def test_every_layout_is_read(tmp_path, shape, channels):
    images = pixels(*shape)
    path = save(tmp_path, train_images=images, train_labels=LABELS, test_images=images[:8], test_labels=LABELS[:8])
    data = load_data("arrays", path)
    first = images if images.ndim == 4 else images[:, None]
    expected = first if first.shape[1] == channels and first.shape[2] == 6 else first.transpose(0, 3, 1, 2)
    assert np.array_equal(data.train.pixels.numpy(), expected)
    assert (data.channels, data.size, data.classes, len(data.test)) == (channels, 6, ("0", "1", "2", "3"), 8)
    scaled = expected / 255
    assert data.mean == pytest.approx(scaled.mean((0, 2, 3)))
    assert data.std == pytest.approx(scaled.std((0, 2, 3)))


def test_one_array_is_split_and_a_folder_with_one_file_will_do(tmp_path):
    save(tmp_path, images=pixels(40, 6, 6), labels=LABELS.astype(np.uint8))
    data = load_data("arrays", tmp_path)
    assert np.bincount(data.train.labels).tolist() == [8] * 4
    assert np.bincount(data.test.labels).tolist() == [2] * 4


def test_floats_up_to_one_become_bytes(tmp_path):
    images = pixels(40, 6, 6)
    whole = load_data("arrays", save(tmp_path, images=images, labels=LABELS))
    halves = load_data("arrays", save(tmp_path, images=(images / 255).astype(np.float32), labels=LABELS))
    assert whole.train.pixels.equal(halves.train.pixels)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pixels(40, 6, 6).astype(float), "labels": LABELS}, r"floats outside \[0, 1\]; divide by 255"),
        ({"images": np.full((40, 6, 6), np.nan), "labels": LABELS}, r"floats outside \[0, 1\]"),
        ({"images": pixels(40, 6, 6).astype(np.int32), "labels": LABELS}, "images are int32; save uint8"),
        ({"images": pixels(40, 6, 5), "labels": LABELS}, "images are 6x5; pad or crop them to squares"),
        ({"images": pixels(40, 2, 6, 6), "labels": LABELS}, r"images has shape \(40, 2, 6, 6\); expected"),
        ({"images": pixels(40, 36), "labels": LABELS}, r"images has shape \(40, 36\)"),
        ({"images": pixels(39, 6, 6), "labels": LABELS}, "39 images but 40 labels"),
        ({"images": pixels(40, 6, 6), "labels": LABELS * 0.5}, "labels must be whole numbers"),
        ({"images": pixels(40, 6, 6), "labels": LABELS - 1}, "labels go down to -1; number the classes 0, 1, 2"),
        ({"images": pixels(40, 6, 6), "labels": LABELS + 1}, "no training image has the label 0"),
        ({"images": pixels(40, 6, 6), "labels": LABELS + 10**12 * (LABELS == 1)}, "no training image has the label 1"),
        ({"images": np.array(3), "labels": LABELS}, "images is a single number"),
        ({"images": pixels(0, 6, 6), "labels": LABELS[:0]}, "0 images cannot be split"),
        ({"images": pixels(40, 6, 6)}, r"lacks labels \(it has images\); expected an .npz with train_images"),
        ({"train_images": pixels(4, 6, 6)}, "lacks train_labels, test_images, test_labels"),
        ({"images": np.array([pixels(6, 6), pixels(5, 5)], dtype=object), "labels": LABELS[:2]}, "of varying size"),
    ],
)
def test_wrong_arrays_are_explained(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        load_data("arrays", save(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_images": pixels(8, 5, 5)}, r"differ in shape, \(1, 6, 6\) and \(1, 5, 5\)"),
        ({"test_labels": LABELS[:8] + 3}, r"label 4 of test image 1 is outside 0\.\.3"),
        ({"train_images": pixels(0, 6, 6), "train_labels": LABELS[:0]}, "there is no training image"),
        ({"test_images": pixels(0, 6, 6), "test_labels": LABELS[:0]}, "there is no test image"),
    ],
)
def test_training_and_test_arrays_must_fit_together(tmp_path, changed, message):
    arrays = {"train_images": pixels(40, 6, 6), "train_labels": LABELS}
    arrays |= {"test_images": pixels(8, 6, 6), "test_labels": LABELS[:8]}
    with pytest.raises(DataError, match=message):
        load_data("arrays", save(tmp_path, **(arrays | changed)))


def test_a_damaged_header_is_not_quoted_at_length(tmp_path):
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w") as file:
        header = "{'descr': '|u1', 'shape': (" + "9, " * 2000 + "\n"
        file.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.writestr("labels.npy", b"")
    with pytest.raises(DataError, match=r"mine\.npz cannot be read") as error:
        load_data("arrays", path)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize(
    ("where", "value"),
    [(6, 173), (8, 1), (10, 77)],
    ids=["of a later version", "with a password", "of an unknown compression"],
)
def test_archives_that_zipfile_cannot_read_are_named(tmp_path, where, value):
    """Bytes of the central directory; the reader looks at the flags of the file's own header too, two bytes before."""
    path = save(tmp_path, images=pixels(40, 6, 6), labels=LABELS)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + where] = value
    content[where - 2] = value
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"mine\.npz cannot be read"):
        load_data("arrays", path)


def test_files_that_are_no_npz_are_named(tmp_path):
    path = save(tmp_path, images=pixels(40, 6, 6), labels=LABELS)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"mine\.npz cannot be read"):
        load_data("arrays", path)
    path.write_text("hello")
    with pytest.raises(DataError, match=r"mine\.npz cannot be read"):
        load_data("arrays", path)
    np.save(tmp_path / "single.npy", LABELS)
    with pytest.raises(DataError, match=r"single\.npy is a single array"):
        load_data("arrays", tmp_path / "single.npy")


def test_a_digest_is_that_of_the_file_and_follows_its_content(tmp_path):
    path = tmp_path / "mine.npz"
    path.write_bytes(b"a")
    first = digest(path)
    assert first == digest(tmp_path) == hashlib.sha256(b"a").hexdigest()[:16]
    path.write_bytes(b"ab")
    assert digest(path) != first
    path.unlink()
    with pytest.raises(DataError, match=r"mine\.npz is not there"):
        digest(path)


def test_a_folder_must_hold_exactly_one_file(tmp_path):
    with pytest.raises(DataError, match=r"has 0 \.npz files; name the one to use"):
        load_data("arrays", tmp_path)
