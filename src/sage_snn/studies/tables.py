"""Studies on the screen."""

from rich.console import Console
from rich.table import Column, Table

from .progress import duration
from .study import Study, shipped_studies, shipped_study


def print_studies() -> None:
    """A row per shipped study."""
    name = Column("study", no_wrap=True)
    table = Table(name, "what", Column("runs", justify="right"), "cost", title="sage-snn study run STUDY")
    for shipped in shipped_studies():
        study = shipped_study(shipped)
        runs = study.count()
        table.add_row(shipped, str(study.about.get("what", "-")), str(runs), _cost(study, runs))
    Console().print(table)


def _cost(study: Study, runs: int) -> str:
    """In its own words, or the seconds of a run times the runs, one after another."""
    seconds = study.about.get("seconds_per_run")
    if isinstance(seconds, int | float):
        return f"about {duration(seconds * runs)} of one core"
    return str(study.about.get("cost", "-"))
