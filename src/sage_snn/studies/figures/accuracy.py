"""Accuracy: bars per time steps and policy, paired differences, curves over epochs, sensitivity to a fixed slope."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOperatorIssue=false
# pandas types every selection as a union of table, column and cell, which none of this depends on.

import numpy as np
import pandas as pd

from ...recipes.policies import POLICIES
from ..comparison import baseline_labels, compare, scene_columns
from .bars import Bars
from .figure import Figure
from .lines import Lines
from .style import label_order
from .tidy import POINTS, Member, band, groups

HOLDS_ZERO = "An interval that holds zero means that no difference was seen, not that there is none."
DOTS = "A dot is a seed, a whisker the 95 % interval of the mean (Student's t; none for a single seed)."


def accuracy_figures(members: list[Member], rows: pd.DataFrame, baseline: str) -> list[Figure]:
    """All figures of this family whose data exists; `rows` is the table of the runs."""
    comparison = compare(rows, "last_top1", baseline).set_index(["data", "time_steps", "label"])
    made = [
        accuracy_bars(members, comparison),
        differences(members, rows, comparison, baseline),
        accuracy_curves(members),
        sensitivity(members, comparison),
    ]
    return [figure for figure in made if figure is not None]


def accuracy_bars(members: list[Member], comparison: pd.DataFrame) -> Figure | None:
    """Last-epoch accuracy per time steps and label, with a dot per seed."""
    data = _accuracies(members, comparison, ["mean", "low", "high"])
    if data.empty:
        return None
    drawing = Bars("time_steps", "label", "time steps T", "test top-1, last epoch (%)", "data", from_zero=False)
    caption = f"{DOTS} The axis does not start at zero."
    return Figure("accuracy", "Accuracy per time steps", caption, data, drawing)


def differences(members: list[Member], rows: pd.DataFrame, comparison: pd.DataFrame, baseline: str) -> Figure | None:
    """Paired difference to the baseline, seed by seed."""
    data = _accuracies(members, comparison, ["difference", "difference_low", "difference_high"])
    reference = _references(rows, baseline)
    keys = zip(data["data"], data["time_steps"], data["label"], data["seed"], strict=True)
    data["value"] = data["value"] - [reference.get(key, np.nan) for key in keys]
    data = data[data["value"].notna() & data["mean"].notna()].reset_index(drop=True)
    if data.empty:
        return None
    title = "difference (percentage points)"
    drawing = Bars("time_steps", "label", "time steps T", title, "data", from_zero=False, as_points=True)
    caption = f"{DOTS} Runs are paired by seed. {HOLDS_ZERO}"
    return Figure("difference", f"Paired difference of accuracy to {baseline}", caption, data, drawing)


def accuracy_curves(members: list[Member]) -> Figure | None:
    """Test accuracy over epochs, mean over seeds with the range of the seeds."""
    parts: list[pd.DataFrame] = []
    for group in groups(members):
        # A network that was converted only has an accuracy, but no epoch.
        trained = [m.run.metrics for m in group.members if m.run.summary["epochs"] and "test_top1" in m.run.metrics]
        if not trained:
            continue
        joined = pd.concat([rows[["epoch", "test_top1"]] for rows in trained])
        joined = joined[joined["epoch"] % max(1, -(-int(joined["epoch"].max() + 1) // POINTS)) == 0]
        rows = [(epoch, one.mean(), *band(one)) for epoch, one in joined.groupby("epoch")["test_top1"]]
        part = pd.DataFrame(rows, columns=["epoch", "test_top1", "low", "high"])
        panel = f"{group.data}, T = {group.time_steps}"
        parts.append(part.assign(panel=panel, label=group.label, order=group.time_steps, data=group.data))
    if not parts or max(len(part) for part in parts) < 2:
        return None
    data = pd.concat(parts).sort_values(["data", "order"], kind="stable")
    data = data[["panel", "label", "epoch", "test_top1", "low", "high"]].reset_index(drop=True)
    drawing = Lines("epoch", "test_top1", "label", "epoch", "test top-1 (%)", column="panel")
    caption = "Mean over seeds; the band reaches from the lowest to the highest seed."
    return Figure("curves", "Accuracy over training", caption, data, drawing)


def sensitivity(members: list[Member], comparison: pd.DataFrame) -> Figure | None:
    """Accuracy against the slope of runs whose slope is fixed."""
    fixed = [m for m in members if m.run.recipe.policy.kind == "fixed"]
    data = _accuracies(fixed, comparison, ["mean", "low", "high"])
    data["panel"] = [f"{name}, T = {steps}" for name, steps in zip(data["data"], data["time_steps"], strict=True)]
    data["series"] = data["label"].map(_setting)
    data = data.drop_duplicates(["panel", "series", "slope"])
    data = data[data.groupby(["panel", "series"])["slope"].transform("nunique") >= 3]
    if data.empty:
        return None
    data = data.sort_values(["data", "time_steps", "series", "slope"])[
        ["panel", "series", "slope", "mean", "low", "high"]
    ]
    titles = ("fixed slope of the blocks' neurons", "test top-1, last epoch (%)")
    drawing = Lines("slope", "mean", "series", *titles, column="panel", whiskers=True)
    caption = (
        "Every run keeps one slope in all blocks; a whisker is the 95 % interval of the mean over seeds. A flat curve "
        "leaves little for any controller to gain."
    )
    return Figure("sensitivity", "Accuracy against a fixed slope", caption, data.reset_index(drop=True), drawing)


def _setting(label: str) -> str:
    """What else than the slope a label of a fixed slope tells."""
    words = [word for word in label.split() if word != "fixed" and not word.startswith("slope=")]
    return " ".join(words) or "mean over seeds"


def _accuracies(members: list[Member], comparison: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """A row per seed with the interval of its group beside it."""
    known = comparison.loc[~comparison.index.duplicated(), columns].set_axis(["mean", "low", "high"], axis=1)
    intervals = known.to_dict("index")
    rows: list[dict[str, object]] = []
    for m in members:
        value, interval = m.run.summary.get("last_top1"), intervals[(m.data, m.time_steps, m.label)]
        if value is None or not np.isfinite(value):
            continue
        names = {"data": m.data, "time_steps": m.time_steps, "label": m.label, "seed": m.seed}
        slope = POLICIES.fields(m.run.recipe.policy)["slope"]
        rows.append(names | {"slope": slope, "value": value} | interval)
    columns = ["data", "time_steps", "label", "seed", "slope", "value", "mean", "low", "high"]
    data = pd.DataFrame(rows, columns=columns)
    order = data["label"].map(label_order)
    data = data.assign(order=order).sort_values(["data", "time_steps", "order", "seed"])
    return data.drop(columns="order").reset_index(drop=True)


def _references(rows: pd.DataFrame, baseline: str) -> dict[tuple[str, int, str, int], float]:
    """(data, T, label, seed) -> accuracy of the baseline's run of that seed in its scene, paired as in `compare`."""
    scene = scene_columns(rows, "last_top1")
    accuracies: dict[tuple[str, int, str, int], float] = {}
    for _, same in rows.groupby([*scene, "seed"], sort=False, dropna=False):
        wanted = baseline_labels(baseline, same[scene].iloc[0].to_dict())
        reference = same[same["label"].isin(wanted)]
        for row in same[~same["label"].isin(wanted)].to_dict("records") if len(reference) else []:
            key = (row["data"], row["time_steps"], row["label"], row["seed"])
            accuracies[key] = float(reference["last_top1"].iloc[0])
    return accuracies
