"""Finished runs as tables: read from their folders, one row per run."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from .. import files
from ..recipes.fields import RecipeError, parse_yaml
from ..recipes.recipe import Recipe, parse_recipe
from ..runs.folder import RunError, RunFolder, epoch_parts, facts_in
from ..screen import shown
from .conditions import condition, condition_columns, condition_words, different_conditions
from .labels import APPLIED, RECIPE, THREADS, is_context, labels, told, varying
from .paper.settings import unusual

_BYTES_OF_A_VALUE = 8  # at least, whatever it was packed into
_METRICS = ("test_top1", "images_per_second")
_SUMMARY = ("last_top1", "best_top1", "epochs", "parameters", "seconds", "peak_memory_mb")


class ResultError(RunError):
    """Results that cannot be read or compared; the message names the folder and the cure."""


@dataclass(frozen=True)
class RunResult:
    """What a finished run left: `metrics` has a row per epoch."""

    folder: Path
    recipe: Recipe
    summary: dict[str, Any]
    metrics: pd.DataFrame
    applied: dict[str, Any] = field(default_factory=dict)  # facts beside the recipe: versions, device, threads

    def signals(self) -> pd.DataFrame:
        """Columns step, block, dispersion, zscore, slope and epoch, and what the policy read under the signal's name.

        That is `entropy` with a list per head, `gini` and so on; runs of older versions call it entropy always.
        """
        parts = _parts(self.folder / "signals")
        if parts is None:
            raise ResultError(f"{self.folder} has no signals/epoch-*.parquet; train it again in a new folder")
        return parts

    def observations(self) -> pd.DataFrame | None:
        """Columns step, block, temperature, entropy and gini (lists per head) and epoch; None if none were recorded."""
        return _parts(self.folder / "observations")

    @cached_property
    def has_head_entropy(self) -> bool:
        """Was the entropy of every head recorded: as what the policy read, or as what was observed?"""
        # Runs of older versions call whatever a policy read entropy, so the recipe must say so too.
        is_read = getattr(self.recipe.policy, "signal", None) == "entropy"
        return (is_read and "entropy" in _columns(self.folder / "signals")) or (
            "entropy" in _columns(self.folder / "observations")
        )

    @property
    def images_per_second(self) -> float:
        """Median over the epochs, the first left out if there are others: it pays for compiling and caches.

        NaN where no epoch was trained, as of a network that was converted only.
        """
        speeds: Any = self.metrics["images_per_second"].astype(float)
        return float((speeds[1:] if len(speeds) > 1 else speeds).median())

    @cached_property
    def over_heads(self) -> pd.DataFrame | None:
        """Columns epoch, step, block, temperature, dispersion of entropy and, if recorded, mean gini; None as above.

        Kept, unlike the lists it is made of: figures and claims both go by it.
        """
        rows = self.observations()
        return None if rows is None or rows.empty else _over_heads(rows)


def load_runs(paths: Iterable[str | Path]) -> list[RunResult]:
    """The finished runs in these folders, each once."""
    runs = [_load(path) for path in {Path(path).resolve(): Path(path) for path in paths}.values()]
    if not runs:
        raise ResultError("no run to read; give the folders of finished runs")
    return runs


def table(runs: Sequence[RunResult], names: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One row per run; `recipe.lr` for every recipe field and `applied.device` for every fact that differs.

    `names` maps the name of a run's folder to a label of its own, such as a study's variants have.
    """
    recipes = [run.recipe for run in runs]
    fields, facts, given = varying(recipes), condition_columns(runs), names or {}
    rows: list[dict[str, Any]] = []
    for run, label in zip(runs, labels(recipes, fields), strict=True):
        settings = _settings(run, fields, facts)
        words = [given.get(run.folder.name, label), *condition_words(settings, settings)]
        rows.append(_row(run, " ".join(words)) | settings)
    return pd.DataFrame(rows).astype({f"{RECIPE}{name}": object for name in fields})


