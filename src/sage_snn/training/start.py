"""From a recipe and a folder to a finished run."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from lightning.fabric import Fabric

from ..data.loader import telling_of_lost_workers
from ..kernels.memory import keep_freed_memory
from ..recipes.recipe import Recipe, load_recipe
from ..recipes.stages import stage_recipes
from ..runs.applied import kernels_on, require_same_means
from ..runs.checkpoint import has_checkpoint
from ..runs.folder import RunError, RunFolder, refusing_to_lose
from ..runs.lock import locked
from ..runs.weights import find_weights
from .devices import applied_precision, build_fabric, by_the_first
from .display import Display
from .extension import begin, differs_in_length, extended, with_lengths
from .loop import Training
from .stage import Stage
from .threads import Threads, threads_here
from .trackers import require_loggers


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
    first = {} if init_from is None else {"init_from": str(Path(init_from).absolute())}
    recipe = load_recipe(recipe, dict(settings or {}) | first)
    folder = RunFolder(out if out is not None else default_folder(recipe))
    # Around everything: what breaks while a run is closed because something else broke must not hide it.
    with telling_of_lost_workers(), refusing_to_lose(folder):
        return _train(recipe, folder, build_fabric(recipe), resume=resume, download=download, quiet=quiet)


def _train(
    recipe: Recipe,
    folder: RunFolder,
    fabric: Fabric,
    *,
    first: Path | None = None,
    resume: bool,
    download: bool,
    quiet: bool,
) -> dict[str, Any]:
    """`first` is the folder of the stage that it starts from."""
    display = Display(folder.path.name, 0, quiet=quiet or not fabric.is_global_zero)
    here: dict[str, Any] = {"download": download, "quiet": quiet}
    with ExitStack() as held:
        start = by_the_first(fabric, lambda: _prepare(recipe, folder, fabric, held, resume=resume))
        for line in start.told:
            display.say(line)
        if start.summary is not None:
            return start.summary
        stages: list[Stage] = []
        for number, stage in enumerate(stage_recipes(start.recipe), start=1):
            name = start.recipe.stages[number - 1].name
            display.say(f"{folder.path}: stage {number} of {len(start.recipe.stages) + 1}, {name}")
            inner = RunFolder(folder.stages / f"{number}-{name}")
            summary = _train(stage, inner, fabric, first=first, resume=True, **here)
            stages.append(Stage(name, stage, inner.path, summary))
            first = inner.path
        return Training(start.recipe, folder, fabric, start.threads, first=first, stages=stages, **here).run()


def default_folder(recipe: Recipe) -> Path:
    """Where a run goes when nobody says."""
    return Path("runs") / f"{recipe.name}-{recipe.policy.kind}-t{recipe.model.time_steps}-s{recipe.seed}"


class _Start(NamedTuple):
    """What all ranks begin with; a summary where there is nothing left to do."""

    recipe: Recipe
    threads: Threads
    told: list[str]
    summary: dict[str, Any] | None = None


def _prepare(recipe: Recipe, folder: RunFolder, fabric: Fabric, held: ExitStack, *, resume: bool) -> _Start:
    """Make the folder ready and keep others off it, or say why not; on the first rank only, which writes it."""
    before = folder.recipe() if resume else None
    require_loggers(recipe.loggers)
    recipe, told = with_lengths(_pinned(recipe, before), before), list[str]()
    ended = None if before is None else _summary(folder)
    if before is not None and ended is not None:
        recipe, line, is_done = _after_the_end(recipe, before, folder, ended)
        told += [line] if line else []
        if is_done:
            return _Start(recipe, Threads(1), told, ended)
    if resume and before is None:
        told.append(f"{folder.path} holds no run yet: this one starts anew")
    is_longer = before is not None and recipe.extended_from != before.extended_from
    folder.open(before if before is not None and is_longer else recipe, resume=resume)
    held.enter_context(locked(folder))
    folder.sweep()
    applied = folder.applied()
    if recipe.stages and folder.recipe() is None:  # a run that is killed in a stage is known by it
        folder.write_recipe(recipe, applied)
    means = {"precision": applied_precision(fabric), "device": fabric.device.type, "ranks": fabric.world_size}
    means["kernels"] = kernels_on(fabric.device)
    require_same_means(folder.path, applied, means)  # threads are set as they were
    if ended is not None:
        begin(folder, recipe)
    return _Start(recipe, threads_here(recipe.threads, applied.get("threads")), told)


def _after_the_end(
    recipe: Recipe, before: Recipe, folder: RunFolder, summary: dict[str, Any]
) -> tuple[Recipe, str, bool]:
    """The recipe of a finished run, longer where more epochs are asked for; what to say; is nothing left to do?"""
    done = f"{folder.path} is finished already: top-1 {summary['last_top1']:.2f} %"
    if differs_in_length(recipe, before):
        if recipe.epochs > before.epochs:
            return *extended(recipe, before, folder), False
        asked = f"after {before.epochs} epochs, more than the {recipe.epochs} asked for"
        return before, f"{done} {asked}; nothing to do", True
    # Fewer than its recipe says where a run was killed while it was being extended.
    is_whole = summary.get("epochs", recipe.total_epochs) >= recipe.total_epochs
    if folder.changes(recipe) or not is_whole:
        return recipe, "", False
    return recipe, f"{done}; nothing to do", True


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
        summary = folder.summary()
        if summary is not None and not isinstance(summary.get("last_top1"), int | float):
            raise ValueError("a summary tells the accuracy")
        return summary
    except (OSError, ValueError):
        if has_checkpoint(folder.checkpoints):
            return None
        raise RunError(
            f"{folder.path}/summary.json is half-written, and there is no checkpoint to write it again from; "
            "copy the file there again, or train in a new folder (--out)"
        ) from None
