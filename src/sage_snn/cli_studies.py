"""Commands of the command line about many runs: their page, and studies; heavy imports wait."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .screen import console

if TYPE_CHECKING:
    from .studies.study import Study

DataDir = Annotated[Path | None, typer.Option(help="folder of the data set", show_default=False)]
Settings = Annotated[list[str] | None, typer.Option("--set", help="any recipe field: key=value", metavar="KEY=VALUE")]

study = typer.Typer(help="Grids of runs: every experiment from one command.", no_args_is_help=True)
StudyName = Annotated[str, typer.Argument(help="a shipped name or the path of a YAML file", metavar="STUDY")]
StudyOut = Annotated[Path, typer.Option(help="folder of runs and studies; studies share runs")]


@study.command("list")
def study_list(
    name: Annotated[str | None, typer.Argument(help="a study to tell all of", metavar="STUDY")] = None,
) -> None:
    """What ships, a line each; or what one study asks, its cost and its runs."""
    from .studies.tables import print_studies, print_study

    print_studies() if name is None else print_study(name)


@study.command("run")
def study_run(
    name: StudyName,
    out: StudyOut = Path("runs"),
    data_dir: DataDir = None,
    on: Annotated[Literal["here", "ray"], typer.Option(help="this process, or a Ray cluster")] = "here",
    ray_address: Annotated[str | None, typer.Option(help="of a running cluster; default: one is started")] = None,
    settings: Settings = None,
) -> None:
    """Run what is not finished yet, then write the report; safe to stop and start again."""
    from .studies.ray_runner import run_on_ray
    from .studies.runner import run_study

    loaded = _load(name, settings, data_dir)
    on_ray = on == "ray" or ray_address is not None
    paths = run_on_ray(loaded, out, address=ray_address) if on_ray else run_study(loaded, out)
    _write_page(loaded, out)
    if len(paths) < len(loaded.runs()):
        lost = len(loaded.runs()) - len(paths)
        sys.exit(f"error: {lost} runs did not finish; `study status` in place of `study run` says why")


@study.command("status")
def study_status(
    name: StudyName, out: StudyOut = Path("runs"), data_dir: DataDir = None, settings: Settings = None
) -> None:
    """What is done, running, waiting, or failed and why."""
    from .studies.status import status, status_table

    loaded = _load(name, settings, data_dir)
    console().print(status_table(loaded, status(loaded, out), out))


@study.command("report")
def study_report(
    name: StudyName, out: StudyOut = Path("runs"), data_dir: DataDir = None, settings: Settings = None
) -> None:
    """Write the page of a study from its finished runs."""
    _write_page(_load(name, settings, data_dir), out)


def _load(name: str, settings: list[str] | None = None, data_dir: Path | None = None) -> "Study":
    from .recipes import parse_settings
    from .studies.study import load_study

    here = {} if data_dir is None else {"data_dir": str(data_dir.absolute())}
    return load_study(name, parse_settings(settings or []) | here)


def _write_page(loaded: "Study", root: Path, page: Path | None = None) -> None:
    from .studies.report import write_report
    from .studies.results import load_runs
    from .studies.state import StudyState
    from .studies.status import finished_runs
    from .studies.study import StudyError

    state, folders = StudyState(loaded, root), finished_runs(loaded, root)
    if not folders:
        raise StudyError(f"no run of study {loaded.name} is finished in {root}; `sage-snn study run` trains them")
    shown: dict[str, Any] = {"title": loaded.name, "study": loaded, "failures": state.failures()}
    print(write_report(load_runs(folders), page or state.folder, **shown))


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="folders of finished runs, or a study (name or YAML file) of ./runs", metavar="RUN | STUDY"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder for report.html and its figures")] = Path("report"),
    data_dir: DataDir = None,
    different_recipes: Annotated[bool, typer.Option("--different-recipes", help="compare runs that differ")] = False,
) -> None:
    """One page that opens without a network: tables, figures, recipes of these runs; a study's claims."""
    from .studies.report import write_report
    from .studies.results import load_runs, require_comparable
    from .studies.study import is_study

    if len(runs) == 1 and is_study(runs[0]):
        _write_page(_load(str(runs[0]), data_dir=data_dir), Path("runs"), out)
        return
    loaded = load_runs(runs)
    if not different_recipes:
        require_comparable(loaded)
    print(write_report(loaded, out, title=", ".join(run.folder.name for run in loaded[:4])))
