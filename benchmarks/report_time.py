"""Seconds that a report of finished runs takes: reading, tables, every figure as PNG, PDF and CSV, and the page.

python benchmarks/report_time.py RUNS [REPETITIONS]     RUNS: a folder of run folders
"""

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from sage_snn.studies.report import write_report
from sage_snn.studies.results import load_runs


def main(folder: str, repetitions: str = "5") -> None:
    """Print the minimum and the median."""
    found = sorted(path.parent for path in Path(folder).glob("*/summary.json"))
    times: list[float] = []
    for _ in range(int(repetitions)):
        with TemporaryDirectory() as out:
            started = perf_counter()
            page = write_report(load_runs(found), Path(out), "Time of a report")
            times.append(perf_counter() - started)
            size = page.stat().st_size / 1e6
    print(f"{len(found)} runs: minimum {min(times):.1f} s, median {median(times):.1f} s, page {size:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
