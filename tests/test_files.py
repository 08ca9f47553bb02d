import os
import threading

import pytest

from sage_snn import files


def test_a_file_is_read_whole_and_as_utf_8(tmp_path):
    (tmp_path / "text").write_bytes("größer\n".encode())
    assert files.read_text(tmp_path / "text") == "größer\n"
    assert files.read_bytes(tmp_path / "text", most=10) == "größer\n".encode()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "strange"
    {"pipe": os.mkfifo, "device": lambda p: p.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](path)
    caught = []

    def read():
        with pytest.raises(OSError, match="is not a regular file"):
            files.read_bytes(path)
        caught.append(True)

    reader = threading.Thread(target=read, daemon=True)  # a test that waits for ever says nothing
    reader.start()
    reader.join(10)
    assert caught


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(files.MOST_TEXT + 1)  # takes no room on the disk
    with pytest.raises(OSError, match="bytes"):
        files.read_text(tmp_path / "large")


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{", ""])
def test_whatever_is_wrong_with_a_json_text_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        files.parse_json(text)
