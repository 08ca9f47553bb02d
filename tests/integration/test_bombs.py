"""Small files that stand for more than memory holds are refused before they are unpacked."""

import gzip
import hashlib
import io
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sage_snn import files
from sage_snn.data import DataError, load_data
from sage_snn.recipes import RecipeError, load_recipe
from sage_snn.runs import RunError
from sage_snn.runs.checkpoint import load_checkpoint, save_checkpoint
from sage_snn.runs.weights import read_weights
from sage_snn.studies.results import ResultError, _parts

ROOM = 2**20


class Evil:
    def __reduce__(self):
        return print, ("owned",)


@pytest.fixture
def little_room(monkeypatch):
    """As on a machine with so little memory that a test can exceed it."""
    monkeypatch.setattr(files, "_free_memory", lambda: 2 * ROOM)


def packed(content: bytes) -> bytes:
    """A torch file whose members are deflated, which torch itself never does."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as plain, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as small:
        for member in plain.infolist():
            small.writestr(member.filename, plain.read(member))
    return made.getvalue()


def torch_bomb() -> bytes:
    file = io.BytesIO()
    torch.save({"version": 2, "state": {"weights": torch.zeros(4 * ROOM // 4)}}, file)
    content = packed(file.getvalue())
    assert len(content) < ROOM / 10
    return content


def test_arrays_that_unpack_to_more_than_there_is_room_for(tmp_path, little_room):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, images=np.zeros((ROOM // 64, 16, 16), np.uint8), labels=np.arange(ROOM // 64) % 2)
    assert path.stat().st_size < ROOM / 10
    with pytest.raises(
        DataError, match=r"data\.npz cannot be read \(it unpacks to .* GB, and there is memory for .*npz"
    ):
        load_data("arrays", path)


def test_arrays_within_the_room_are_read(tmp_path, little_room):
    np.savez_compressed(tmp_path / "data.npz", images=np.zeros((40, 16, 16), np.uint8), labels=np.arange(40) % 2)
    assert len(load_data("arrays", tmp_path / "data.npz").train) == 32


def test_an_array_whose_header_tells_more_than_memory_holds(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**52, 8, 8)})
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name in ("images", "labels"):
            archive.writestr(f"{name}.npy", header.getvalue() + b"\0" * 100)
    with pytest.raises(DataError, match=r"data\.npz cannot be read \(.*\); expected an \.npz"):
        load_data("arrays", tmp_path / "data.npz")


def test_weights_and_checkpoints_that_unpack_to_more_than_there_is_room_for(tmp_path, little_room):
    content = torch_bomb()
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(RunError, match=r"weights\.pth cannot be read as weights: it unpacks to .*; give a"):
        read_weights(tmp_path / "weights.pth")
    (tmp_path / f"step-000000001-{hashlib.sha256(content).hexdigest()[:16]}.pt").write_bytes(content)
    with pytest.raises(RunError, match=r"it unpacks to .* GB.*; copy them there again"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_as_torch_writes_it_is_read_when_memory_is_short(tmp_path, little_room):
    save_checkpoint(tmp_path, 1, {"weights": torch.zeros(4 * ROOM // 4)})
    assert len(load_checkpoint(tmp_path)["weights"]) == ROOM


def test_deflated_weights_within_the_room_are_read(tmp_path):
    torch.save({"head.weight": torch.arange(3.0)}, tmp_path / "plain.pth")
    (tmp_path / "weights.pth").write_bytes(packed((tmp_path / "plain.pth").read_bytes()))
    assert torch.equal(read_weights(tmp_path / "weights.pth")["head.weight"], torch.arange(3.0))


def test_recordings_that_unpack_to_more_than_there_is_room_for(tmp_path, little_room):
    pq.write_table(pa.table({"step": pa.nulls(2**20)}), tmp_path / "epoch-0000.parquet")
    assert (tmp_path / "epoch-0000.parquet").stat().st_size < 4000
    with pytest.raises(ResultError, match=r"epoch-0000\.parquet cannot be read \(it unpacks to .*; copy it again"):
        _parts(tmp_path)


def test_a_packed_data_set_that_does_not_end(tmp_path):
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(bytes(2**20)) * 80)  # members of a file are joined
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz holds more than 67,108,864 bytes"):
        load_data("fashion-mnist", tmp_path)


@pytest.mark.parametrize("key", ["epochs", "lr", "seed", "model.depth"])
def test_a_number_of_thousands_of_digits_in_hexadecimal(tmp_path, key):
    head, _, rest = key.partition(".")
    number = "0x" + "f" * 5000
    (tmp_path / "mine.yaml").write_text(f"{head}: {{{rest}: {number}}}" if rest else f"{head}: {number}")
    with pytest.raises(RecipeError, match=r"mine\.yaml") as told:
        load_recipe(tmp_path / "mine.yaml")
    assert len(str(told.value)) < 1000


def test_torch_is_not_quoted_on_how_to_execute_a_file(tmp_path):
    torch.save({"weights": Evil()}, tmp_path / "weights.pth")
    with pytest.raises(RunError, match="nothing in it is executed") as told:
        read_weights(tmp_path / "weights.pth")
    assert "weights_only" not in str(told.value)


def test_a_zip_file_whose_names_are_none_is_left_to_who_reads_it(tmp_path):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("größe", b"")
    content = made.getvalue().replace("größe".encode(), b"gr\xff\xfe\xfde ")
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(RunError, match=r"weights\.pth cannot be read as weights"):
        read_weights(tmp_path / "weights.pth")
