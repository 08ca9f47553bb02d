"""Kill trainings with SIGKILL at random moments, go on with them, and compare every file with an uninterrupted twin.

    python benchmarks/kills.py --kills 1000 --out FOLDER               # run it again to go on
    python benchmarks/kills.py --kills 20 --kinds ranks --out FOLDER

One process, two ranks under torchrun's own agent, a recipe with stages, a study here and a study on Ray. Lives are
forks of this process, which has imported everything, so that kills hit trainings and not imports. FOLDER/tally.json
counts, by commit, the kills of runs that were finished and compared; a run that differs, fails or hangs is kept in
FOLDER/kept.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from small_runs import SMALL, STAGED, STUDY, commit_here

from sage_snn.studies.ray_runner import run_on_ray
from sage_snn.studies.runner import run_study
from sage_snn.studies.state import StudyState
from sage_snn.studies.study import parse_study
from sage_snn.training import train

SHARES = {"alone": 40, "ranks": 20, "stages": 20, "study": 15, "ray": 5}  # of all kills; those on Ray take minutes
MOST = 8  # kills of one run, before it is let go on to its end
SECONDS = 1800.0  # the longest that a life, or what is left of one, may take, on a machine that has other things to do
TIMES = ("seconds", "images_per_second", "peak_memory_mb")


def alone(out: Path) -> None:
    train("digits", out, settings=SMALL | {"observe.temperatures": [0.25]}, resume=True, quiet=True)


def stages(out: Path) -> None:
    train(STAGED, out, resume=True, quiet=True)


def ranks(out: Path) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # As `torchrun --standalone --nproc-per-node 2` has them, but for the start method.
    there = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "kills", "max_restarts": 0}
    config = LaunchConfig(1, 1, 2, **there, start_method="fork")
    elastic_launch(config, rank)(str(out))


def rank(out: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in ranks of torchrun's own: a fork has the launcher's handler
    with suppress(SystemExit):
        train("digits", out, settings=SMALL, resume=True, quiet=True)


def study(out: Path) -> None:
    run_study(parse_study(STUDY), out, progress=False)


def ray(out: Path) -> None:
    run_on_ray(parse_study(STUDY), out, progress=False)


KINDS: dict[str, Callable[[Path], None]] = {kind.__name__: kind for kind in (alone, ranks, stages, study, ray)}


class Life(NamedTuple):
    """A process that trains, the first of a group of its own."""

    pid: int
    began: float

    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def begin(kind: str, out: Path, log: Path) -> Life:
    """A life of its own, from where the folder stands; what it says goes to `log`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for stream in (1, 2):
                os.dup2(written, stream)
            KINDS[kind](out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    while os.getsid(pid) != pid:  # until then, its group is ours
        time.sleep(0.001)
    return Life(pid, time.monotonic())


def members(group: int) -> list[int]:
    """Processes of a group or session that live, its first included."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, *ids = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and str(group) in ids:
                found.append(int(folder.name))
    return sorted(found)


def end(life: Life, patience: float) -> None:
    """Wait for all of a life to be gone; what outlives the patience is killed, which is an error."""
    deadline = time.monotonic() + patience
    while (left := members(life.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        raise TimeoutError(f"{len(left)} processes outlived the first by {patience:.0f} s")


def strike(kind: str, life: Life, out: Path, draw: random.Random) -> bool:
    """Kill at this moment; True if the first process of the life is dead, False if it has to cope with it."""
    if draw.random() < 0.25:  # a kill that hits the checkpoint of a polite stop
        os.kill(life.pid, signal.SIGTERM)
        time.sleep(draw.uniform(0, 0.3))
    others = [pid for pid in members(life.pid) if pid != life.pid]
    if kind == "ray" and draw.random() < 0.8:
        busy = [pid for pid in workers(out) if pid in others]
        if busy:
            os.kill(draw.choice(busy), signal.SIGKILL)
            return False
    if kind == "ranks" and others and draw.random() < 0.5:
        os.kill(draw.choice(others), signal.SIGKILL)
        return True
    os.killpg(life.pid, signal.SIGKILL)
    return True


def workers(out: Path) -> list[int]:
    """Processes on Ray that are training a run of the study."""
    state = StudyState(parse_study(STUDY), out)
    return [state.owner(planned)["pid"] for planned in state.study.runs() if state.is_busy(planned)]


def live(kind: str, out: Path, log: Path, span: float, most: int, draw: random.Random) -> tuple[int, bool]:
    """One life, killed at a random moment within the span; the kills, at most so many, and whether it is finished."""
    life, kills = begin(kind, out, log), 0
    moment = life.began + draw.uniform(0, span)
    while not life.has_ended():
        if time.monotonic() > life.began + SECONDS:
            os.killpg(life.pid, signal.SIGKILL)
            raise TimeoutError(f"a life of {kind} hangs")
        if kills < most and time.monotonic() >= moment:
            kills += 1
            if strike(kind, life, out, draw):
                break
            moment = time.monotonic() + draw.uniform(0, span)
        time.sleep(0.005)
    end(life, SECONDS)
    code = life.code()
    if kills == 0 and code != 0:
        raise RuntimeError(f"a life that nobody killed ended with {code}:\n{log.read_text(errors='replace')}")
    return kills, code == 0


def content(folder: Path) -> dict[str, object]:
    """Name -> what must be equal to the bit: bytes of weights and recordings, metrics and summaries without times."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or "tensorboard" in name or name.startswith("studies/") or "/.locks/" in f"/{name}":
            continue
        if path.suffix == ".pt":  # they hold times; of two that are kept, the older may be of a polite stop
            found[f"{path.parent.relative_to(folder)}/newest"] = path.name.split("-")[1]
        elif path.name == "metrics.jsonl":
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name == "summary.json":
            found[name] = _timeless(json.loads(path.read_text()))
        else:
            found[name] = None if path.name == "recipe.yaml" else path.read_bytes()
    return found


def _timeless(told: dict) -> dict:
    kept = {key: value for key, value in told.items() if key not in TIMES}
    return kept | ({"stages": [_timeless(stage) for stage in kept["stages"]]} if "stages" in kept else {})


def one_run(kind: str, out: Path, twin: Path, span: float, draw: random.Random) -> int:
    """Kill a run until it is finished in spite of it, and compare it; the kills."""
    kills, finished = 0, False
    while not finished:
        more, finished = live(kind, out, out.with_suffix(".log"), span, MOST - kills, draw)
        kills += more
    ours, theirs = content(out), content(twin)
    if differing := [name for name in ours.keys() | theirs.keys() if ours.get(name, 0) != theirs.get(name, 0)]:
        raise AssertionError(f"these differ after {kills} kills: {', '.join(sorted(differing))}")
    return kills


@contextmanager
def tally_of(path: Path, commit: str) -> Iterator[dict[str, Counter]]:
    """Counts of this commit, by kind; written when the block ends."""
    told = json.loads(path.read_text()) if path.is_file() else {}
    mine = {kind: Counter(told.get(commit, {}).get(kind, {})) for kind in KINDS}
    yield mine
    path.with_suffix(".tmp").write_text(json.dumps(told | {commit: mine}, indent=2))
    path.with_suffix(".tmp").replace(path)


def twin_of(kind: str, folder: Path) -> float:
    """Train what was never interrupted, unless it is there; the seconds that it took."""
    seconds = folder / f"{kind}.seconds"
    if not seconds.is_file():
        shutil.rmtree(folder / kind, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        life = begin(kind, folder / kind, folder / f"{kind}.log")
        if (code := life.code()) != 0:
            raise SystemExit(f"{kind} cannot be trained ({code}): {(folder / f'{kind}.log').read_text()}")
        seconds.write_text(str(time.monotonic() - life.began))
    return float(seconds.read_text())


def kill(folder: Path, kinds: list[str], goal: int, commit: str) -> dict[str, Counter]:
    """Go on until there are so many kills of this commit; its tally."""
    weight, chosen = sum(SHARES[kind] for kind in kinds), random.Random()
    while True:
        with tally_of(folder / "tally.json", commit) as tally:
            left = {kind: tally[kind]["kills"] / (goal * SHARES[kind] / weight) for kind in kinds}
            kind = min(left, key=lambda kind: left[kind])
            if left[kind] >= 1:
                return tally
            span = twin_of(kind, folder / "twins" / commit)
            seed = chosen.randrange(2**32)
            out = folder / f"{kind}-{seed}"
            try:
                tally[kind]["kills"] += one_run(
                    kind, out, folder / "twins" / commit / kind, 0.6 * span, random.Random(seed)
                )
                tally[kind]["runs"] += 1
            except (AssertionError, RuntimeError, TimeoutError):
                tally[kind]["failed"] += 1
                (folder / "kept").mkdir(exist_ok=True)
                (folder / "kept" / f"{out.name}.txt").write_text(traceback.format_exc())
                shutil.move(out, folder / "kept" / out.name)
            shutil.rmtree(out, ignore_errors=True)
            out.with_suffix(".log").unlink(missing_ok=True)


def main() -> None:
    """Parse, kill, print; the exit code is 1 when a run did not end in the same bits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how many in all")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, required=True, help="folder for its tally, and for runs that failed")
    given = parser.parse_args()
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    train("digits", out / f"warm-{os.getpid()}", settings=SMALL | {"epochs": 1}, quiet=True)  # imports everything
    shutil.rmtree(out / f"warm-{os.getpid()}")
    tally = kill(out, given.kinds, given.kills, commit_here())
    for kind in given.kinds:
        print(f"{kind}: {dict(tally[kind])}")
    sys.exit(any(tally[kind]["failed"] for kind in given.kinds))


if __name__ == "__main__":
    main()
