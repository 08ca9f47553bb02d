"""Bad input by the thousand: real files and commands, mutated; each ends well or in an error of the user's.

    python benchmarks/fuzz.py --cases 1000000 --out FOLDER    # run it again to go on
    python benchmarks/fuzz.py --case 4711 --out FOLDER        # one case again, with its traceback

Case n depends on n alone. A case fails by any other exception, by an error that does not name the file and the cure or
that has lines without end, by a crash, by taking longer than SECONDS, by code that a file had executed, or by a file of
the user's that is gone or was written over (one that is set aside, under another name, is not lost). Inputs that failed
are kept in FOLDER/failed; FOLDER/state.json counts cases, and of each kind those that ended well or in an error.
Two processes share the work as `--cases 500000` and `--from 500000 --cases 1000000`, each with a folder of its own.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

SECONDS, BATCH, MEMORY = 20, 1000, 12 * 2**30
# Of this process's own time, and, for what only waits, of everybody's, on a machine that has other things to do.
TIMERS = ((signal.ITIMER_PROF, signal.SIGPROF, SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, 30 * SECONDS))
TINY = {
    "epochs": 1,
    "warmup_epochs": 0,
    "max_steps_per_epoch": 1,
    "train_images": 100,
    "test_images": 20,
    "batch_size": 8,
    "model.depth": 2,
    "model.dim": 16,
    "model.heads": 2,
    "model.time_steps": 1,
    "threads": 1,
}
STUDY = (
    "recipe: digits\naxes: {policy.kind: [fixed, sage], seed: [1, 2]}\nvariants: [{label: a, settings: {lr: 0.1}}]\n"
)


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple:
        return open, ("owned", "w")


WORDS = [
    *("null", "~", "true", "-1", "0", "1e999", ".nan", "9" * 5000, "2024-99-99", "[]", "{}", "[[", "*a", "&a [*a]"),
    *("!!python/name:os.system", "<<: *a", "../../x", "/dev/zero", "\x00", "\x1b[2J", "[/red]", "<script>", "\udcff"),
    *("é", "\u202e", "'", '"', "|", ">", "---", "...", "%YAML 9.9", "\t", "\r\n", "{a: {a: {a: 1}}}", "x" * 3000),
]


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A few changes of bits, bytes, words, pieces and lines."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at, to = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
        lines = bytes(data).split(b"\n")
        kind = draw.randrange(9)
        if kind == 0 and data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at:at] = draw.choice(WORDS).encode(errors="surrogateescape")
        elif kind == 2:
            data[at : min(to, at + 40)] = b""
        elif kind == 3:
            data[at : min(to, at + 8)] = draw.choice(WORDS).encode(errors="surrogateescape")
        elif kind == 4:
            data = data[:at]
        elif kind == 5:
            data[at:at] = data[at : min(to, at + 200)]
        elif kind == 6:
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 7:  # another value for a key
            n = draw.randrange(len(lines))
            lines[n] = lines[n].partition(b":")[0] + b": " + draw.choice(WORDS).encode(errors="surrogateescape")
            data = bytearray(b"\n".join(lines))
        else:
            lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
            data = bytearray(b"\n".join(lines))
    return bytes(data)


Action = Callable[[], object]


class Fuzzer:
    """The real files that are mutated, and what is done with each kind of them.

    A kind writes the input of a case and gives what is to be done with it, so that it can be looked at in between.
    """

    def __init__(self, folder: Path) -> None:
        import numpy as np
        import torch
        from PIL import Image

        from sage_snn.recipes import load_recipe
        from sage_snn.recipes.fields import flat
        from sage_snn.training import train

        self.folder, self.run = folder, folder / "run"
        if not (self.run / "summary.json").is_file():
            train("digits", self.run, settings=TINY, quiet=True, resume=self.run.exists())
        images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
        np.savez(folder / "arrays.npz", images=images, labels=np.arange(20) % 4)
        Image.fromarray(images[0]).save(folder / "picture.png")
        torch.save({"weights": torch.zeros(3)}, folder / "weights.pth")
        self.keys = list(dict(flat(load_recipe("digits").all_fields())))
        # The dear ones, networks that are built and whole commands, have smaller shares.
        self.kinds: dict[Callable[[Path, random.Random], Action], int] = {
            self.recipe: 160,
            self.study: 160,
            self.weights: 150,
            self.arrays: 150,
            self.setting: 120,
            self.checkpoint: 70,
            self.picture: 100,
            self.run_file: 20,
            self.command: 8,
            self.network: 2,
        }

    def case(self, number: int, scratch: Path) -> Action:
        """Write the input of case `number` into an empty folder; what is to be done with it."""
        draw, kind = self._drawn(number)
        return kind(scratch, draw)

    def kind(self, number: int) -> str:
        """What is mutated in case `number`."""
        return self._drawn(number)[1].__name__

    def _drawn(self, number: int) -> tuple[random.Random, Callable[[Path, random.Random], Action]]:
        draw = random.Random(number)
        return draw, draw.choices(list(self.kinds), list(self.kinds.values()))[0]

    def recipe(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.recipes import load_recipe, shipped_recipes
        from sage_snn.recipes.recipe import SHIPPED

        text = (SHIPPED / f"{draw.choice(shipped_recipes())}.yaml").read_bytes()
        (scratch / "mine.yaml").write_bytes(mutated(text, draw))
        return lambda: load_recipe(scratch / "mine.yaml").identity()

    def setting(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.recipes import load_recipe, parse_settings

        typed = [f"{draw.choice(self.keys)}={draw.choice(WORDS)}" for _ in range(draw.randrange(1, 4))]
        (scratch / "typed").write_text(repr(typed))
        return lambda: load_recipe("digits", parse_settings(typed)).identity()

    def study(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.studies.status import status, status_table
        from sage_snn.studies.study import load_study

        def shown() -> None:
            study = load_study(scratch / "study.yaml")
            if study.count() < 100:
                status_table(study, status(study, scratch), scratch)

        (scratch / "study.yaml").write_bytes(mutated(STUDY.encode(), draw))
        return shown

    def run_file(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.studies.results import load_runs, table

        def shown() -> None:
            runs = load_runs([damaged])
            table(runs)
            runs[0].signals()

        damaged = self._damaged_run(scratch, draw)
        return shown

    def network(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.runs import open_run

        def built() -> None:
            opened = open_run(damaged)
            opened.network()
            opened.unfinished()
            _ = opened.policy_state

        damaged = self._damaged_run(scratch, draw)
        return built

    def _damaged_run(self, scratch: Path, draw: random.Random) -> Path:
        """Links but for one file, which is mutated: a copy of all of them would take longer than to read them."""
        files = [path for path in sorted(self.run.rglob("*")) if path.is_file() and "tensorboard" not in str(path)]
        chosen = draw.choice(files)
        for path in files:
            mine = scratch / "run" / path.relative_to(self.run)
            mine.parent.mkdir(parents=True, exist_ok=True)
            if path == chosen:
                mine.write_bytes(mutated(path.read_bytes(), draw))
            else:
                os.link(path, mine)
        return scratch / "run"

    def checkpoint(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.runs.checkpoint import load_checkpoint

        content = next(iter((self.run / "checkpoints").iterdir())).read_bytes()
        content = pickle.dumps({"version": 2, "state": Evil()}) if draw.random() < 0.1 else content
        content = mutated(content, draw)
        (scratch / f"step-000000001-{hashlib.sha256(content).hexdigest()[:16]}.pt").write_bytes(content)
        return lambda: load_checkpoint(scratch)

    def weights(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.runs.weights import read_weights

        source = draw.choice([self.run / "model.safetensors", self.folder / "weights.pth"])
        (scratch / source.name).write_bytes(mutated(source.read_bytes(), draw))
        return lambda: read_weights(scratch / source.name)

    def arrays(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.data import load_data

        (scratch / "arrays.npz").write_bytes(mutated((self.folder / "arrays.npz").read_bytes(), draw))
        return lambda: load_data("arrays", scratch / "arrays.npz")

    def picture(self, scratch: Path, draw: random.Random) -> Action:
        import torch

        from sage_snn.data import Images

        (scratch / "a.png").write_bytes(mutated((self.folder / "picture.png").read_bytes(), draw))
        return lambda: Images([scratch / "a.png"], torch.tensor([0])).picture(0)

    def command(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn import cli

        def called() -> None:
            sys.argv = ["sage-snn", *(word for word in typed if word not in ("demo", "bench"))]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                cli.main()

        words = ["recipes", "digits", "--diff", "study", "status", "list", "report", "eval", "check", "export", "--out"]
        words += ["--to", "onnx", "--set", "lr=1", "--json", "--policy", "--seed", "nowhere", "--help", "table1-small"]
        typed = [draw.choice((*words, *words, *WORDS)) for _ in range(draw.randrange(1, 6))]
        (scratch / "typed").write_text(repr(typed))
        return called


NAMED = {
    "recipe": "mine.yaml",
    "study": r"study\.yaml|^study study:",
    "arrays": "arrays.npz",
    "picture": "a.png",
}  # in every message
NAMED |= {"run_file": "/run", "network": "/run", "checkpoint": "step-", "weights": r"model\.safetensors|weights\.pth"}
CURE = re.compile(
    r"\b(copy|give|save|mend|put|use|choose|train it|go on|did you mean|should|must|missing|expected|such as|needs"
    r"|known|set|at least|at most|write|change|lower|add|call|name|not both|only|leave|cannot|no slash|try|number"
    r"|make|see|remove)\b"
)


def is_users(error: BaseException) -> bool:
    """Is it an error that the command line shows as a message?"""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"RecipeError", "RunError", "DataError", "ExportError", "SystemExit"})


def untold(error: BaseException, kind: str) -> str | None:
    """What a message lacks that people are owed: the file, the cure, an end."""
    if isinstance(error, SystemExit):
        return "a traceback for people" if "Traceback" in str(error.code) else None
    told = str(error)
    lines = told.splitlines() or [""]
    if len(lines) > 40 or max(map(len, lines)) > 1500:
        return f"{len(lines)} lines of up to {max(map(len, lines))} letters"
    if re.search(r"object at 0x|weights_only|Traceback", told):
        return "words for programmers"
    if not re.search(NAMED.get(kind, ""), told):
        return "the file is not named"
    return None if CURE.search(told) else "no cure is told"


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
        ended = "error"
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


def batch(fuzzer: Fuzzer, numbers: range, out: Path) -> None:
    """Run cases in a process of its own, which writes down at which case it is; failures are moved to `failed`."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts: Counter[str] = Counter()
    for number in numbers:
        (out / "now").write_text(str(number))
        scratch = out / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        ended, problem = _judged(fuzzer, number, scratch)
        counts[f"{fuzzer.kind(number)}: {ended}"] += 1
        if problem is not None:
            keep(out, number, problem)
    (out / "counts.json").write_text(json.dumps(counts))


