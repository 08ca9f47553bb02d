"""Under what conditions runs were trained: what the machine decided rather than the recipe."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .labels import APPLIED

if TYPE_CHECKING:
    from .results import RunResult

DECISIVE = ("precision", "device", "ranks")  # runs are paired only where these are the same
TOLD = "threads"  # moves sums in their last bits, and the time: runs are paired all the same
UNKNOWN = "unknown"


def condition(run: "RunResult", key: str) -> Any:
    """What the run says of it; `unknown` where an older version did not write it down."""
    value = run.applied.get(key)
    return UNKNOWN if value is None else value


def different_conditions(runs: Sequence["RunResult"], keys: Iterable[str] = DECISIVE) -> list[str]:
    """The keys of which runs of the same data have two values; what is unknown differs from nothing."""
    return [key for key in keys if any(len(_known(group, key)) > 1 for group in _by_data(runs))]


def condition_columns(runs: Sequence["RunResult"]) -> list[str]:
    """The keys that a table of these runs tells: those that differ, unless the recipes tell as much."""
    keys = different_conditions(runs, (*DECISIVE, TOLD))
    return [key for key in keys if key != "precision" or not _follows_from_recipe(runs)]


def condition_words(values: Mapping[str, Any], columns: Iterable[str]) -> list[str]:
    """`device=cuda`: the words that a label has for conditions which keep runs apart."""
    return [f"{key}={values[f'{APPLIED}{key}']}" for key in DECISIVE if f"{APPLIED}{key}" in columns]


def condition_notes(runs: Sequence["RunResult"]) -> list[str]:
    """What a reader must know of the conditions, a sentence each; none if all are known and the same."""
    notes: list[str] = []
    apart = different_conditions(runs)
    for key in apart:
        notes.append(f"The runs differ in {key} ({_counted(runs, key)}): they are paired only where it is the same.")
    if different_conditions(runs, [TOLD]):
        notes.append(
            f"The runs differ in {TOLD} ({_counted(runs, TOLD)}), which moves results by rounding: they are paired "
            "all the same, and their times do not compare."
        )
    unknown = {key: sum(condition(run, key) == UNKNOWN for run in runs) for key in (*DECISIVE, TOLD)}
    by_count: dict[int, list[str]] = {}
    for key, count in unknown.items():
        if count:
            by_count.setdefault(count, []).append(key)
    for count, keys in by_count.items():
        held = "are paired among themselves" if set(keys) & set(apart) else "are paired as if it were the same"
        notes.append(
            f"Not known of {count} of {len(runs)} runs, which an older version wrote: {', '.join(keys)}; they {held}."
        )
    return notes


def _by_data(runs: Iterable["RunResult"]) -> list[list["RunResult"]]:
    gathered: dict[str, list[RunResult]] = {}
    for run in runs:
        gathered.setdefault(run.recipe.data, []).append(run)
    return list(gathered.values())


def _known(runs: Iterable["RunResult"], key: str) -> set[str]:
    return {str(value) for run in runs if (value := condition(run, key)) != UNKNOWN}


def _follows_from_recipe(runs: Sequence["RunResult"]) -> bool:
    asked: dict[str, list[RunResult]] = {}
    for run in runs:
        asked.setdefault(run.recipe.precision, []).append(run)
    return all(len(_known(group, "precision")) <= 1 for group in asked.values())


def _counted(runs: Iterable["RunResult"], key: str) -> str:
    counts = Counter(str(condition(run, key)) for run in runs)
    return ", ".join(f"{value}: {count} run{'s' * (count > 1)}" for value, count in counts.items())
