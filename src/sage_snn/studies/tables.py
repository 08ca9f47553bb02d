"""Studies on the screen."""

from rich.table import Column

from ..screen import cell, console, sheet
from .progress import duration
from .study import Study, load_study, shipped_studies, shipped_study


def print_studies() -> None:
    """A line per shipped study."""
    line = {"no_wrap": True, "overflow": "ellipsis"}
    counts = [Column(name, justify="right", no_wrap=True) for name in ("runs", "about")]
    table = sheet(Column("study", no_wrap=True), *counts, Column("what", **line))
    for shipped in shipped_studies():
        study = shipped_study(shipped)
        told = str(study.about.get("brief", study.about.get("what", "-")))
        table.add_row(shipped, str(study.count()), _time(study) or "GPUs", told)
    console().print(table)
    told = "`sage-snn study list STUDY` tells what it asks, its cost and its runs."
    console().print("", f"{told} Times are those of one CPU core.", sep="\n", highlight=False)


def print_study(name: str) -> None:
    """What a study asks, what it costs, and its runs."""
    study = load_study(name)
    table = sheet(
        Column("run", overflow="fold"), Column("label", overflow="fold"), Column("T", justify="right"), "seed"
    )
    for planned in study.runs():
        values = (planned.key, planned.label, planned.recipe.model.time_steps, planned.recipe.seed)
        table.add_row(*map(cell, values))
    time = _time(study)
    told = {
        "study": study.name,
        "what": study.about.get("what", "-"),
        "runs": study.count(),
        "cost": f"about {time} of one CPU core" if time else study.about.get("cost", "not stated"),
        "command": study.about.get("command", f"sage-snn study run {name}"),
    }
    for key, value in told.items():
        console().print(cell(f"{key:<8} {value}"))
    console().print("", table, sep="\n")


def _time(study: Study) -> str | None:
    """Seconds of a run times the runs, one after another; None if the study states none."""
    seconds = study.about.get("seconds_per_run")
    return duration(seconds * study.count()) if isinstance(seconds, int | float) else None
