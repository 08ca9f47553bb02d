"""The command line: parse, call, print. Heavy imports wait until a command needs them."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

app = typer.Typer(
    help="Train spiking transformers with slopes that follow the disagreement of attention heads (SAGE).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Run = Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN")]
DataDir = Annotated[Path | None, typer.Option(help="folder of the data set", show_default=False)]
Settings = Annotated[list[str] | None, typer.Option("--set", help="any recipe field: key=value", metavar="KEY=VALUE")]


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
    from .training.demo import run_demo

    run_demo(out, epochs)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="a recipe to show whole")] = None,
    diff: Annotated[tuple[str, str] | None, typer.Option(help="two recipes or run folders", metavar="A B")] = None,
) -> None:
    """What ships: cost, reported and measured accuracy; one recipe in full; or how two differ."""
    from .training import tables

    if diff:
        tables.print_difference(*diff)
    elif name:
        tables.print_recipe(name)
    else:
        tables.print_recipes()


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a shipped name (see `sage-snn recipes`) or the path of a YAML file")],
    policy: Annotated[Literal["fixed", "learnable", "sage"] | None, typer.Option(help="who sets the slopes")] = None,
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
    from .training import parse_settings
    from .training import train as run

    options = {
        "policy.kind": policy,
        "model.time_steps": time_steps,
        "data_dir": data_dir and str(data_dir),
        "seed": seed,
    }
    chosen = parse_settings(settings or []) | {key: value for key, value in options.items() if value is not None}
    run(recipe, out, settings=chosen, resume=resume, init_from=init_from, download=download)


def main() -> None:
    """Run the command; an expected failure is a message, not a traceback."""
    try:
        app(standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Exception as error:
        sys.exit(_explained(error))


def _explained(error: Exception) -> Any:
    """The message of an error that is the user's to mend; anything else is ours and keeps its traceback."""
    import click

    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, click.Abort):
        return 130
    expected = ("RecipeError", "RunError", "DataError", "ExportError")
    if any(kind.__name__ in expected for kind in type(error).__mro__):
        return f"error: {error}"
    raise error