def keep(out: Path, number: int, problem: str) -> None:
    """The input of a case that failed, and why."""
    kept = out / "failed" / str(number)
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(exist_ok=True)
    shutil.copytree(out / "scratch", kept, symlinks=True)
    (kept / "problem.txt").write_text(problem, errors="backslashreplace")


def fuzz(out: Path, cases: int, first: int = 0) -> dict[str, int]:
    """Run cases from the first, or from where the last time ended, up to this number; how many, how many failed."""
    out.mkdir(parents=True, exist_ok=True)
    fuzzer, path = Fuzzer(out), out / "state.json"
    state = json.loads(path.read_text()) if path.is_file() else {"done": first, "counts": {}}
    while state["done"] < cases:
        numbers = range(state["done"], min(state["done"] + BATCH, cases))
        (out / "counts.json").unlink(missing_ok=True)
        state["done"] = _in_a_fork(fuzzer, numbers, out)
        if (out / "counts.json").is_file():
            state["counts"] = Counter(state["counts"]) + Counter(json.loads((out / "counts.json").read_text()))
        path.with_suffix(".tmp").write_text(json.dumps(state, indent=2))
        path.with_suffix(".tmp").replace(path)
    failed = list((out / "failed").iterdir()) if (out / "failed").is_dir() else []
    return {"cases": state["done"] - first, "failed": len(failed)}


def _in_a_fork(fuzzer: Fuzzer, numbers: range, out: Path) -> int:
    """Run a batch; the number of the case that comes next."""
    if (child := os.fork()) == 0:
        try:
            batch(fuzzer, numbers, out)
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return numbers.stop
    number = int((out / "now").read_text())  # a crash: the case at hand is to blame, the rest of the batch comes next
    keep(out, number, f"the process ended with {code}")
    return number + 1


def main() -> None:
    """Parse, run, print; the exit code is 1 when a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="up to this one")
    parser.add_argument("--from", type=int, default=0, dest="first", help="from this one on")
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--out", type=Path, required=True, help="folder for its state and for inputs that failed")
    given = parser.parse_args()
    out = given.out.absolute()
    if given.case is not None:
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out / "scratch", ignore_errors=True)
        (out / "scratch").mkdir()
        sys.exit(problem_of(Fuzzer(out), given.case, out / "scratch"))
    told = fuzz(out, given.cases, given.first)
    print(f"{told['cases']} cases, {told['failed']} failed; inputs of those are in {out / 'failed'}")
    sys.exit(bool(told["failed"]))


if __name__ == "__main__":
    main()
