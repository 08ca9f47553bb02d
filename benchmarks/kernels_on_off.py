"""Does training with the kernels end where training with their torch twins ends? Digits, a pair of runs per seed.

python benchmarks/kernels_on_off.py --seeds 5 --out runs/kernels
Safe to stop and start again. Kernels and twins add up in different orders, so runs drift apart: accuracies compare.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

from sage_snn.kernels import switched_off
from sage_snn.studies.comparison import estimate
from sage_snn.training import train

PLACES = {"kernels": nullcontext, "twins": switched_off}


def main() -> None:
    """Train what is missing and print the paired difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/kernels"))
    arguments = parser.parse_args()
    differences: list[float] = []
    for seed in range(1, arguments.seeds + 1):
        top1: dict[str, float] = {}
        for name, place in PLACES.items():
            with place():
                settings = {"seed": seed, "threads": 1}
                done = train("digits", arguments.out / f"{name}-{seed}", settings=settings, resume=True, quiet=True)
            top1[name] = done["last_top1"]
        differences.append(top1["kernels"] - top1["twins"])
        print(f"seed {seed}: {top1['kernels']:.2f} % with kernels, {top1['twins']:.2f} % with twins", flush=True)
    found = estimate(differences)
    print(f"difference {found.mean:+.2f} points, 95 % interval {found.low:+.2f} to {found.high:+.2f} (Student's t)")


if __name__ == "__main__":
    main()
