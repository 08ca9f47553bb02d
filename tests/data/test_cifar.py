import hashlib
import pickle

import numpy as np
import pytest
import torchvision
from torchvision.datasets.utils import check_integrity

from sage_snn.data import DataError, load_data


def published(folder, name, content):
    """Writes a pickle and gives it the place of a published one: its name and md5."""
    packed = pickle.dumps(content)
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(packed)
    return [name, hashlib.md5(packed).hexdigest()]


def batch(count, label_key, classes, seed):
    rows = np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)
    return {"data": rows, label_key: [i % classes for i in range(count)]}


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """A folder in CIFAR-10's format, smaller; torchvision's own checks run against its own checksums."""
    folder, dataset = tmp_path / "cifar-10-batches-py", torchvision.datasets.CIFAR10
    train = [published(folder, f"data_batch_{i}", batch(20, "labels", 10, i)) for i in (1, 2)]
    monkeypatch.setattr(dataset, "train_list", train)
    monkeypatch.setattr(dataset, "test_list", [published(folder, "test_batch", batch(10, "labels", 10, 3))])
    name, md5 = published(folder, "batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(dataset, "meta", {"filename": name, "key": "label_names", "md5": md5})
    return tmp_path


def test_cifar10_is_read_into_memory_with_the_recipes_moments(cifar10):
    data = load_data("cifar10", cifar10)
    rows = np.concatenate([batch(20, "labels", 10, i)["data"] for i in (1, 2)])
    assert np.array_equal(data.train.pixels.numpy(), rows.reshape(-1, 3, 32, 32))
    assert data.train.labels.tolist() == [i % 10 for i in range(20)] * 2
    assert (len(data.test), data.classes, data.channels, data.size) == (10, tuple("abcdefghij"), 3, 32)
    assert (data.mean, data.std) == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def test_the_unpacked_folder_itself_will_do(cifar10):
    assert len(load_data("cifar10", str(cifar10 / "cifar-10-batches-py"), train_images=10).train) == 10


def test_files_that_are_there_are_not_downloaded_again(cifar10):
    assert len(load_data("cifar10", cifar10, download=True).train) == 40


def test_a_missing_file_is_named_with_the_way_to_get_it(cifar10):
    (cifar10 / "cifar-10-batches-py" / "data_batch_2").unlink()
    message = r"cifar-10-batches-py lacks data_batch_2; unpack cifar-10-python.tar.gz from https://.* --download"
    with pytest.raises(DataError, match=message):
        load_data("cifar10", cifar10)


def test_an_empty_folder_lacks_everything(tmp_path):
    with pytest.raises(DataError, match=r"lacks data_batch_1, data_batch_2, .*, test_batch, batches\.meta"):
        load_data("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["test_batch", "batches.meta"])
def test_a_truncated_file_is_named_with_its_size_and_the_expected_md5(cifar10, name):
    path = cifar10 / "cifar-10-batches-py" / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=rf"{name} \(50 bytes\) does not have the md5 [0-9a-f]{{32}}"):
        load_data("cifar10", cifar10)
    assert not check_integrity(str(path), "0" * 32)


def test_a_download_that_fails_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", (tmp_path / "absent.tar.gz").as_uri())
    with pytest.raises(DataError, match=r"cifar-10-batches-py lacks data_batch_1.*or let `sage-snn train"):
        load_data("cifar10", tmp_path / "new", download=True)


def test_cifar100_reads_the_fine_labels(tmp_path, monkeypatch):
    folder, dataset = tmp_path / "cifar-100-python", torchvision.datasets.CIFAR100
    monkeypatch.setattr(dataset, "train_list", [published(folder, "train", batch(200, "fine_labels", 100, 1))])
    monkeypatch.setattr(dataset, "test_list", [published(folder, "test", batch(100, "fine_labels", 100, 2))])
    name, md5 = published(folder, "meta", {"fine_label_names": [f"class {i}" for i in range(100)]})
    monkeypatch.setattr(dataset, "meta", {"filename": name, "key": "fine_label_names", "md5": md5})
    data = load_data("cifar100", tmp_path)
    assert (len(data.train), len(data.test), data.classes[99]) == (200, 100, "class 99")
    assert data.train.labels[:100].tolist() == list(range(100))
    assert data.mean == (0.5071, 0.4867, 0.4408)
