"""The paper on a page of results: its figures beside those measured here, and its claims with their verdicts."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..effects import Claim, Verdict
from ..figures import Figure
from ..page.document import Section, section
from ..page.findings import METRICS, MINUS, ordered
from ..page.markup import Column, Markup, details, join, table, tag
from ..results import RunResult
from .reported import CAVEATS, EPOCHS, NETWORK, TITLES, reported_on
from .settings import unusual

APART = (
    "Measured rows with a caveat were trained in another setting than the paper's: they compare with each other, not "
    "with the reported rows."
)
MARKS: dict[Verdict, str] = {  # verdict -> how the page marks it
    "supported": "supported",
    "not supported": "refuted",
    "cannot tell": "open",
    "not tested here": "untested",
}


def is_reported(runs: Sequence[RunResult]) -> bool:
    """Does the paper report figures on the data of any of these runs?"""
    return any(run.recipe.data in TITLES for run in runs)


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


def claims_table(claims: Sequence[Claim], figures: Sequence[Figure]) -> Section:
    """The paper's claims with a verdict, its reason and the figure behind it."""
    rows = [
        {
            "claim": claim.text,
            "verdict": tag("span", claim.verdict, class_=f"verdict {MARKS[claim.verdict]}"),
            "reason": MINUS.sub("−", claim.reason),
            "figure": _link(claim.figure, figures),
        }
        for claim in claims
    ]
    columns = [Column(key, key.capitalize()) for key in ("claim", "verdict", "reason", "figure")]
    note = (
        "A verdict holds for these runs: their size of network, their data and their number of epochs. "
        "Cannot tell: the intervals neither show the claim nor speak against it."
    )
    whole = tag("div", table(rows, columns, "Claims of the paper, and what these runs say"), class_="claims")
    return section("claims", "The paper's claims", tag("p", note), whole)


def verdicts_in_words(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict."""
    counts = Counter(claim.verdict for claim in claims)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in MARKS if counts[verdict])
    return f"Of the {len(claims)} claims of the paper: {told}."


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


def _link(name: str | None, figures: Sequence[Figure]) -> Markup | str:
    """To the figure of that name, or the first of its family."""
    if not name:
        return ""
    target = next((f for f in figures if f.name == name), None) or next(
        (f for f in figures if f.name.startswith(f"{name}-")), None
    )
    return "" if target is None else tag("a", name, href=f"#{target.name}", title=target.title)
