import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from event_files import CLASSES, cifar10_dvs, dvs128_gesture, events, gesture_events, n_mnist, write_aedat2

from sage_snn.data import DataError, Loader, Recordings, event_sets, load_data, pipeline
from sage_snn.data.readers import readers


def counted(rows, frames, size):
    """By hand: equally many events a frame, what is left over in the last."""
    counts, share = torch.zeros(frames, 2, size, size), len(rows) // frames
    for number, (_, x, y, p) in enumerate(rows.tolist()):
        counts[min(number // share, frames - 1), p, y, x] += 1
    return counts


def test_n_mnist_is_read_as_it_unpacks(tmp_path):
    data = load_data("n-mnist", n_mnist(tmp_path), time_steps=7)
    assert (len(data.train), len(data.test), data.classes, data.is_events) == (20, 10, tuple("0123456789"), True)
    assert data.shape == {"classes": 10, "size": 34, "channels": 2}
    assert data.train.labels.tolist() == [digit for digit in range(10) for _ in range(2)]
    assert data.train.item(13).equal(counted(events((False, 6, 1)), 7, 34))
    assert data.test.item(9).equal(counted(events((True, 9, 0)), 7, 34))


def test_cifar10_dvs_is_read_as_it_unpacks_and_the_first_nine_tenths_are_trained_on(tmp_path):
    (tmp_path / "airplane.zip").write_bytes(b"the archive may lie beside its folder")
    data = load_data("cifar10-dvs", cifar10_dvs(tmp_path, 11), time_steps=4)
    assert (len(data.train), len(data.test), data.classes, data.size) == (100, 10, CLASSES, 128)
    order = sorted(range(11), key=str)  # as SpikingJelly and so the authors have them: 0, 1, 10, 2, ...
    for index in (2, 13, 99):
        assert data.train.item(index).equal(counted(events((index // 10, order[index % 10]), size=128), 4, 128))
    assert data.test.item(3).equal(counted(events((3, order[10]), size=128), 4, 128))


def test_dvs128_gesture_is_cut_at_its_labels(tmp_path):
    data = load_data("dvs128-gesture", dvs128_gesture(tmp_path) / "DvsGesture", time_steps=2)
    assert (len(data.train), len(data.test), len(data.classes), data.size) == (11, 11, 11, 128)
    assert data.train.labels.tolist() == list(range(11))  # by number: by name, 10 comes after 1
    for part, held in (("train", data.train), ("test", data.test)):
        rows = gesture_events(part)
        of_ten = rows[(rows[:, 0] >= 10 * 9000 + 500) & (rows[:, 0] < 11 * 9000)]
        assert held.item(10).equal(counted(of_ten, 2, 128))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return n_mnist(tmp_path_factory.mktemp("n-mnist"))


def test_spikingjelly_reads_the_same_frames_from_the_folder_that_was_made(small):
    ours = load_data("n-mnist", small, time_steps=3).train
    theirs = readers().NMNIST(small, train=True, data_type="frame", frames_number=3, split_by="number")
    assert [label for _, label in theirs.samples] == ours.labels.tolist()
    assert all(np.array_equal(ours.item(i).numpy(), theirs[i][0]) for i in range(len(ours)))
    shutil.rmtree(small / "frames_number_3_split_by_number")


def test_the_folder_is_made_once_and_is_all_that_is_needed(tmp_path, small, capfd):
    tmp_path = tmp_path / "[/red]"  # no markup
    shutil.copytree(small, tmp_path, ignore=shutil.ignore_patterns("events_np"))
    (tmp_path / ".events_np-killed").mkdir()
    first = load_data("n-mnist", tmp_path, time_steps=2).train
    assert capfd.readouterr().err == f"n-mnist: reading the recordings in {tmp_path}, once\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Test", "Train", "events_np"]
    shutil.rmtree(tmp_path / "Train")
    again = load_data("n-mnist", tmp_path, time_steps=2).train
    assert capfd.readouterr().err == ""
    assert again.item(5).equal(first.item(5))


def test_batches_have_time_first_and_subsets_are_recordings(small):
    data = load_data("n-mnist", small, time_steps=3, train_images=10)
    assert isinstance(data.train, Recordings)
    assert data.train.labels.tolist() == list(range(10))
    batch = next(Loader(data.train, pipeline.test_transform(data), 4).epoch(0))
    assert batch.images.shape == (3, 4, 2, 34, 34)
    assert batch.images[:, 2].equal(data.train.item(2))


@pytest.mark.parametrize("name", ["n-mnist", "cifar10-dvs", "dvs128-gesture"])
def test_missing_files_are_told_with_where_they_come_from_and_go(tmp_path, name):
    with pytest.raises(DataError, match=rf"{name}: .* lacks .*; unpack .* from https://\S+ there$"):
        load_data(name, tmp_path, time_steps=2)
    with pytest.raises(DataError, match=r"needs its data folder \(--data-dir FOLDER\); unpack"):
        load_data(name, time_steps=2)
    with pytest.raises(DataError, match="cannot be downloaded"):
        load_data(name, tmp_path, time_steps=2, download=True)
    with pytest.raises(DataError, match="how many frames"):
        load_data(name, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_damaged_recording_ends_in_one_line_and_leaves_nothing_behind(tmp_path):
    cifar10_dvs(tmp_path, 1)
    (tmp_path / "cat" / "cifar10_cat_0.aedat").write_bytes(b"#!AER-DAT2.0\r\n" + bytes(12))
    damaged = re.escape(str(tmp_path / "cat" / "cifar10_cat_0.aedat"))
    with pytest.raises(
        DataError, match=rf"^cifar10-dvs: {damaged} cannot be read \(odd number.*\); unpack .* anew"
    ) as told:
        load_data("cifar10-dvs", tmp_path, time_steps=2)
    assert "\n" not in str(told.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(CLASSES)


@pytest.mark.parametrize("name", ["trials_to_train.txt", "trials_to_test.txt"])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{victim}", "is no plain name"),
        ("../../precious.aedat", "is no plain name"),
        ("sub/precious.aedat", "is no plain name"),
        ("..\\precious.aedat", "is no plain name"),
        (".precious.aedat", "is no plain name"),
        ("user01_led.txt", "is no plain name"),
        ("user01\x1b_led.aedat", "is no plain name"),
        ("user01\rled.aedat", "is no plain name"),
        ("x" * 5000 + ".aedat", "is no plain name"),
        ("gone.aedat", r"gone\.aedat and gone_labels\.csv is not in"),
        ("bare.aedat", r"bare_labels\.csv is not in"),
    ],
)
def test_no_line_of_a_list_of_gestures_leads_out_of_the_folder(tmp_path, name, line, told):
    place = dvs128_gesture(tmp_path / "a" / "data") / "DvsGesture"
    for folder in (tmp_path, tmp_path / "a", place, place / "sub"):
        folder.mkdir(exist_ok=True)
        for mine in ("precious.aedat", "precious_labels.csv"):  # a recording that can be read
            shutil.copy(place / mine.replace("precious", "user01_led"), folder / mine)
        (folder / "precious_0.npz").write_bytes(b"of the user")
    shutil.copy(place / "user01_led.aedat", place / "bare.aedat")
    with (place / name).open("a") as file:
        file.write("\n" + line.format(victim=tmp_path / "precious.aedat") + "\n")
    with pytest.raises(DataError, match=rf"^dvs128-gesture: .*{name}, line 3: .*{told}.*; unpack .* anew$") as error:
        load_data("dvs128-gesture", place, time_steps=2)
    assert max(map(len, str(error.value).splitlines())) < 600
    assert {path.read_bytes() for path in tmp_path.rglob("precious_0.npz")} == {b"of the user"}
    assert len(list(tmp_path.rglob("*.npz"))) == 4


@pytest.mark.parametrize(
    ("content", "told"), [(None, "cannot be read"), (b"\xff", "cannot be read"), (b"\n", "no rec")]
)
def test_a_list_of_gestures_that_is_none_is_told(tmp_path, content, told):
    path = dvs128_gesture(tmp_path) / "DvsGesture" / "trials_to_test.txt"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=rf"trials_to_test\.txt .*{told}.*; unpack .* anew"):
        load_data("dvs128-gesture", tmp_path, time_steps=2)


def test_a_folder_without_recordings_is_told_and_not_made_ready(tmp_path):
    path = dvs128_gesture(tmp_path) / "DvsGesture" / "user24_led_labels.csv"
    path.write_text("class,startTime_usec,endTime_usec\n# 1,0,9\n")
    with (
        pytest.warns(UserWarning, match="no data"),
        pytest.raises(DataError, match=r"gave no recording of test; unpack"),
    ):
        load_data("dvs128-gesture", tmp_path, time_steps=2)
    assert [place.name for place in tmp_path.iterdir()] == ["DvsGesture"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "zeros"])
def test_a_recording_that_never_ends_is_not_waited_for(tmp_path, make):
    n_mnist(tmp_path)
    make(tmp_path / "Test" / "3" / "zzz.bin")
    with pytest.raises(DataError, match=r"^n-mnist: .*/Test/3/zzz\.bin is no file .*; remove it, or unpack .* anew"):
        load_data("n-mnist", tmp_path, time_steps=2)


@pytest.mark.parametrize(
    ("name", "content"),
    [("user01_led_labels.csv", "class,start,end\n12,0,9\n1,0,9\n"), ("user24_led_labels.csv", "x\n" + "y" * 5000)],
)
def test_a_table_of_labels_that_is_damaged_is_told_by_name_and_in_short(tmp_path, name, content):
    path = dvs128_gesture(tmp_path) / "DvsGesture" / name
    path.write_text(content)
    with pytest.raises(DataError, match=rf"^dvs128-gesture: {re.escape(str(path))} cannot be read") as told:
        load_data("dvs128-gesture", tmp_path, time_steps=2)
    assert "extract" not in str(told.value)
    assert len(str(told.value)) < 900
    assert [place.name for place in tmp_path.iterdir()] == ["DvsGesture"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    n_mnist(tmp_path)

    def refused(*_, **__):  # root may write anywhere
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(DataError, match="make the folder writable"):
        load_data("n-mnist", tmp_path, time_steps=2)


def test_what_spikingjelly_left_unfinished_is_not_taken_for_whole(tmp_path):
    (tmp_path / "events_np").mkdir()
    (tmp_path / "events_np.building").touch()
    with pytest.raises(DataError, match="did not finish"):
        load_data("n-mnist", tmp_path, time_steps=2)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"x": [200]}, "x goes from 200 to 200, outside 34 pixels"),
        ({"y": [-1]}, "y goes from -1 to -1"),
        ({"x": [1, 2]}, "one of each for every event"),
        ({"x": [0.5]}, "whole numbers"),
        ({"x": None}, "cannot be read"),
    ],
)
def test_a_file_that_holds_no_events_is_told_by_name(tmp_path, arrays, told):
    fields = {name: value for name, value in ({key: [1] for key in "txyp"} | arrays).items() if value is not None}
    np.savez(tmp_path / "a.npz", **{name: np.array(value) for name, value in fields.items()})
    held = Recordings([tmp_path / "a.npz"], torch.zeros(1, dtype=torch.int64), 34, 2)
    with pytest.raises(DataError, match=f"a.npz.*{told}"):
        held.item(0)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x93NUMPY"])
