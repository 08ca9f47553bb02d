"""From a recipe and a folder to a finished run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..kernels.memory import keep_freed_memory
from ..recipes.recipe import Recipe, load_recipe
from ..runs.checkpoint import has_checkpoint
from ..runs.folder import RunError, RunFolder
from ..runs.weights import find_weights
from .devices import build_fabric
from .display import Display
from .loop import Training


def train(
    recipe: "str | Path | Mapping[str, Any] | Recipe",
    out: str | Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    init_from: str | Path | None = None,
    download: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a recipe (a shipped name, a YAML file, a mapping) to the end and give its summary.

    `out` is the run's folder, by default runs/<recipe>-<policy>-t<T>-s<seed>. `resume` goes on with what is there,
    from the weights that the run was started from (`init_from`) if there is no checkpoint yet.
    """
    keep_freed_memory()
    recipe = load_recipe(recipe, settings)
    if init_from is not None:
        recipe = recipe.updated({"init_from": str(Path(init_from).absolute())})
    folder = RunFolder(out if out is not None else default_folder(recipe))
    recipe = _pinned(recipe, folder.recipe() if resume else None)
    fabric = build_fabric(recipe)
    display = Display(folder.path.name, 0, quiet=quiet or not fabric.is_global_zero)
    if resume and (summary := _summary(folder)) and not folder.changes(recipe):
        display.say(f"{folder.path} is finished already: top-1 {summary['last_top1']:.2f} %; nothing to do")
        return summary
    if fabric.is_global_zero:
        folder.open(recipe, resume=resume)
    fabric.barrier()
    return Training(recipe, folder, fabric, download=download, quiet=quiet).run()


def default_folder(recipe: Recipe) -> Path:
    """Where a run goes when nobody says."""
    return Path("runs") / f"{recipe.name}-{recipe.policy.kind}-t{recipe.model.time_steps}-s{recipe.seed}"


def _pinned(recipe: Recipe, before: Recipe | None) -> Recipe:
    """The recipe with the digests of its files; `before` is the one of a run to go on with."""
    if recipe.init_from is not None:
        find_weights(recipe.init_from)
    try:
        pinned = recipe.pinned()
    except OSError as error:
        raise RunError(f"cannot read {error.filename}: {error.strerror}; make it readable") from None
    if before is None or before.init_from is None or recipe.init_from is not None:
        return pinned
    return pinned.model_copy(update={"init_from": before.init_from, "init_digest": before.init_digest})


def _summary(folder: RunFolder) -> dict[str, Any] | None:
    """What a finished run ended with; one that is half-written counts as none, and is written again."""
    try:
        return folder.summary()
    except ValueError:
        if has_checkpoint(folder.checkpoints):
            return None
        raise RunError(
            f"{folder.path}/summary.json is half-written, and there is no checkpoint to write it again from; "
            "copy the file there again, or train in a new folder (--out)"
        ) from None
