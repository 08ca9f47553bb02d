"""A row of the table of systems: the runs of one system under one protocol, over its seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..comparison import Estimate, by_seed, estimate
from ..paper.reported import EPOCHS, method_called
from ..plan import Planned
from ..results import RunResult
from ..variant import Protocol

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Entry:
    """What a system reached and cost; accuracies by seed, the rest as means over seeds, NaN where nobody counted."""

    name: str
    protocol: Protocol
    data: str
    system: str
    method: str | None  # how the paper calls it
    source: str
    network: str
    parameters: int
    time_steps: int
    last: pd.Series
    best: pd.Series
    firing_rate: float
    sops: float
    energy_uj: float
    seconds: float
    training: str
    is_reduced: bool

    @property
    def last_top1(self) -> Estimate:
        """Of the last epoch, over seeds."""
        return estimate(list(self.last))

    @property
    def best_top1(self) -> Estimate:
        """Of the best epoch, over seeds."""
        return estimate(list(self.best))


def entries(plan: Sequence[Planned], runs: Sequence[RunResult], rows: pd.DataFrame) -> list[Entry]:
    """One per data set, label and T, in the order of the plan; `rows` is the table of the runs."""
    order = {run.folder.name: index for index, run in enumerate(runs)}
    gathered: dict[tuple[Any, ...], list[tuple[Planned, int]]] = {}
    for planned in plan:
        if planned.protocol is not None and (index := order.get(planned.key)) is not None:
            key = (planned.recipe.data, str(rows["label"].iloc[index]), planned.recipe.model.time_steps)
            gathered.setdefault(key, []).append((planned, index))
    return [_entry(members, [runs[index] for _, index in members], rows) for members in gathered.values()]


def training_words(summary: Mapping[str, Any]) -> str:
    """The trainings of a run one after another: `ann 5 epochs, then 3`."""
    earlier = [f"{stage['name']} {_epochs(int(stage['epochs']))}" for stage in summary.get("stages") or ()]
    last = int(summary["epochs"])
    if not earlier:
        return _epochs(last)
    return f"{', '.join(earlier)}, then {last or 'converted'}"


def _entry(members: Sequence[tuple[Planned, int]], runs: Sequence[RunResult], rows: Any) -> Entry:
    planned, first = members[0]
    mine = rows.iloc[[index for _, index in members]]
    recipe, about = planned.recipe, planned.recipe.about
    name = planned.name + str(rows["label"].iloc[first]).removeprefix(planned.label)
    system = str(about.get("system") or planned.name)
    return Entry(
        name=name,
        protocol=planned.protocol or "own",
        data=recipe.data,
        system=system,
        method=method_called(planned.name, system),
        source=", ".join(str(about[key]) for key in ("authors", "paper") if about.get(key)),
        network=recipe.model.title,
        parameters=int(runs[0].summary["parameters"]),
        time_steps=recipe.model.time_steps,
        last=by_seed(mine, "last_top1"),
        best=by_seed(mine, "best_top1"),
        firing_rate=_mean(runs, "firing_rate"),
        sops=_mean(runs, "sops"),
        energy_uj=_mean(runs, "energy_uj"),
        seconds=float(mine["seconds"].mean()),
        training=" or ".join(dict.fromkeys(training_words(run.summary) for run in runs)),
        is_reduced=any(_is_reduced(run) for run in runs),
    )


def _mean(runs: Sequence[RunResult], key: str) -> float:
    """Over the runs that counted it."""
    counted = [(run.summary.get("activity") or {}).get(key) for run in runs]
    values = [float(value) for value in counted if value is not None]
    return sum(values) / len(values) if values else NAN


def _is_reduced(run: RunResult) -> bool:
    """Was it trained on less than the papers' data, or for fewer epochs?"""
    recipe, stages = run.recipe, run.summary.get("stages") or ()
    epochs = int(run.summary["epochs"]) + sum(int(stage["epochs"]) for stage in stages)
    return bool(recipe.train_images or recipe.test_images or recipe.max_steps_per_epoch) or epochs < EPOCHS


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' * (count != 1)}"
