"""What goes wrong around a training ends in a line with the cure, and the run goes on to the same bits."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sage_snn.data import DataError
from sage_snn.training import loop as loop_module
from sage_snn.training import train

RANK = Path(__file__).with_name("faulty_rank.py")


def workers_of(tiny):
    """Settings whose images are augmented one by one, so that there are workers."""
    return tiny | {"workers": 1, "augmentation.flip": 0.5}


def test_a_data_worker_that_dies_costs_a_message_and_no_bit(tmp_path, tiny, monkeypatch, same_run):
    settings, original, count = workers_of(tiny), loop_module.Training._backward, []

    def backward(self, batches):
        count.append(1)
        if len(count) == 5:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid, signal.SIGKILL)
            time.sleep(0.2)
        return original(self, batches)

    train("digits", tmp_path / "whole", settings=settings, quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(loop_module.Training, "_backward", backward)
        with pytest.raises(DataError, match=r"a process that makes batches died .* go on with --resume"):
            train("digits", tmp_path / "run", settings=settings, quiet=True)
    train("digits", tmp_path / "run", settings=settings, quiet=True, resume=True)
    assert same_run(tmp_path / "whole", tmp_path / "run")


def trained_by_two(folder, fault):
    """The exit code of two processes, of which the second has this fault in its fourth step, and what they said."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-W", "ignore", *launch, str(RANK), str(folder), fault]
    impatient = os.environ | {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2"
    }  # a stopped process does not hear that it is to end
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=impatient)
    return ended.returncode, ended.stderr


@pytest.mark.slow
def test_a_rank_that_lags_is_waited_for_and_one_that_hangs_is_given_up(tmp_path, same_run):
    code, said = trained_by_two(tmp_path / "whole", "lags")
    assert code == 0, said
    code, said = trained_by_two(tmp_path / "run", "hangs")
    assert code != 0
    assert "error: another process of this run is gone" in said
    assert "go on with --resume" in said
    code, said = trained_by_two(tmp_path / "run", "none")
    assert code == 0, said
    assert same_run(tmp_path / "whole", tmp_path / "run")
