import os
import signal
import socket
import subprocess
import sys

import pytest

from sage_snn.runs import RunError, RunFolder, lock
from sage_snn.runs.lock import locked
from sage_snn.training import train

HOLD = """
import os, sys, time
from sage_snn.runs import RunFolder
from sage_snn.runs.lock import locked
with locked(RunFolder(sys.argv[1])):
    if os.fork() == 0:  # a worker, which outlives the process that is killed; it speaks once it has let go of the lock
        print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of the folder, in a group with its worker."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_second_process_is_refused_with_the_name_of_the_first(holder, tmp_path):
    words = f"is being trained by process {holder.pid} on {socket.gethostname()}; wait for it, or stop it"
    with pytest.raises(RunError, match=words), locked(RunFolder(tmp_path)):
        pytest.fail("both are inside")


def test_a_dead_process_holds_nothing_even_if_its_workers_live(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert (tmp_path / ".lock").exists()  # left behind, and in nobody's way
    for _ in range(2):
        with locked(RunFolder(tmp_path)):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_that_its_owner_removed_meanwhile_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    real, opened = os.open, []

    def slow(path, *options):
        opened.append(path)
        descriptor = real(path, *options)
        if len(opened) == 1:  # the owner leaves between our opening and our locking
            os.unlink(path)
        return descriptor

    monkeypatch.setattr(os, "open", slow)
    with locked(RunFolder(tmp_path)):
        assert len(opened) == 2
        with pytest.raises(RunError, match=f"process {os.getpid()}"), locked(RunFolder(tmp_path)):
            pass


def test_without_locks_nobody_is_kept_off_and_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    with locked(RunFolder(tmp_path)), locked(RunFolder(tmp_path)):
        assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_being_trained_is_refused_and_left_alone(tmp_path, tiny, interrupted):
    folder = interrupted(tmp_path / "run", tiny)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with locked(RunFolder(folder)), pytest.raises(RunError, match="is being trained by process"):
        train("digits", folder, settings=tiny, resume=True, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert train("digits", folder, settings=tiny, resume=True, quiet=True)["finished"]
    assert not (folder / ".lock").exists()


def test_a_folder_with_nothing_but_a_lock_of_the_dead_is_a_runs(tmp_path, tiny):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("{}")
    assert train("digits", tmp_path / "run", settings=tiny | {"epochs": 1}, resume=True, quiet=True)["epochs"] == 1
