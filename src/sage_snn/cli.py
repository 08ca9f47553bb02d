"""The command line: parse, call, print. Heavy imports wait until a command needs them."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .cli_studies import DataDir, Settings, report, study
from .recipes.policies import POLICIES
from .screen import arguments, console, shown, speak_to_any_terminal

PolicyKind = StrEnum("PolicyKind", list(POLICIES.names))

app = typer.Typer(
    help="Train spiking transformers with slopes that follow the disagreement of attention heads (SAGE).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Run = Annotated[
    Path, typer.Argument(help="folder of a run, shipped:digits, or hub:OWNER/NAME", metavar="RUN", show_default=False)
]
Weights = Annotated[Literal["last", "best"], typer.Option(help="of the last epoch, or of the best on the test set")]
WeightsAs = Annotated[
    Literal["float32", "int8"], typer.Option(help="as trained, or rounded to int8 (networks that count spikes; ONNX)")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("sage-snn"))
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the runs")] = Path("runs/demo"),
    epochs: Annotated[int | None, typer.Option(help="shorter or longer than the recipe")] = None,
) -> None:
    """Fixed, learnable and sage side by side on the embedded digits; minutes on two cores."""
    from .studies.report import write_report
    from .studies.results import load_runs
    from .training.demo import run_demo

    runs = load_runs(out / policy for policy in run_demo(out, epochs))
    print(f"The page of these runs: {write_report(runs, out, title='fixed, learnable and sage on digits')}")


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="a recipe to show whole")] = None,
    diff: Annotated[tuple[str, str] | None, typer.Option(help="two recipes or run folders", metavar="A B")] = None,
) -> None:
    """What ships, a line each; one recipe in full, with its cost and accuracy; or how two differ."""
    from .recipes import tables

    if diff:
        tables.print_difference(*diff)
    elif name:
        tables.print_recipe(name)
    else:
        tables.print_recipes()


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a shipped name (see `sage-snn recipes`) or the path of a YAML file")],
    policy: Annotated[
        PolicyKind | None, typer.Option(metavar="KIND", help=f"who sets the slopes: {', '.join(POLICIES.names)}")
    ] = None,
    time_steps: Annotated[int | None, typer.Option(help="T")] = None,
    data_dir: DataDir = None,
    seed: Annotated[int | None, typer.Option(help="of weights, data order and augmentation")] = None,
    out: Annotated[Path | None, typer.Option(help="default: runs/<recipe>-<policy>-t<T>-s<seed>")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with what is in the folder")] = False,
    init_from: Annotated[Path | None, typer.Option(help="start from these weights, ours or the authors'")] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch the data where there is internet")] = False,
    settings: Settings = None,
) -> None:
    """Train a recipe; `torchrun --nproc-per-node N -m sage_snn train ...` on several devices."""
    from .recipes import load_typed, parse_settings
    from .training import train as run

    options = {
        "policy.kind": policy and policy.value,
        "model.time_steps": time_steps,
        "data_dir": data_dir and str(data_dir),
        "seed": seed,
        "init_from": init_from and str(init_from.absolute()),
    }
    chosen = parse_settings(settings or []) | {key: value for key, value in options.items() if value is not None}
    run(load_typed(recipe, chosen), out, resume=resume, download=download)


@app.command("eval")
def evaluate(
    run: Run,
    weights: Weights = "last",
    weights_as: WeightsAs = "float32",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy, confusion, firing rates, synaptic operations, energy and time of a run."""
    from .runs import assess, open_run

    _show(assess(open_run(run, data_dir), weights, weights_as), as_json)


