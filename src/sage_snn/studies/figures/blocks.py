"""What happened inside the blocks: slopes, dispersion and score over training, entropy per head, idle heads."""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pandas types every selection as a union of table, column and cell, which none of this depends on.

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...recipes.policies import POLICIES
from ..results import RunResult, blocks_of, heads_of
from .bars import Bars
from .figure import Figure
from .heat import Heat
from .lines import Lines
from .tidy import MOST, Group, Member, block_name, name_of, thinned, typical

IDLE = 1 - 1e-6  # where no spikes of query and key coincide all scores are equal: entropy 1, up to rounding
MEASURES = {"slope": "slope", "dispersion": "dispersion over heads", "zscore": "centred score z"}


def block_figures(members: list[Member]) -> list[Figure]:
    """All figures of this family whose data exists."""
    return [*slopes(members), *head_maps(members), *idle_heads(members)]


def slopes(members: list[Member]) -> list[Figure]:
    """Slope, dispersion and score of each block over training, a figure per label whose slopes move."""
    tables = {group: _slope_table(group) for group in typical(members)}
    moving = [group for group, data in tables.items() if not data.empty][:MOST]
    made: list[Figure] = []
    for group in moving:
        drawing = Lines(
            "step",
            "value",
            "block",
            "training step",
            "",
            row="measure",
            row_titles=MEASURES,
            references={"zscore": 0.0},
        )
        is_led = (tables[group]["measure"] == "zscore").any()
        law = (
            " The law moves a block's slope by its score; within the dead zone it stays at the base." if is_led else ""
        )
        what = "Slope, dispersion and score per block" if is_led else "Slope"
        caption, name, title = group.seeds + law, name_of("slopes", group, moving), f"{what}: {group.title}"
        made.append(Figure(name, title, caption, tables[group], drawing))
    return made


def head_maps(members: list[Member]) -> list[Figure]:
    """How much each head's entropy moves within an epoch, a figure per label that recorded it."""
    firsts = {g: m for g in typical(members) if (m := next((m for m in g.members if m.run.has_head_entropy), None))}
    tables = {group: _head_table(member) for group, member in firsts.items()}
    recorded = [group for group, data in tables.items() if not data.empty][:MOST]
    made: list[Figure] = []
    for group in recorded:
        drawing = Heat("epoch", "head", "deviation", "epoch", "head", "standard deviation of entropy", "block")
        data = tables[group]
        last = data[data["epoch"] == data["epoch"].max()]
        idle = int(last["is_idle"].sum())
        caption = (
            "Colour: standard deviation, over the steps of an epoch, of the head's normalised entropy (0 to 1). "
            f"One run, seed {firsts[group].seed}: heads of different seeds do not correspond. "
            f"Idle in its last epoch, no query met a key: {idle} of {len(last)} heads."
        )
        name = name_of("heads", group, recorded)
        made.append(Figure(name, f"Movement of head entropy: {group.title}", caption, data, drawing))
    return made


def unread(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """Who is not in the figures of heads, in words; empty where nobody could expect to be."""
    lacking = dict.fromkeys(name for run, name in zip(runs, labels, strict=True) if not run.has_head_entropy)
    is_expected = any(run.has_head_entropy or hasattr(run.recipe.policy, "signal") for run in runs)
    if not lacking or not is_expected:
        return ""
    return f"No entropy per head was recorded for {', '.join(lacking)}: the figures of heads leave them out."


def idle_heads(members: list[Member]) -> list[Figure]:
    """Heads that never attend to anything in the last epoch, if there are any."""
    rows: list[dict[str, object]] = []
    for group in typical(members):
        counts: dict[str, list[tuple[int, int]]] = {}
        for member in group.members:
            last = _head_table(member, last_only=True)
            for block, idle in last.groupby("block")["is_idle"].sum().items():
                counts.setdefault(str(block), []).append((member.seed, int(idle)))
        for block, pairs in counts.items():
            mean = float(np.mean([idle for _, idle in pairs]))
            names = {"data": group.data, "label": group.label, "block": block, "mean": mean}
            blank = {"low": np.nan, "high": np.nan}
            rows += [names | {"seed": seed, "value": idle} | blank for seed, idle in pairs]
    data = pd.DataFrame(rows, columns=["data", "label", "block", "seed", "value", "mean", "low", "high"])
    if not (data["value"] > 0).any():
        return []
    drawing = Bars("block", "label", "block", "idle heads", "data")
    caption = (
        "Heads whose entropy is 1 at every step of the last epoch: no query met a key. Mean and seeds. "
        "`sage-snn inspect` tells which of them are dead: their query or key never fires."
    )
    return [Figure("idle-heads", "Idle heads per block", caption, data, drawing)]


def head_entropy(member: Member) -> pd.DataFrame:
    """Rows (epoch, step, block, entropy per head) of a run, from its signals or else from what was observed."""
    policy = member.run.recipe.policy
    # Runs of older versions call the values of any signal entropy.
    if getattr(policy, "signal", None) == "entropy" and not (read := _with_entropy(member.signals)).empty:
        return read
    observed = member.observations
    if observed is None:
        return _with_entropy(None)
    temperature = POLICIES.fields(policy)["temperature"]
    nearest = min(observed["temperature"].unique(), key=lambda t: abs(t - temperature))
    return _with_entropy(observed[observed["temperature"] == nearest])


def _with_entropy(rows: pd.DataFrame | None) -> pd.DataFrame:
    columns = ["epoch", "step", "block", "entropy"]
    if rows is None or rows.empty or "entropy" not in rows:
        return pd.DataFrame(columns=columns)
    return rows.loc[rows["entropy"].notna(), columns]


def _head_table(member: Member, *, last_only: bool = False) -> pd.DataFrame:
    parts: list[pd.DataFrame] = []
    for block, rows in blocks_of(head_entropy(member)):
        values, epochs = heads_of(rows["entropy"]), rows["epoch"].to_numpy()
        for epoch in np.unique(epochs)[-1:] if last_only else np.unique(epochs):
            part = values[epochs == epoch]
            columns = {"head": range(part.shape[1]), "deviation": part.std(0), "is_idle": (part >= IDLE).all(0)}
            parts.append(pd.DataFrame({"block": block_name(block), "epoch": epoch, **columns}))
    if not parts:
        return pd.DataFrame(columns=["block", "epoch", "head", "deviation", "is_idle"])
    return pd.concat(parts, ignore_index=True)


def _slope_table(group: Group) -> pd.DataFrame:
    tables = [rows for member in group.members if (rows := member.signals)["slope"].nunique() > 1]
    values = [name for name in MEASURES if any(name in rows and rows[name].notna().any() for rows in tables)]
    parts = [rows.reindex(columns=["step", "block", *values]) for rows in tables]
    parts = [part.astype(dict.fromkeys(values, float)) for part in parts]
    data = thinned(parts, ["block"], values)
    data["block"] = data["block"].map(block_name)
    if not data.empty and values == ["slope"] and data.groupby("step")["value"].nunique().max() == 1:
        data = data[data["block"] == data["block"].iloc[0]].assign(block="all blocks")  # one slope for the network
    return data.sort_values("measure", key=lambda column: column.map(list(MEASURES).index), kind="stable")
