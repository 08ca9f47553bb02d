"""Compile every Triton kernel for devices that need not be here, and print what the machine code tells.

    python benchmarks/compile_gpu.py                  # all targets; minutes
    python benchmarks/compile_gpu.py sm_90 gfx942 --only float16

Ends with 1 if a kernel spills, loads most of its bytes less than 16 at a time where it should not, or rounds unlike
its twin.
"""

import argparse
import sys
import time

from sage_snn.kernels.gpu.compiled import TARGETS, Row, compiled, variants


def line(row: Row) -> str:
    loads = " ".join(f"{count}x{width}" for width, count in sorted(row.loads.items(), reverse=True))
    exact = " ".join(
        f"{count} {name}" for name, count in row.arithmetic.items() if ".rn." in name and "fma" not in name
    )
    told = "; ".join(row.problems) or "ok"
    numbers = f"{row.registers:5}{row.spilled:8}{row.shared:8}"
    return f"{row.target:8}{row.variant.name:58}{numbers}  {loads:20}{exact:36}{told}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--only", default="", help="kernels whose names have this in them")
    arguments = parser.parse_args()
    print(f"{'target':8}{'kernel':58}{'regs':>5}{'spilled':>8}{'shared':>8}  {'loads x bytes':20}{'IEEE':36}")
    wrong, chosen = 0, [variant for variant in variants() if arguments.only in variant.name]
    for target in arguments.targets:
        start, count = time.perf_counter(), 0
        for row in compiled(target, chosen):
            print(line(row), flush=True)
            wrong, count = wrong + bool(row.problems), count + 1
        print(f"{target}: {count} kernels in {time.perf_counter() - start:.0f} s", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
