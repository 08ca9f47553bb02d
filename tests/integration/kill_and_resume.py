"""Kill a short run with SIGKILL at random moments, resume it, and compare with the uninterrupted one.

python tests/integration/kill_and_resume.py --times 20
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

COMMAND = [sys.executable, "-W", "ignore", "-m", "sage_snn", "train", "digits", "--resume"]
SETTINGS = [
    "epochs=6",
    "warmup_epochs=0",
    "max_steps_per_epoch=8",
    "train_images=200",
    "test_images=40",
    "batch_size=16",
]
SETTINGS += [
    "model.dim=16",
    "model.heads=2",
    "model.time_steps=2",
    "policy.warmup_epochs=0",
    "policy.dead_zone=0",
    "threads=1",
]


def start(folder: Path) -> subprocess.Popen:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return subprocess.Popen([*COMMAND, "--out", str(folder), *settings], stderr=subprocess.PIPE, text=True)


def finish(folder: Path) -> float:
    """Train to the end; the seconds it took, within which kills can hit something."""
    started = time.monotonic()
    process = start(folder)
    _, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"training failed:\n{errors}")
    return time.monotonic() - started


def kill_once(folder: Path, within: float) -> bool:
    """Start or resume, kill at a random moment; False when the run was faster."""
    process = start(folder)
    time.sleep(random.uniform(0.3, 1.0) * within)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def compare(times: int, seed: int = 0) -> None:
    """Kill `times` times in all, over as many runs as it takes, and check every finished run."""
    random.seed(seed)
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        within = finish(whole)
        expected = load_file(whole / "model.safetensors")
        killed = runs = 0
        while killed < times:
            folder, runs = Path(name) / f"run-{runs}", runs + 1
            for _ in range(min(3, times - killed)):
                killed += kill_once(folder, within)
            finish(folder)
            weights = load_file(folder / "model.safetensors")
            assert all(torch.equal(weights[k], expected[k]) for k in expected), f"{folder.name} differs"
        print(f"{killed} kills in {runs} runs: every resumed run ended in the same weights, bit for bit")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    compare(arguments.times, arguments.seed)
