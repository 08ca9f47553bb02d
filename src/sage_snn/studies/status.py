"""How far a study is: done, running, partly done, failed and why, waiting."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Group
from rich.table import Column

from ..screen import cell, sheet
from .plan import Planned
from .progress import announcement
from .state import StudyState
from .study import Study

State = Literal["done", "running", "partly", "failed", "waiting"]


@dataclass(frozen=True)
class Row:
    """One run of a study; `why` says what went wrong, or who is at it."""

    key: str
    label: str
    time_steps: int
    seed: int
    state: State
    epochs_done: int
    epochs: int
    top1: float | None
    why: str


def status(study: Study, out: str | Path = "runs") -> list[Row]:
    """A row per run, in the order in which they are trained."""
    state = StudyState(study, out)
    failures = state.failures()
    return [_row(state, planned, failures.get(planned.key)) for planned in study.runs()]


def status_table(study: Study, rows: Sequence[Row], out: str | Path = "runs") -> Group:
    """For the screen: a line a run, whose name has T and seed; then reasons, counts, and the hours left."""
    numbers = [Column(name, justify="right") for name in ("epochs", "top-1 %")]
    table = sheet(Column("run", overflow="fold"), Column("label", overflow="fold"), "state", *numbers)
    for row in rows:
        top1 = "" if row.top1 is None else f"{row.top1:.2f}"
        table.add_row(*map(cell, (row.key, row.label, row.state, f"{row.epochs_done}/{row.epochs}", top1)))
    counts = {state: sum(row.state == state for row in rows) for state in ("done", "running", "partly", "failed")}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    reasons = [cell(f"{row.key}: {row.state}, {row.why}") for row in rows if row.why]
    summary = f"{announcement(StudyState(study, out), study.runs())}\n{told or 'nothing was started yet'}"
    return Group(table, "", *reasons, cell(summary))


def finished_runs(study: Study, out: str | Path = "runs") -> list[Path]:
    """Folders of the study's finished runs, for `load_runs`."""
    state = StudyState(study, out)
    return [state.run_folder(planned).path for planned in study.runs() if state.summary(planned) is not None]


def _row(state: StudyState, planned: Planned, failure: str | None) -> Row:
    summary, total = state.summary(planned), planned.recipe.total_epochs
    epochs = min(total, state.epochs_done(planned))  # a network without an epoch has a line of metrics all the same
    kind: State = "waiting"
    why = ""
    if summary is not None:
        kind = "done"
    elif state.is_busy(planned):
        kind, owner = "running", state.owner(planned)
        why = f"by process {owner.get('pid')} on {owner.get('host')}" if owner else "by another study"
    elif failure is not None:
        kind, why = "failed", failure
    elif epochs or any(state.run_folder(planned).checkpoints.glob("step-*.pt")):
        kind = "partly"
    top1 = None if summary is None else summary.get("last_top1")
    recipe = planned.recipe
    names = (planned.key, planned.label, recipe.model.time_steps, recipe.seed)
    return Row(*names, kind, epochs, total, top1, why)
