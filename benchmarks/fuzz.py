"""Bad input by the thousand: real files and commands, mutated; each ends well or in an error of the user's.

    python benchmarks/fuzz.py --cases 1000000 --out FOLDER    # run it again to go on
    python benchmarks/fuzz.py --cases 1000000 --kinds events idx --out FOLDER    # those of them that are of these kinds
    python benchmarks/fuzz.py --case 4711 --out FOLDER        # one case again, with its traceback

Case n depends on n alone. A case fails by any other exception, by an error that does not name the file and the cure or
that is too long (messages.py), by a crash, by taking longer than SECONDS, by code that a file had executed, or by a
file of the user's that is gone or was written over (one that is set aside, under another name, is not lost). Inputs
that failed are kept in FOLDER/failed; FOLDER/state.json counts cases, and of each kind those that ended well or in an
error. What is mutated is in kinds.py.
Two processes share the work as `--cases 500000` and `--from 500000 --cases 1000000`, each with a folder of its own.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from kinds import Fuzzer
from messages import is_users, untold

SECONDS, BATCH, MEMORY = 20, 1000, 12 * 2**30
# Of this process's own time, and, for what only waits, of everybody's, on a machine that has other things to do.
TIMERS = ((signal.ITIMER_PROF, signal.SIGPROF, SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, 30 * SECONDS))


def problem_of(fuzzer: Fuzzer, number: int, scratch: Path) -> str | None:
    """What went wrong in a case; None if nothing did."""
    return _judged(fuzzer, number, scratch)[1]


def _judged(fuzzer: Fuzzer, number: int, scratch: Path) -> tuple[str, str | None]:
    """How a case ended, well or in an error, and what is wrong with that."""
    os.chdir(scratch)
    for timer, told_by, seconds in TIMERS:
        signal.signal(told_by, _too_slow)
        signal.setitimer(timer, seconds)
    ended, problem = "well", None
    action = fuzzer.case(number, scratch)
    given = contents(scratch)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            action()
    except BaseException as error:
        ended = "well" if isinstance(error, SystemExit) and not error.code else "error"
        problem = untold(error, fuzzer.kind(number)) if is_users(error) else "not an error of the user's"
        problem = problem and f"{problem}\n{traceback.format_exc()}"
    finally:
        for timer, _, _ in TIMERS:
            signal.setitimer(timer, 0)
    if (scratch / "owned").exists():
        return ended, "code of a file was executed"
    return ended, problem if given <= contents(scratch) else "a file was lost or written over"


def contents(folder: Path) -> set[bytes]:
    """What the files below a folder hold, whatever they are called."""
    return {path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _too_slow(number: int, frame: object) -> None:
    raise TimeoutError(f"it took longer than {SECONDS} s of its own, or than {30 * SECONDS} s")


def batch(fuzzer: Fuzzer, numbers: range, out: Path, kinds: Collection[str]) -> None:
    """Run cases in a process of its own, which writes down at which case it is; failures are moved to `failed`."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts: Counter[str] = Counter()
    for number in numbers:
        if kinds and fuzzer.kind(number) not in kinds:
            continue
        _note(out, number, counts)
        scratch = out / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        ended, problem = _judged(fuzzer, number, scratch)
        counts[f"{fuzzer.kind(number)}: {ended}"] += 1
        if problem is not None:
            keep(out, number, problem)
    _note(out, numbers.stop, counts)


def _note(out: Path, number: int, counts: Counter[str]) -> None:
    """Which case comes next, and what came before it in its batch: a crash leaves no time for that."""
    (out / "now").write_text(json.dumps({"case": number, "counts": counts}))


def keep(out: Path, number: int, problem: str) -> None:
    """The input of a case that failed, and why."""
    kept = out / "failed" / str(number)
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(exist_ok=True)
    shutil.copytree(out / "scratch", kept, symlinks=True)
    (kept / "problem.txt").write_text(problem, errors="backslashreplace")


def fuzz(out: Path, cases: int, first: int = 0, kinds: Collection[str] = ()) -> dict[str, int]:
    """Run cases from the first, or from where the last time ended, up to this number; how many, how many failed.

    With `kinds` only those of these kinds.
    """
    out.mkdir(parents=True, exist_ok=True)
    fuzzer, path = Fuzzer(out), out / "state.json"
    state = json.loads(path.read_text()) if path.is_file() else {"done": first, "counts": {}}
    while state["done"] < cases:
        numbers = range(state["done"], min(state["done"] + BATCH, cases))
        state["done"], counts = _in_a_fork(fuzzer, numbers, out, kinds)
        state["counts"] = Counter(state["counts"]) + counts
        path.with_suffix(".tmp").write_text(json.dumps(state, indent=2))
        path.with_suffix(".tmp").replace(path)
    failed = list((out / "failed").iterdir()) if (out / "failed").is_dir() else []
    return {"cases": sum(state["counts"].values()), "failed": len(failed)}


def _in_a_fork(fuzzer: Fuzzer, numbers: range, out: Path, kinds: Collection[str]) -> tuple[int, Counter[str]]:
    """Run a batch; the number of the case that comes next, and how those before it ended."""
    _note(out, numbers.start, Counter())
    if (child := os.fork()) == 0:
        try:
            batch(fuzzer, numbers, out, kinds)
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    noted = json.loads((out / "now").read_text())
    number, counts = noted["case"], Counter(noted["counts"])
    if code == 0:
        return number, counts
    keep(out, number, f"the process ended with {code}")  # the case at hand is to blame, the others come next
    return number + 1, counts + Counter({f"{fuzzer.kind(number)}: crash": 1})


def main() -> None:
    """Parse, run, print; the exit code is 1 when a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="up to this one")
    parser.add_argument("--from", type=int, default=0, dest="first", help="from this one on")
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--kinds", nargs="*", default=[], help="only cases of these kinds, such as events idx command")
    parser.add_argument("--out", type=Path, required=True, help="folder for its state and for inputs that failed")
    given = parser.parse_args()
    out = given.out.absolute()
    if given.case is not None:
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out / "scratch", ignore_errors=True)
        (out / "scratch").mkdir()
        sys.exit(problem_of(Fuzzer(out), given.case, out / "scratch"))
    told = fuzz(out, given.cases, given.first, given.kinds)
    print(f"{told['cases']} cases, {told['failed']} failed; inputs of those are in {out / 'failed'}")
    sys.exit(bool(told["failed"]))


if __name__ == "__main__":
    main()
