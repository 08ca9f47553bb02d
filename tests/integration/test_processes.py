import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

_spec = importlib.util.spec_from_file_location("kill_and_resume", Path(__file__).with_name("kill_and_resume.py"))
kill_and_resume = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kill_and_resume)

SETTINGS = {
    "epochs": 3,
    "warmup_epochs": 0,
    "batch_size": 32,
    "model.dim": 32,
    "model.heads": 4,
    "model.time_steps": 2,
    "policy.warmup_epochs": 0,
    "policy.dead_zone": 0,
    "threads": 1,
}


def command(out, processes=None, **settings):
    chosen = [part for key, value in (SETTINGS | settings).items() for part in ("--set", f"{key}={value}")]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes else []
    return [sys.executable, *launch, "-m", "sage_snn", "train", "digits", "--out", str(out), "--resume", *chosen]


def run(*args, **settings):
    return subprocess.run(command(*args, **settings), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_kill_9_and_resume_three_times_ends_in_the_same_bits(capsys):
    kill_and_resume.compare(times=3)
    assert "3 kills" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_train_like_one_with_the_same_global_batch(tmp_path):
    alone, together = run(tmp_path / "one"), run(tmp_path / "two", 2)
    assert alone.returncode == 0, alone.stderr
    assert together.returncode == 0, together.stderr
    results = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two")]
    assert abs(results[0]["last_top1"] - results[1]["last_top1"]) < 20  # a point is 3.6 test images
    losses = [
        [json.loads(line)["train_loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert losses[1][-1] < losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    signals = pd.read_parquet(tmp_path / "two" / "signals" / "epoch-0002.parquet")
    assert (signals["slope"] != 4).any()


def children(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.slow
def test_when_one_rank_dies_the_other_stops_soon_and_the_run_resumes(tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(command(out, 2, epochs=12), stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoints/*.pt")):
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.2)
    victim = max(children(process.pid))
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "another process" in errors
    assert "--resume" in errors
    resumed = run(out, 2, epochs=12)
    assert resumed.returncode == 0, resumed.stderr
    assert [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()] == list(range(12))


@pytest.mark.slow
def test_of_two_processes_that_resume_a_run_at_once_the_second_is_refused(tmp_path):
    out = tmp_path / "run"
    first = subprocess.Popen(command(out, epochs=12), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / "recipe.yaml").exists():
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.1)
    second = run(out, epochs=12)
    first.terminate()
    _, errors = first.communicate(timeout=60)
    assert second.returncode == 1
    assert f"is being trained by process {first.pid} on {socket.gethostname()}" in second.stderr
    assert "go on with --resume" in errors  # the first was not disturbed
    assert run(out, epochs=12).returncode == 0
