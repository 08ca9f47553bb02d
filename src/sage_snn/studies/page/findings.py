"""What was found: the summary in words, measured beside reported, the comparison, the paper's claims."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..effects import Claim
from ..figures import Figure
from ..figures.style import label_order
from ..paper.reported import CAVEATS, EPOCHS, NETWORK, TITLES, reported_on
from ..paper.settings import unusual
from ..results import RunResult
from .document import Section, section
from .markup import Column, Markup, details, interval, join, number, table, tag

SHOWN = 12  # sentences before the rest is folded away
METRICS = ("last_top1", "best_top1")  # shown in every report
CAPTIONS = {
    "last_top1": "Top-1 (%), last epoch. Differences in percentage points",
    "best_top1": "Top-1 (%), best epoch. Differences in percentage points",
    "images_per_second": "Images per second in training. Differences in images per second",
}
COMPARED = {
    "last_top1": "Top-1 accuracy after the last epoch, in percentage points",
    "best_top1": "Top-1 accuracy of the best epoch, in percentage points",
    "images_per_second": "Speed of training, in images per second",
}
APART = (
    "Measured rows with a caveat were trained in another setting than the paper's: they compare with each other, not "
    "with the reported rows."
)
MINUS = re.compile(r"(?<![\w.])-(?=\d)")  # between words a hyphen stays one
VERDICTS = {"supported": "supported", "not supported": "refuted", "not tested here": "untested"}


def ordered(comparison: Any) -> list[dict[str, Any]]:
    """Rows of a comparison: data, T, policies first."""
    return sorted(
        comparison.to_dict("records"), key=lambda row: (row["data"], row["time_steps"], label_order(row["label"]))
    )


def summary(comparison: pd.DataFrame, baseline: str, metric: str, missing: str = "") -> Section:
    """A sentence per label and time steps, as the comparison words it; `missing` tells of runs that are not there."""
    rows = [row for row in ordered(comparison) if not row["is_baseline"]]
    gap = tag("p", missing, class_="note") if missing else None
    sentences = [
        tag("li", tag("strong", f"{row['label']}, {_name(row['data'])}, T = {row['time_steps']}: "), _sentence(row))
        for row in rows
    ]
    intro = (
        f"{COMPARED[metric]}, against {baseline}; runs are paired by seed and the intervals hold 95 %. "
        "The words follow from the intervals."
    )
    if not sentences:
        alone = tag("p", f"Only {baseline} was run, so there is nothing to compare yet.")
        return section("summary", "Summary", gap, alone)
    rest = details(f"{len(sentences) - SHOWN} more", tag("ul", *sentences[SHOWN:], class_="said"))
    cautions = sorted({row["caution"] for row in rows if row.get("caution")})
    if (tested := sum(int(row["pairs"]) > 1 for row in rows)) > 1:
        cautions.append(
            f"these are {tested} intervals: without any true difference one in twenty such intervals leaves out zero"
        )
    return section(
        "summary",
        "Summary",
        gap,
        tag("p", intro),
        tag("ul", *sentences[:SHOWN], class_="said"),
        rest if len(sentences) > SHOWN else None,
        *(tag("p", f"{caution[:1].upper()}{caution[1:]}.", class_="note") for caution in cautions),
    )


def reported(runs: Sequence[RunResult], labels: Sequence[str], comparisons: dict[str, pd.DataFrame]) -> Section:
    """The paper's rows and ours in one table per data set, with what is wrong in the paper's beside them."""
    covered = [data for data in TITLES if any(run.recipe.data == data for run in runs)]
    parts = [_reported_table(data, runs, labels, comparisons) for data in covered]
    if not covered:
        names = ", ".join(sorted({run.recipe.data for run in runs}))
        sentence = f"The paper reports nothing on the data of these runs ({names}), so its figures compare with none."
        rest = [_reported_table(data, runs, labels, comparisons) for data in TITLES]
        parts = [tag("p", sentence), details("The paper's figures all the same", *rest)]
    return section("reported", "Reported and measured", *parts)


def comparison_tables(comparisons: dict[str, pd.DataFrame], baseline: str) -> Section:
    """Mean, spread and paired difference of every label, for the last and the best epoch."""
    columns = [
        Column("data", "Data"),
        Column("time_steps", "T", "d"),
        Column("label", "Policy"),
        Column("n", "Seeds", "d"),
        Column("mean", "Mean", ".2f"),
        Column("std", "Std", ".2f", "sample standard deviation over seeds"),
        Column("range", "95 % interval", ".2f", "of the mean, by Student's t"),
        Column("difference", "Difference", "+.2f", f"paired with {baseline} by seed"),
        Column("t", "95 % interval", "+.2f", "of the difference, by Student's t"),
        Column("bootstrap", "Bootstrap", "+.2f", "95 % interval of the difference: too narrow for few seeds"),
        Column(
            "seeds_needed",
            "Seeds needed",
            ",d",
            "to see the gain that the paper claims (1 % of a speed) in 8 of 10 studies",
        ),
    ]
    tables = [
        table(
            [row | _cells(row) for row in ordered(compared)],
            columns,
            f"{CAPTIONS[metric]} to {baseline}.",
        )
        for metric, compared in comparisons.items()
    ]
    note = (
        "The best epoch is chosen on the test images and therefore flatters every policy. Seeds needed: pairs with "
        "which a t test would see the paper's claimed gain in 80 % of studies, given the spread seen here."
    )
    return section("comparison", "Comparison", *tables, tag("p", note, class_="note"))


def claims_table(claims: Sequence[Claim], figures: Sequence[Figure]) -> Section:
    """The paper's claims with a verdict, its reason and the figure behind it."""
    rows = [
        {
            "claim": claim.text,
            "verdict": tag("span", claim.verdict, class_=f"verdict {_mark(claim)}"),
            "reason": MINUS.sub("−", claim.reason),
            "figure": _link(claim.figure, figures),
        }
        for claim in claims
    ]
    columns = [Column(key, key.capitalize()) for key in ("claim", "verdict", "reason", "figure")]
    note = "A verdict holds for these runs: their size of network, their data and their number of epochs."
    whole = tag("div", table(rows, columns, "Claims of the paper, and what these runs say"), class_="claims")
    return section("claims", "The paper's claims", tag("p", note), whole)


