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

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
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


def benchmark(name, out, *options):
    command = [sys.executable, "-W", "ignore", str(BENCHMARKS / name), "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
def test_kills_of_one_process_and_of_two_ranks_end_in_the_same_bits(tmp_path):
    ended = benchmark("kills.py", tmp_path, "--kills", "6", "--kinds", "alone", "ranks")
    kept = "\n".join(path.read_text() for path in tmp_path.glob("kept/*.txt"))
    assert ended.returncode == 0, ended.stderr + kept
    (tally,) = json.loads((tmp_path / "tally.json").read_text()).values()
    assert tally["alone"]["kills"] >= 4
    assert tally["ranks"]["kills"] >= 2


@pytest.mark.slow
def test_a_disk_that_is_full_or_read_only_costs_a_message_and_no_bit(tmp_path):
    ended = benchmark("faults.py", tmp_path, "--every", "25")
    assert ended.returncode == 0, ended.stderr
    assert ", a slow disk and a jumping clock: 0 problems" in ended.stdout


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


@pytest.mark.slow
def test_ranks_that_outlive_their_launcher_keep_a_second_start_off(tmp_path):
    out = tmp_path / "run"
    launcher = subprocess.Popen(command(out, 2, epochs=6), stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoints/*.pt")):
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.2)
    ranks = children(launcher.pid)
    launcher.kill()
    launcher.wait()
    try:
        for rank in ranks:  # so that they do not end before they are met
            os.kill(rank, signal.SIGSTOP)
        second = run(out, 2, epochs=6)
    finally:
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
    assert second.returncode != 0
    assert any(f"is being trained by process {rank}" in second.stderr for rank in ranks), second.stderr
    resumed = run(out, 2, epochs=6)
    assert resumed.returncode == 0, resumed.stderr
    assert [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()] == list(range(6))
