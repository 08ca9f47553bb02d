import errno
import os
import sys

import pytest
import torch

from sage_snn.runs import RunError, checkpoint
from sage_snn.runs.checkpoint import load_checkpoint, save_checkpoint
from sage_snn.runs.folder import write_atomically


def state(value):
    return {"step": value, "weights": torch.full((3,), float(value))}


def test_the_newest_of_two_kept_checkpoints_is_loaded(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, state(step))
    assert len(list(tmp_path.glob("*.pt"))) == 2
    assert load_checkpoint(tmp_path)["step"] == 3


def test_an_empty_folder_has_none(tmp_path):
    assert load_checkpoint(tmp_path) is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_torn_checkpoint_is_reported_and_the_one_before_used(tmp_path, damage):
    save_checkpoint(tmp_path, 1, state(1))
    path = save_checkpoint(tmp_path, 2, state(2))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"truncate": bytes(content[:-100]), "flip": bytes(content), "empty": b""}[damage])
    with pytest.warns(UserWarning, match="torn or not what was written; using the one before"):
        assert load_checkpoint(tmp_path)["step"] == 1


def test_torn_checkpoints_are_set_aside_only_where_it_is_asked_for(tmp_path):
    save_checkpoint(tmp_path, 1, state(1))
    path = save_checkpoint(tmp_path, 2, state(2))
    path.write_bytes(b"torn")
    with pytest.warns(UserWarning, match="is left out"):
        load_checkpoint(tmp_path)
    assert path.exists()
    with pytest.warns(UserWarning, match="is left out"):
        load_checkpoint(tmp_path, set_aside=True)
    assert [p.suffix for p in sorted(tmp_path.iterdir())] == [".pt", ".torn"]


def test_checkpoints_of_which_none_is_whole_are_refused_and_stay(tmp_path):
    paths = [save_checkpoint(tmp_path, step, state(step)) for step in (1, 2)]
    for path in paths:
        path.write_bytes(b"torn")
    with pytest.raises(RunError, match=r"step-000000002-.*step-000000001-.*copy them there again.*new folder"):
        load_checkpoint(tmp_path, set_aside=True)
    assert sorted(tmp_path.iterdir()) == sorted(paths)


class Evil:
    def __reduce__(self):
        return os.system, ("touch owned",)


def test_a_foreign_checkpoint_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tmp_path, 1, state(1))
    save_checkpoint(tmp_path, 2, {"step": Evil()})
    with pytest.warns(UserWarning, match="cannot be read"):
        assert load_checkpoint(tmp_path)["step"] == 1
    assert not (tmp_path / "owned").exists()


def test_another_version_is_left_out(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, state(1))
    monkeypatch.setattr(checkpoint, "VERSION", 99)
    save_checkpoint(tmp_path, 2, state(2))
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="another version"):
        assert load_checkpoint(tmp_path)["step"] == 1


def test_a_full_disk_leaves_the_last_checkpoint_and_no_litter(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, state(1))

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 2, state(2))
    monkeypatch.undo()
    assert load_checkpoint(tmp_path)["step"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_an_atomic_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"long content")
    write_atomically(path, b"short")
    assert path.read_bytes() == b"short"
    assert list(tmp_path.iterdir()) == [path]


def test_a_stop_while_a_checkpoint_is_read_does_not_set_it_aside(tmp_path):
    class StoppedError(Exception):
        pass

    def stop(frame, event, _):  # as a handler of signals does: in the middle of whatever runs
        if event == "call" and frame.f_code is torch.load.__code__:
            raise StoppedError

    for step in (1, 2):
        path = save_checkpoint(tmp_path, step, state(step))
    sys.setprofile(stop)
    try:
        with pytest.raises(StoppedError):
            load_checkpoint(tmp_path, set_aside=True)
    finally:
        sys.setprofile(None)
    assert path.exists()
    assert load_checkpoint(tmp_path)["step"] == 2