def field_columns(rows: pd.DataFrame) -> list[str]:
    """Columns of a table in which its runs differ: recipe fields, then facts of how they were trained."""
    names = list(map(str, rows.columns))
    return [name for start in (RECIPE, APPLIED) for name in names if name.startswith(start)]


def recipe_differences(runs: Sequence[RunResult]) -> dict[str, list[Any]]:
    """Dotted field -> its values, where runs of the same data differ in more than policy, T, seed and threads.

    Facts that keep runs apart stand as `applied.device`; runs that do not tell them differ from none.
    """
    fields = [key for key in varying(run.recipe for run in runs) if is_context(key) and key != THREADS]
    values = {key: [run.recipe.identity().get(key) for run in runs] for key in fields}
    values |= {f"{APPLIED}{key}": [condition(run, key) for run in runs] for key in different_conditions(runs)}
    return {key: [value for n, value in enumerate(given) if value not in given[:n]] for key, given in values.items()}


def require_comparable(runs: Sequence[RunResult], asked: Iterable[str] = ()) -> None:
    """Refuse runs of different recipes, showing the difference, unless every differing field was asked for."""
    allowed = set(asked)
    different = {key: values for key, values in recipe_differences(runs).items() if key not in allowed}
    if different:
        lines = "\n".join(f"  {key}: {' or '.join(map(repr, values))}" for key, values in different.items())
        raise ResultError(
            f"the runs are of different recipes, or were trained differently (applied):\n{lines}\n"
            "a comparison would mix these up; leave some out, or ask for it with --different-recipes"
        )


