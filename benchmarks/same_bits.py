"""Digests of what small real trainings end with, to show that a change of the code changes no result.

    PYTHONPATH=OLD/src python benchmarks/same_bits.py --data-dir DATA --out old.json
    python benchmarks/same_bits.py --data-dir DATA --against old.json

Each training is one process with one thread, with the kernels and without them; without --data-dir the digits only.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

POLICIES = ("fixed", "learnable", "sage")
DIGITS = {"epochs": 2, "threads": 1}
CIFAR = {"epochs": 1, "warmup_epochs": 0, "max_steps_per_epoch": 30, "test_images": 200, "threads": 1}
EARLY = {"policy.warmup_epochs": 0.3}  # or 30 steps would end before a slope moves
TIMES = ("seconds", "images_per_second")

CODE = """
import json, sys
from sage_snn.training import train
recipe, out, settings = json.loads(sys.argv[1])
train(recipe, out, settings=settings, quiet=True)
"""


def trainings(data_dir: str | None) -> dict[str, tuple[str, dict[str, object]]]:
    """Name -> recipe and settings."""
    plan = {f"digits {policy}": ("digits", DIGITS | {"policy.kind": policy}) for policy in POLICIES}
    if data_dir is not None:
        for policy in POLICIES:
            settings = CIFAR | EARLY | {"policy.kind": policy, "data_dir": str(Path(data_dir).absolute())}
            plan[f"cifar10-mini {policy}"] = ("cifar10-mini", settings)
    return plan


def digests(recipe: str, settings: dict[str, object], kernels: str) -> dict[str, str]:
    """Of weights, of metrics without times, and of the signals, after a training in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        arguments = json.dumps([recipe, str(out), settings])
        environment = os.environ | {"SAGE_SNN_KERNELS": kernels, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-W", "ignore", "-c", CODE, arguments], env=environment, check=True)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        kept = [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
        return {
            "weights": _digest((out / "model.safetensors").read_bytes()),
            "metrics": _digest(json.dumps(kept, sort_keys=True).encode()),
            "signals": _digest(_signals(out).encode()),
        }


def _signals(out: Path) -> str:
    import pandas as pd

    return "".join(pd.read_parquet(part).to_json() for part in sorted((out / "signals").glob("*.parquet")))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder of CIFAR-10")
    parser.add_argument("--out", type=Path, help="write the digests")
    parser.add_argument("--against", type=Path, help="digests of another version")
    options = parser.parse_args()
    digest_of: dict[str, dict[str, str]] = {}
    for kernels in ("on", "off"):
        for name, (recipe, settings) in trainings(options.data_dir).items():
            digest_of[f"{name}, kernels {kernels}"] = result = digests(recipe, settings, kernels)
            print(f"{name}, kernels {kernels}: {result}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(digest_of, indent=2) + "\n")
    if options.against:
        before = json.loads(options.against.read_text())
        different = [name for name, result in digest_of.items() if before.get(name) != result]
        sys.exit(f"different: {', '.join(different)}" if different else print(f"{len(digest_of)} trainings: same bits"))


if __name__ == "__main__":
    main()