def test_a_torn_file_is_told_by_name(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    held = Recordings([tmp_path / "a.npz", Path("gone.npz")], torch.zeros(2, dtype=torch.int64), 34, 2)
    with pytest.raises(DataError, match=r"a\.npz cannot be read"):
        held.item(0)
    with pytest.raises(DataError, match=r"gone\.npz is gone"):
        held.item(1)


def test_a_recording_with_fewer_events_than_frames_is_in_the_last_one(tmp_path):
    np.savez(tmp_path / "a.npz", **dict.fromkeys("txyp", np.array([1])))
    frames = Recordings([tmp_path / "a.npz"], torch.zeros(1, dtype=torch.int64), 4, 3).item(0)
    assert frames.nonzero().tolist() == [[2, 1, 1, 1]]


@pytest.mark.slow
def test_spikingjellys_readers_are_there_whatever_torchaudio_thinks_of_torch():
    held = "import sys; from sage_snn.data.readers import readers; first = readers(); assert first is readers(); "
    held += "assert getattr(sys.modules.get('torchaudio'), '__file__', 'hidden'); print(first.NMNIST.get_H_W())"
    refused = "import sys; sys.modules['torchaudio._extension'] = None; "  # as a build for another CUDA does
    hidden = "import sys; sys.modules['torchaudio'] = None; "  # as our module for transformers does with such a build
    for before in ("", refused, hidden):
        done = subprocess.run([sys.executable, "-c", before + held], capture_output=True, text=True, check=False)
        assert done.stdout == "(34, 34)\n", done.stderr


def test_the_second_process_waits_and_makes_nothing(tmp_path, monkeypatch):
    cifar10_dvs(tmp_path, 2)
    write_aedat2(tmp_path / "cat" / "cifar10_cat_1.aedat", events(0, size=128))

    def made_meanwhile(*_):
        raise AssertionError("made twice")

    alone = event_sets._alone

    def slow(folder):
        for name in CLASSES:
            (folder / "events_np" / name).mkdir(parents=True)
        return alone(folder)

    monkeypatch.setattr(event_sets, "_alone", slow)
    monkeypatch.setattr(event_sets, "_make", made_meanwhile)
    with pytest.raises(DataError, match="no training image"):
        load_data("cifar10-dvs", tmp_path, time_steps=2)