def blocks_of(rows: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    """The rows of each block of what a run recorded; blocks may differ in their number of heads."""
    everything: Any = rows
    for block, part in everything.groupby("block", sort=True):
        yield int(block), part


def heads_of(column: Any) -> np.ndarray:
    """A block's column of lists, one value per head, as an array (rows, heads)."""
    values = pc.call_function("list_flatten", [pa.array(column)])
    return values.to_numpy().astype(float).reshape(len(column), -1)


def _row(run: RunResult, label: str) -> dict[str, Any]:
    recipe = run.recipe
    return {
        "folder": str(run.folder),
        "data": recipe.data,
        "policy": recipe.policy.kind,
        "label": label,
        "time_steps": recipe.model.time_steps,
        "seed": recipe.seed,
        "last_top1": _number(run.summary["last_top1"]),
        "best_top1": _number(run.summary["best_top1"]),
        "seconds": _number(run.summary["seconds"]),
        "images_per_second": run.images_per_second,
        "peak_memory_mb": _number(run.summary["peak_memory_mb"]),
        "parameters": run.summary["parameters"],
        "unusual": unusual(recipe.policy),
    }


def _settings(run: RunResult, fields: list[str], facts: list[str]) -> dict[str, Any]:
    identity = run.recipe.identity()
    values = {f"{RECIPE}{key}": _hashable(identity.get(key)) for key in fields}
    return values | {f"{APPLIED}{key}": str(condition(run, key)) for key in facts}


def _load(path: Path) -> RunResult:
    if not path.is_dir():
        raise ResultError(f"there is no folder {path}; give the folder of a run")
    fields = _fields(path)
    applied = facts_in(fields)
    try:
        recipe = parse_recipe(fields, source=str(path / "recipe.yaml"))
    except RecipeError as error:
        version = (applied.get("versions") or {}).get("sage-snn", "unknown")
        raise ResultError(
            f"{path} was written by another version of sage-snn ({version}); read it with that one, "
            f"or train it again:\n{error}"
        ) from None
    folder = RunFolder(path)
    summary, lines = _summary(folder, recipe), folder.metrics()
    if len(lines) < summary["epochs"]:
        raise ResultError(
            f"{path} is half-written: {summary['epochs']} epochs were trained, metrics.jsonl has {len(lines)}; "
            "copy it again, or delete it and train it again"
        )
    _require_numbers(folder, lines)
    return RunResult(path, recipe, summary, pd.DataFrame(lines), applied)


def _fields(path: Path) -> dict[str, Any]:
    file = path / "recipe.yaml"
    try:
        fields = parse_yaml(files.read_text(file))
    except FileNotFoundError:
        raise ResultError(f"{path} has no recipe.yaml, so it is not a run's; give the folder of a run") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ResultError(f"{file} cannot be read ({error}); copy it again, or train it again") from None
    if not isinstance(fields, dict):
        raise ResultError(f"{file} holds no recipe; copy it again, or train it again")
    return fields


def _summary(folder: RunFolder, recipe: Recipe) -> dict[str, Any]:
    try:
        summary = folder.summary()
    except (OSError, ValueError):
        raise ResultError(f"{folder.path}/summary.json is half-written; go on with the run (--resume)") from None
    if summary is None:
        raise ResultError(
            f"{folder.path} is not finished: {len(folder.metrics())} of {recipe.total_epochs} epochs are done; "
            "go on with --resume, or run its study again"
        )
    wrong = [key for key in _SUMMARY if not isinstance(summary.get(key), int | float | None)]
    missing = [key for key in _SUMMARY if key not in summary]
    if wrong or not isinstance(summary.get("epochs", 0), int):
        raise ResultError(
            f"{folder.path}/summary.json holds no number as {(*wrong, 'epochs')[0]}; copy it again, or train it again"
        )
    if missing:
        raise ResultError(
            f"{folder.path}/summary.json has no {missing[0]}: it was written by another version; train it again"
        )
    return summary


def _require_numbers(folder: RunFolder, lines: Sequence[Mapping[str, Any]]) -> None:
    for line in lines:
        for key in _METRICS:
            if key not in line or not isinstance(line[key], int | float | None):
                raise ResultError(
                    f"{folder.metrics_file} has no number as {key} of epoch {line['epoch']}; "
                    "copy it again, or train it again"
                )


def _parts(folder: Path) -> pd.DataFrame | None:
    """The parts of all epochs under one another, with their epoch."""
    tables: list[pa.Table] = []
    for number, part in epoch_parts(folder):
        try:
            with pq.ParquetFile(io.BytesIO(files.read_bytes(part))) as file:
                files.require_room(_BYTES_OF_A_VALUE * file.metadata.num_rows * file.metadata.num_columns)
                rows = file.read()
        except (OSError, ValueError, MemoryError) as error:
            why = shown(" ".join(str(error).split()))
            raise ResultError(f"{part} cannot be read ({why}); copy it again, or train it again") from None
        epoch = np.full(len(rows), number)
        tables.append(rows.append_column("epoch", pa.array(epoch)))
    if not tables:
        return None
    joined = pa.concat_tables(tables, promote_options="permissive")  # a column without a value has no type of its own
    # Lists stay Arrow's: pandas would make an object of each, which takes longer than to read them.
    joined = joined.replace_schema_metadata()  # what pandas wrote of its index, for itself; damage there is no loss
    return joined.to_pandas(types_mapper=lambda kind: pd.ArrowDtype(kind) if pa.types.is_list(kind) else None)


def _columns(folder: Path) -> list[str]:
    """Of the first part, without its rows; none where there is no part or it cannot be read."""
    try:
        first = next((part for _, part in epoch_parts(folder)), None)
        return [] if first is None else list(pq.read_schema(io.BytesIO(files.read_bytes(first))).names)
    except (OSError, ValueError):
        return []


def _over_heads(rows: pd.DataFrame) -> pd.DataFrame:
    parts: list[pd.DataFrame] = []
    for _, part in blocks_of(rows):
        made: Any = part[["epoch", "step", "block", "temperature"]]
        made = made.assign(dispersion=heads_of(part["entropy"]).std(1))
        is_whole = "gini" in part and bool(part["gini"].notna().all())
        parts.append(made.assign(gini=heads_of(part["gini"]).mean(1)) if is_whole else made)
    return pd.concat(parts, ignore_index=True)


def _number(value: Any) -> float:
    """NaN is written as null by some JSON writers."""
    return float("nan") if value is None else float(value)


def _hashable(value: Any) -> Any:
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        return told(value)
    return tuple(value) if isinstance(value, list) else value
