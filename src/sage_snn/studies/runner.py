"""Run a study in this process, one run after another; what is finished is never run again."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from ..data import DataError
from ..recipes.recipe import Recipe
from ..runs.run import data_of
from ..training import InterruptedRunError, train
from ..training.stopping import StopRequest, stopping_politely
from .plan import Planned
from .progress import StudyProgress, announcement
from .state import BusyRunError, StudyState, first_lines
from .study import Study
from .variant import StudyError

WAIT_SECONDS = 1.0


def run_study(study: Study, out: str | Path = "runs", progress: bool = True) -> list[Path]:
    """Train what is missing and give the folders of all finished runs; a failed run does not stop the others."""
    state, plan = StudyState(study, out), study.runs()
    state.prepare()
    if (why := missing_data([planned.recipe for planned in plan if state.summary(planned) is None])) is not None:
        raise no_data(study, why)
    with StudyProgress(state, plan, quiet=not progress) as display, stopping_politely() as stop:
        display.say(announcement(state, plan))
        busy = [planned for planned in plan if not _run(state, planned, display, stop)]
        for planned in busy:
            display.say(f"waiting for another process that trains {planned.key}")
            while not _run(state, planned, display, stop):
                time.sleep(WAIT_SECONDS)
        return conclude(state, plan, display)


def missing_data(recipes: Sequence[Recipe]) -> str | None:
    """Why the data of these recipes cannot be loaded, each data set tried once; None if all can."""
    firsts: dict[tuple[str, str | None], Recipe] = {}
    for recipe in recipes:
        firsts.setdefault((recipe.data, recipe.data_dir), recipe)
    for recipe in firsts.values():
        try:
            data_of(recipe)
        except DataError as error:
            return str(error)
    return None


def no_data(study: Study, why: str) -> StudyError:
    """A study that cannot begin, rather than one failure per run."""
    cure = "" if "--data-dir" in why else "; give the folder of the data with --data-dir"
    return StudyError(f"study {study.name} did not start, for want of its data: {why}{cure}")


def conclude(state: StudyState, plan: Sequence[Planned], display: StudyProgress) -> list[Path]:
    """Say how the study ended; the folders of the finished runs."""
    failures = {planned.key: why for planned in plan if (why := state.failures().get(planned.key)) is not None}
    finished = [state.run_folder(planned).path for planned in plan if state.summary(planned) is not None]
    if not finished:
        reason, name = next(iter(failures.values()), ""), state.study.name
        raise StudyError(f"none of the {len(plan)} runs of study {name} could be finished; the first says:\n{reason}")
    display.say(f"{len(finished)} of {len(plan)} runs are finished")
    if failures:
        display.say(f"{len(failures)} failed; `study status` in place of `study run` says why; run it again to retry")
    return finished


def train_one(state: StudyState, planned: Planned) -> float:
    """Train a run, from its checkpoint if it has one; its accuracy. Other processes are kept off it."""
    with state.training(planned):
        _forget_peak_memory()
        return float(train(planned.recipe, state.run_folder(planned).path, resume=True, quiet=True)["last_top1"])


def _run(state: StudyState, planned: Planned, display: StudyProgress, stop: StopRequest) -> bool:
    """Train a run unless it is finished; False when another process is at it."""
    if stop.asked:
        raise InterruptedRunError(f"study {state.study.name} was stopped; run the same command again to go on")
    if state.summary(planned) is not None:
        state.set_failure(planned, None)
        return True
    try:
        top1 = train_one(state, planned)
    except BusyRunError:
        return False
    except InterruptedRunError:
        raise InterruptedRunError(
            f"study {state.study.name} was stopped within {planned.key}; run the same command again to go on"
        ) from None
    except Exception as error:  # whatever it is, the other runs can still be trained
        state.set_failure(planned, first_lines(error))
        display.say(f"FAILED  {planned.key}  {planned.label}: {first_lines(error, 300)}")
    else:
        state.set_failure(planned, None)
        display.finished(planned, top1)
    return True


def _forget_peak_memory() -> None:
    """Runs of one process would otherwise all report the largest of those before them."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux only
        Path("/proc/self/clear_refs").write_text("5")
