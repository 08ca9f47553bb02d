"""What a person sees while a study goes on: one bar with the time left on a terminal, plain lines elsewhere."""

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..notebook import is_live
from ..screen import shown
from .plan import Planned
from .state import StudyState

POLL_SECONDS = 1.0


class StudyProgress:
    """Follows the runs of a study through what they write; it asks nothing of those who train them."""

    def __init__(self, state: StudyState, plan: Sequence[Planned], *, quiet: bool = False) -> None:
        self.state, self.plan = state, plan
        self.console = Console(stderr=True, quiet=quiet)
        self._live = is_live(self.console) and not quiet
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
        self._bar = Progress(*columns, TimeElapsedColumn(), console=self.console, disable=not self._live)
        self._total = sum(cost(planned) for planned in plan)
        self._task = self._bar.add_task(state.study.name, total=self._total, now="")
        self._started, self._before = time.monotonic(), self._done()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "StudyProgress":
        self._bar.start()
        if self._live:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        if self._live:
            self._thread.join()
            self.refresh()
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(shown(text), highlight=False, markup=False, soft_wrap=True)

    def finished(self, planned: Planned, top1: float) -> None:
        """A run has ended well."""
        done = sum(self.state.summary(other) is not None for other in self.plan)
        self.say(f"{done}/{len(self.plan)}  {planned.key}  {planned.label}  top-1 {top1:.2f} %  {self.left()}")

    def refresh(self) -> None:
        """Draw the bar anew."""
        done = sum(self.state.summary(planned) is not None for planned in self.plan)
        now = f"{done}/{len(self.plan)} runs  {self.left()}"
        self._bar.update(self._task, completed=self._done(), now=now)

    def left(self) -> str:
        """Time left at the pace so far, as words; empty before there is a pace."""
        done = self._done()
        if done <= self._before or done >= self._total:
            return ""
        seconds = (time.monotonic() - self._started) / (done - self._before) * (self._total - done)
        return f"about {duration(seconds)} left"

    def _done(self) -> float:
        return sum(
            cost(planned) * (1 if self.state.summary(planned) else share(self.state, planned)) for planned in self.plan
        )

    def _follow(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self.refresh()


def cost(planned: Planned) -> float:
    """How long a run takes beside others of its study: epochs times time steps, earlier stages included.

    Stages before the last train a network that sees an image once, unless they say otherwise.
    """
    recipe = planned.recipe
    earlier = 0.0
    for stage in getattr(recipe, "stages", ()):
        chosen = {"epochs": recipe.epochs, "cooldown_epochs": recipe.cooldown_epochs, **stage.settings}
        earlier += (chosen["epochs"] + chosen["cooldown_epochs"]) * chosen.get("model.time_steps", 1)
    return earlier + _epochs(planned) * recipe.model.time_steps


def share(state: StudyState, planned: Planned) -> float:
    """How much of a run is done."""
    return min(1.0, state.epochs_done(planned) / _epochs(planned))


def seconds_left(state: StudyState, plan: Sequence[Planned]) -> tuple[float, str] | None:
    """Seconds for what is not done, one run after another, and what this rests on; None if nobody knows."""
    finished = {planned.key: summary for planned in plan if (summary := state.summary(planned)) is not None}
    left = sum(cost(planned) * (1 - share(state, planned)) for planned in plan if planned.key not in finished)
    known = sum(cost(planned) for planned in plan if planned.key in finished)
    if finished and known:
        seconds = sum(float(summary["seconds"]) for summary in finished.values())
        return seconds / known * left, f"measured on {len(finished)} finished runs"
    stated = state.study.about.get("seconds_per_run")
    if isinstance(stated, int | float) and stated > 0:
        return stated * len(plan) * left / sum(cost(planned) for planned in plan), "as the study file states"
    return None


def announcement(state: StudyState, plan: Sequence[Planned]) -> str:
    """How many runs, how many are done, and how long the rest will take."""
    done = sum(state.summary(planned) is not None for planned in plan)
    text = f"study {state.study.name}: {len(plan)} runs, {done} finished already"
    if done == len(plan):
        return text
    left = seconds_left(state, plan)
    if left is None:
        return f"{text}; how long the rest takes is not known ({state.study.about.get('cost', 'no cost is stated')})"
    return f"{text}; about {duration(left[0])} for the rest, one after another ({left[1]})"


def _epochs(planned: Planned) -> int:
    """Of the last stage; a network that is converted only is evaluated once."""
    return max(1, planned.recipe.total_epochs)


def duration(seconds: float) -> str:
    """`2 h 5 min`, `40 s`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