@app.command()
def predict(
    run: Run,
    images: Annotated[list[Path], typer.Argument(help="pictures, or .npz files with an array images", metavar="IMAGE")],
    weights: Weights = "last",
    top: Annotated[int, typer.Option(min=1, help="so many of the likeliest classes in the table")] = 3,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Classes and their probabilities for images of your own; the data set is not needed."""
    from .runs import open_run
    from .runs import predict as classify

    _show(classify(open_run(run, data_dir), images, weights, top), as_json)


@app.command()
def inspect(run: Run, weights: Weights = "last", data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Blocks, slopes, entropy per head, dead heads, and attention maps as a picture; or layers and their firing."""
    from .runs import inspect_run, open_run

    _show(inspect_run(open_run(run, data_dir), which=weights), as_json)


@app.command()
def check(
    source: Annotated[str, typer.Argument(help="folder of a run, or a recipe", metavar="RUN | RECIPE")],
    data_dir: DataDir = None,
    settings: Settings = None,
) -> None:
    """Surrogate gradients, silent neurons and dead heads on one training batch, before a training or after it."""
    from .recipes import load_recipe, parse_settings
    from .runs import RunError, check_recipe, check_run, open_run

    if Path(source).is_dir():
        if settings:
            raise RunError("--set changes a recipe; a run is checked as it was trained")
        report = check_run(open_run(source, data_dir))
    else:
        here = {} if data_dir is None else {"data_dir": str(data_dir)}
        report = check_recipe(load_recipe(source, parse_settings(settings or []) | here))
    print(report)
    raise typer.Exit(not report.ok)


@app.command()
def export(
    run: Run,
    to: Annotated[
        Literal["onnx", "nir", "safetensors", "official"],
        typer.Option(help="format; nir holds chains of layers only, no attention"),
    ],
    out: Annotated[Path | None, typer.Option(help="file to write; default: RUN/export.<suffix>")] = None,
    weights: Annotated[
        Literal["last", "best", "int8"],
        typer.Option(help="of the last epoch, or of the best on the test set; int8: the last --weights-as int8"),
    ] = "last",
    weights_as: WeightsAs = "float32",
    data_dir: DataDir = None,
) -> None:
    """Write a run's network for other programs, with what they need to know of it; the data set is not needed."""
    from .deploy import SUFFIXES
    from .deploy import export as write
    from .runs import open_run
    from .runs.card import card_of, example_of

    opened = open_run(run, data_dir)
    which, form = ("last", "int8") if weights == "int8" else (weights, weights_as)
    path = out or opened.exports / f"export{'-int8' if form == 'int8' else ''}{SUFFIXES[to]}"
    written = write(opened.network(which), path, to, example_of(opened), card_of(opened, which), form)
    print(written)
    print(f"{form} weights, {written.stat().st_size / 1e6:.2f} MB", file=sys.stderr)


@app.command()
def push(
    run: Run,
    repository: Annotated[str | None, typer.Argument(help="OWNER/NAME on the hub", metavar="[REPO]")] = None,
    to_folder: Annotated[Path | None, typer.Option(help="write the files there instead; no network")] = None,
    weights: Weights = "last",
    private: Annotated[bool, typer.Option("--private", help="a new repository is seen by you alone")] = False,
) -> None:
    """Publish a finished run on the Hugging Face hub: weights, recipe, and a model card written from it."""
    from .runs import open_run
    from .runs.publish import push as upload
    from .runs.publish import write_folder

    if (repository is None) == (to_folder is None):
        raise typer.BadParameter("give a repository (OWNER/NAME), or --to-folder FOLDER")
    opened = open_run(run)
    if to_folder is not None:
        print(write_folder(opened, to_folder, weights))
    elif repository is not None:
        print(upload(opened, repository, weights, private=private))


app.command()(report)
app.add_typer(study, name="study")


@app.command()
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="the small network, and one image in the large; about two minutes")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compile", help="both networks under torch.compile too; minutes (on a GPU always)")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option(
            help="measure with the weights and test images of a Spikformer's run; default: networks at a stated rate",
            metavar="RUN",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="write the rows as JSON, and without --quick a picture beside it")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, ...; default: the accelerator if there is one", show_default=False)
    ] = None,
) -> None:
    """Training step, memory, overhead and inference against SpikingJelly, contestants taking turns."""
    from .bench.bench import run_bench
    from .machine import devices
    from .runs import open_run

    known = {found.type: found for found in devices()}
    if device is not None and device not in known:
        raise typer.BadParameter(f"{device} is not here; choose from {', '.join(known)}")
    opened = None if run is None else open_run(run, data_dir)
    run_bench(out, quick=quick, compiled=compiled, device=device or list(known)[-1], run=opened)


@app.command()
def doctor(
    target: Annotated[
        str | None,
        typer.Option("--compile", help="compile every GPU kernel for it instead; no GPU is needed", metavar="sm_90"),
    ] = None,
) -> None:
    """Which code runs on this machine, why, and whether it is right: every operator beside its twin; seconds."""
    from .doctor.screen import compile_for, examine

    if not (examine() if target is None else compile_for(target)):
        raise typer.Exit(1)


def _show(result: Any, as_json: bool) -> None:
    import json

    print(json.dumps(result.as_dict(), indent=2)) if as_json else console().print(result)


def main() -> None:
    """Run the command; a failure that is the user's to mend is a message, anything else keeps its traceback."""
    speak_to_any_terminal()
    try:
        app(arguments(sys.argv[1:]))
    except Exception as error:
        # By name: importing the classes would load torch before every command.
        if {"RecipeError", "RunError", "DataError", "ExportError", "FuseError", "DoctorError"} & {
            kind.__name__ for kind in type(error).__mro__
        }:
            sys.exit(f"error: {shown(error)}")
        if isinstance(error, OSError) and error.filename is not None:  # such as a name that is too long
            sys.exit(f"error: {shown(error)}; choose another, or see to it")
        raise
