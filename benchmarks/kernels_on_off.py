"""Does training with the kernels end where training with their torch twins ends? Digits, a pair of runs per seed.

python benchmarks/kernels_on_off.py --seeds 5 --out runs/kernels
python benchmarks/kernels_on_off.py --off events        # event-driven products against dense ones
Safe to stop and start again. Both add up in different orders, so runs drift apart: accuracies compare.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

from sage_snn.kernels import switched_off
from sage_snn.kernels.events import dense_products
from sage_snn.studies.comparison import estimate
from sage_snn.training import train

OFF = {"kernels": ("twins", switched_off), "events": ("dense products", dense_products)}


def main() -> None:
    """Train what is missing and print the paired difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--off", choices=OFF, default="kernels", help="what one of the two does without")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/kernels"))
    arguments = parser.parse_args()
    without, off = OFF[arguments.off]
    contexts = {arguments.off: nullcontext, without: off}
    differences: list[float] = []
    for seed in range(1, arguments.seeds + 1):
        top1: dict[str, float] = {}
        for name, context in contexts.items():
            with context():
                settings = {"seed": seed, "threads": 1}
                done = train("digits", arguments.out / f"{name}-{seed}", settings=settings, resume=True, quiet=True)
            top1[name] = done["last_top1"]
        differences.append(top1[arguments.off] - top1[without])
        ends = ", ".join(f"{value:.2f} % with {name}" for name, value in top1.items())
        print(f"seed {seed}: {ends}", flush=True)
    found = estimate(differences)
    print(f"difference {found.mean:+.2f} points, 95 % interval {found.low:+.2f} to {found.high:+.2f} (Student's t)")


if __name__ == "__main__":
    main()
