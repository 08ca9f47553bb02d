"""A disk that is full, or turns read-only, at every single write of a short run; a slow one; a clock that jumps.

    python benchmarks/faults.py --out FOLDER            # every write; minutes
    python benchmarks/faults.py --every 10 --out FOLDER

From the n-th change of a file on (write, fsync, rename, mkdir, open), every change of the run's folder fails, whoever
asks for it: `bad_disk.cpp` stands between the process and the system. The run has to end in one line that says what to
do; the same run without the fault has to go on to the same files as one that never had any.
"""

import argparse
import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from kills import content
from small_runs import SMALL

from sage_snn.runs import RunError
from sage_snn.training import train

SHORT = SMALL | {"epochs": 2, "max_steps_per_epoch": 2, "observe.temperatures": [0.25]}
HERE = Path(__file__).parent


def disk() -> ctypes.CDLL:
    """What stands between this process and its disk."""
    return ctypes.CDLL(os.environ["LD_PRELOAD"])


def life(out: Path, fault: Callable[[], object]) -> tuple[str, int]:
    """What a run says at its end, in a process of its own with this fault, and how often it changed files.

    A traceback that anybody printed meanwhile, be it a thread of a library, is said instead.
    """
    reader, writer = os.pipe()
    with tempfile.TemporaryFile("w+", errors="replace") as printed:  # on a disk that is well
        if (child := os.fork()) == 0:
            os.dup2(printed.fileno(), 2)
            _live(out, fault, writer)
        os.close(writer)
        with open(reader) as pipe:
            counted, _, told = pipe.read().partition("\n")
        os.waitpid(child, 0)
        printed.seek(0)
        noise = printed.read()
    return noise if "Traceback" in noise else told, int(counted or 0)


def _live(out: Path, fault: Callable[[], object], writer: int) -> None:
    told = "finished"
    try:
        disk().bad_disk_from(0, 0)  # what was counted before this life is not of it
        fault()
        train("digits", out, settings=SHORT, resume=True, quiet=True)
    except RunError as error:
        told = f"error: {error}"
    except BaseException:
        told = traceback.format_exc()
    counted = disk().bad_disk_counted()
    disk().bad_disk_from(0, 0)
    os.write(writer, f"{counted}\n{told}".encode())
    os._exit(0)


def trouble(out: Path, whole: Path, number: int, code: int) -> str | None:
    """What is wrong with how a run bears a disk that fails from its n-th change on, and with how it goes on."""
    shutil.rmtree(out, ignore_errors=True)
    told, _ = life(out, lambda: disk().bad_disk_from(number, code))
    if told == "finished" or not told.startswith("error: ") or "\n" in told or os.strerror(code) not in told:
        return f"change {number} with {errno.errorcode[code]}: {told}"
    again, _ = life(out, lambda: None)
    if again != "finished":
        return f"change {number} with {errno.errorcode[code]}, when it goes on: {again}"
    return None if content(out) == content(whole) else f"change {number} with {errno.errorcode[code]}: other files"


def inner(out: Path, every: int) -> list[str]:
    """Problems of all faults; in a process that has the library loaded."""
    whole, run = out / "whole", out / "run"
    shutil.rmtree(whole, ignore_errors=True)
    train("digits", whole, settings=SHORT | {"epochs": 1}, quiet=True)  # imports everything
    shutil.rmtree(whole)
    told, counted = life(whole, lambda: None)
    assert told == "finished", told
    problems, tried = list[str](), 0
    for code in (errno.ENOSPC, errno.EROFS):
        for number in range(1, counted + 1, every):
            tried += 1
            problems += filter(None, [trouble(run, whole, number, code)])
    for name, fault in {"slow": lambda: disk().bad_disk_slow(20_000), "clock": lambda: disk().bad_clock(1)}.items():
        shutil.rmtree(run, ignore_errors=True)
        told, _ = life(run, fault)
        if told != "finished" or content(run) != content(whole):
            problems.append(f"{name}: {told}")
    print(f"{counted} changes of files, {tried} faults, a slow disk and a jumping clock: {len(problems)} problems")
    return problems


def main() -> None:
    """Compile, run in a process that has the library, print; the exit code is 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="not at every change, but at every n-th")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    out = given.out.resolve()
    if os.environ.get("BAD_DISK") == f"{out}/":
        problems = inner(out, given.every)
        sys.exit("\n".join(problems) or 0)
    out.mkdir(parents=True, exist_ok=True)
    library = out / "bad_disk.so"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", str(HERE / "bad_disk.cpp"), "-o", str(library), "-ldl"], check=True
    )
    there = os.environ | {"LD_PRELOAD": str(library), "BAD_DISK": f"{out}/"}
    sys.exit(subprocess.run([sys.executable, "-W", "ignore", *sys.argv], env=there, check=False).returncode)


if __name__ == "__main__":
    main()
