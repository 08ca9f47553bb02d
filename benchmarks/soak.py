"""Hours of trainings, of studies or of reports in one process: are memory, file handles and threads flat?

    python benchmarks/soak.py training --minutes 360 --out FOLDER
    python benchmarks/soak.py study    --minutes 360 --out FOLDER
    python benchmarks/soak.py report   --minutes 360 --out FOLDER
    python benchmarks/soak.py --tell FOLDER               # the figures of all that is there

Every round does the whole work again in a new folder, and adds a line to FOLDER/<kind>-<process>.csv. What counts is
the growth from the rounds after the first tenth, when everything is imported and every cache is filled, to the last.
"""

import argparse
import gc
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from small_runs import STUDY, commit_here

from sage_snn.studies.report import write_report
from sage_snn.studies.results import load_runs
from sage_snn.studies.runner import run_study
from sage_snn.studies.study import parse_study
from sage_snn.training import train

TRAINING = STUDY["settings"] | {"epochs": 10, "observe.temperatures": [0.25]}
COLUMNS = ("round", "seconds", "memory_mb", "handles", "threads")


def training(folder: Path) -> None:
    train("digits", folder / "run", settings=TRAINING, quiet=True)


def study(folder: Path) -> None:
    run_study(parse_study(STUDY), folder, progress=False)


def report(folder: Path) -> None:
    """Of runs that are trained once, beside the folder."""
    runs = run_study(parse_study(STUDY), folder.with_name("report-runs"), progress=False)
    write_report(load_runs(runs), folder, title="soak", study=parse_study(STUDY))


KINDS: dict[str, Callable[[Path], None]] = {kind.__name__: kind for kind in (training, study, report)}


def here() -> tuple[float, int, int]:
    """Resident memory in MB, open handles and threads of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    counts = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, *counts


def soak(kind: str, out: Path, minutes: float) -> Path:
    """Rounds until the time is over; the table that was written."""
    out.mkdir(parents=True, exist_ok=True)
    table, began, number = out / f"{kind}-{os.getpid()}.csv", time.monotonic(), 0
    table.write_text(f"# commit {commit_here()}\n{','.join(COLUMNS)}\n")
    while time.monotonic() - began < 60 * minutes:
        folder = out / f"{kind}-{os.getpid()}"
        KINDS[kind](folder)
        shutil.rmtree(folder)
        number += 1
        memory, handles, threads = here()
        with table.open("a") as file:
            file.write(f"{number},{time.monotonic() - began:.1f},{memory:.1f},{handles},{threads}\n")
    return table


def told(table: Path) -> str:
    """One line: how long, how many rounds, and the medians of a fifth of the rounds, early and at the end."""
    first, _, *lines = table.read_text().splitlines()
    rows = [tuple(map(float, line.split(","))) for line in lines]
    if len(rows) < 10:
        return f"{table.name}: {len(rows)} rounds are too few to tell"
    fifth = max(1, len(rows) // 5)
    early, late = rows[len(rows) // 10 :][:fifth], rows[-fifth:]
    moved = [
        f"{name} {statistics.median(row[at] for row in early):.4g} -> {statistics.median(row[at] for row in late):.4g}"
        for at, name in enumerate(COLUMNS)
        if at >= 2
    ]
    return f"{table.name} ({first[2:]}): {rows[-1][1] / 60:.0f} minutes, {len(rows)} rounds; {', '.join(moved)}"


def main() -> None:
    """Parse, soak, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=KINDS)
    parser.add_argument("--minutes", type=float, default=360)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tell", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.tell is None and (given.kind is None or given.out is None):
        parser.error("give a kind and --out FOLDER, or --tell FOLDER")
    tables = sorted(given.tell.glob("*.csv")) if given.tell else [soak(given.kind, given.out.absolute(), given.minutes)]
    for table in tables:
        print(told(table))


if __name__ == "__main__":
    main()