def _reported_table(
    data: str, runs: Sequence[RunResult], labels: Sequence[str], comparisons: dict[str, pd.DataFrame]
) -> Markup:
    rows: list[dict[str, Any]] = [
        {"source": "reported", "method": row.method, "network": row.network or "–", "time_steps": row.time_steps or "–"}
        | {"top1": row.top1, "note": row.caveat}
        for row in reported_on(data)
    ]
    last, best = (comparisons[metric] for metric in METRICS)
    top = {(row["data"], row["time_steps"], row["label"]): row["mean"] for row in best.to_dict("records")}
    for row in ordered(last[last["data"] == data]):
        key = (row["data"], row["time_steps"], row["label"])
        run = next(r for r, label in zip(runs, labels, strict=True) if _key(r, label) == key)
        sizes = {"top1": row["mean"], "std": row["std"], "n": row["n"], "best": top.get(key)}
        words = {"source": "measured", "method": row["label"], "network": run.recipe.model.title, "class": "measured"}
        rows.append(words | {"time_steps": str(row["time_steps"]), "note": _unlike_paper(run)} | sizes)
    columns = [
        Column("source", "Source"),
        Column("method", "Method"),
        Column("network", "Network"),
        Column("time_steps", "T"),
        Column("top1", "Top-1 (%)", ".2f", "measured: mean over seeds, last epoch"),
        Column("std", "± std", ".2f", "sample standard deviation over seeds"),
        Column("best", "Best epoch (%)", ".2f", "chosen on the test images"),
        Column("n", "Seeds", "d"),
        Column("note", "Caveat"),
    ]
    apart = any(row["source"] == "measured" and row["note"] for row in rows)
    scale = tag("p", APART, class_="note") if apart else None
    caveats = tag("ul", *(tag("li", caveat) for caveat in CAVEATS[data]))
    warning = tag("div", tag("strong", "Known problems of the reported figures"), caveats, class_="caveats")
    whole = tag("div", table(rows, columns, f"{TITLES[data]} top-1"), class_="reported")
    return join([tag("h3", TITLES[data]), whole, scale, warning])


def _mark(claim: Claim) -> str:
    return "open" if claim.is_open else VERDICTS[claim.verdict]


def _unlike_paper(run: RunResult) -> str:
    recipe, told = run.recipe, list[str]()
    if recipe.model.title != NETWORK:
        told.append("another network")
    if recipe.epochs < EPOCHS:
        told.append(f"{recipe.total_epochs} epochs, not {EPOCHS}")
    if recipe.train_images:
        told.append(f"{recipe.train_images:,} training images")
    if recipe.test_images:
        told.append(f"{recipe.test_images:,} test images")
    if fields := unusual(recipe.policy):
        chosen = recipe.policy.model_dump(mode="json")
        told += [f"{name}={chosen[name]}" for name in (field.removeprefix("policy.") for field in fields)]
    if recipe.max_steps_per_epoch:
        told.append(f"at most {recipe.max_steps_per_epoch} steps an epoch")
    return ", ".join(told)


def _key(run: RunResult, label: str) -> tuple[str, int, str]:
    return run.recipe.data, run.recipe.model.time_steps, label


def _sentence(row: dict[str, Any]) -> str:
    pairs = int(row.get("pairs") or 0)
    counted = f" ({number(row['difference'], '+.2f')} on average of {pairs} seeds)" if pairs > 1 else ""
    return f"{MINUS.sub('−', str(row['words']))}{counted}."


def _link(name: str | None, figures: Sequence[Figure]) -> Markup | str:
    """To the figure of that name, or the first of its family."""
    if not name:
        return ""
    target = next((f for f in figures if f.name == name), None) or next(
        (f for f in figures if f.name.startswith(f"{name}-")), None
    )
    return "" if target is None else tag("a", name, href=f"#{target.name}", title=target.title)


def _name(data: str) -> str:
    return TITLES.get(data, data)


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    needed = row["seeds_needed"]
    return {
        "seeds_needed": None if pd.isna(needed) else int(needed),
        "range": interval(row["low"], row["high"], ".2f"),
        "t": interval(row["difference_low"], row["difference_high"], "+.2f"),
        "bootstrap": interval(row["bootstrap_low"], row["bootstrap_high"], "+.2f"),
    }
