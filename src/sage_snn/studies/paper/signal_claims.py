"""Claims about recorded signals, time and files rather than accuracy."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open

from ..effects import Claim, Effect, Test, effect_of, effects, is_higher, judge, plain
from ..results import RunResult, table
from .reported import CONTROLLER_MS

SATURATED = 0.95  # of the largest value that N keys allow
FLAT = 0.01  # of the same, between the lowest and the highest epoch
NEGLIGIBLE = 0.01  # of a training step
PAPER_TEMPERATURE = 0.25
_SIZES = {"digits": 8, "fashion-mnist": 28, "cifar10": 32, "cifar100": 32, "tiny-imagenet200": 64, "imagenet200": 224}


def gini_is_flat(runs: Sequence[RunResult], scale: str = "") -> Claim:
    """Saturated: at least 95 % of its largest value in every epoch and block; flat: epochs differ by 1 % of it."""
    text = "Gini impurity is saturated and stays flat over training"
    lowest, widest, counted = 1.0, 0.0, 0
    for run in runs:
        seen: Any = run.over_heads
        if seen is None or "gini" not in seen:
            continue
        shares = seen.groupby(["temperature", "block", "epoch"])["gini"].mean() / _largest_gini(run)
        epochs = shares.groupby(level=[0, 1])
        lowest = min(lowest, float(shares.min()))
        widest = max(widest, float((epochs.max() - epochs.min()).max()))
        counted += int(seen["epoch"].nunique() > 1)
    if not counted:
        return Claim(text, "not tested here", "no run recorded it over two or more epochs (observe.temperatures)")
    holds = lowest >= SATURATED and widest <= FLAT
    reason = (
        f"over {counted} runs, blocks and temperatures the mean of an epoch is never below {lowest:.1%} of the largest "
        f"possible value, and moves by at most {widest:.1%} of it between epochs "
        f"(saturated: {SATURATED:.0%} or more; flat: {FLAT:.0%} or less)"
    )
    return Claim(text, "supported" if holds else "not supported", reason + scale, "gini")


def quarter_keeps_most(runs: Sequence[RunResult], scale: str = "") -> Claim:
    """Dispersion of entropy at temperature 0.25 less that at each other temperature, seed by seed."""
    text = "temperature 0.25 keeps the most dispersion of entropy"
    rows = [(run.recipe.seed, _dispersion(run)) for run in runs]
    rows = [{"seed": seed} | row for seed, row in rows if PAPER_TEMPERATURE in row and len(row) > 1]
    if not rows:
        return Claim(text, "not tested here", "no run recorded 0.25 and another temperature (observe.temperatures)")
    means: Any = pd.DataFrame(rows).groupby("seed").mean()  # runs of one seed start alike: they are one observation
    tests: list[Test] = []
    for other in sorted(column for column in means if column != PAPER_TEMPERATURE):
        where = f"0.25 ({means[PAPER_TEMPERATURE].mean():.2g}) against {other:g} ({means[other].mean():.2g})"
        effect = effect_of(where, list((means[PAPER_TEMPERATURE] - means[other]).dropna()))
        tests.append(is_higher(effect))
    return judge(text, tests, "", "temperature", scale)


def overhead_claims(runs: Sequence[RunResult]) -> list[Claim]:
    """Milliseconds per step of sage over fixed, from the images per second of whole runs."""
    exact = f"the controller costs about {CONTROLLER_MS} ms per mini-batch"
    share = f"the controller's cost is negligible (under {NEGLIGIBLE:.0%} of a training step)"
    if not runs:
        return [Claim(text, "not tested here", "no runs to time") for text in (exact, share)]
    rows: Any = table(runs)
    rows["step_ms"] = [1000 * run.recipe.batch_size for run in runs] / rows["images_per_second"]
    sage, fixed = plain(rows, "sage"), plain(rows, "fixed")
    costs = effects(rows, sage, fixed, "step_ms")
    devices = ", ".join(sorted({str(run.applied.get("device", "unknown")) for run in runs}))
    scale = f"; milliseconds per step, measured on {devices}, the paper's on a V100 (about: up to twice the figure)"
    missing = "no sage and fixed runs to time"
    step = float(rows.loc[fixed, "step_ms"].mean())
    about, least = 2 * CONTROLLER_MS, {id(e): NEGLIGIBLE * _step(rows[fixed], e, step) for e in costs}
    exactly = [Test(e, 0 <= e.paired.high <= about, e.paired.low <= about and e.paired.high >= 0) for e in costs]
    little = [Test(e, e.paired.high < least[id(e)], e.paired.low < least[id(e)]) for e in costs]
    told = f"{scale}; a step with a fixed slope takes {step:.0f} ms"
    return [judge(exact, exactly, missing, "overhead", scale), judge(share, little, missing, "overhead", told)]


def inference_is_unchanged(runs: Sequence[RunResult]) -> Claim:
    """Weights of fixed and sage runs have the same names and shapes: the deployed network is the same."""
    text = "inference is unchanged: the trained network has the same parameters as without SAGE"
    kinds: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        if (shapes := _shapes(run)) is not None:
            model = run.recipe.model.model_dump_json() + run.recipe.data
            kinds.setdefault(model, {}).setdefault(run.recipe.policy.kind, set()).add(shapes)
    pairs = [by_kind for by_kind in kinds.values() if {"fixed", "sage"} <= by_kind.keys()]
    if not pairs:
        return Claim(text, "not tested here", "needs the weights of a sage and a fixed run of the same network")
    same = all(len(by_kind["fixed"] | by_kind["sage"]) == 1 for by_kind in pairs)
    told = "the same" if same else "different"
    reason = (
        f"the weights of sage and fixed runs have {told} names and shapes in {len(pairs)} network(s); "
        "slopes act in backward only, so the forward pass has nothing to add"
    )
    return Claim(text, "supported" if same else "not supported", reason)


def _largest_gini(run: RunResult) -> float:
    """1 - 1/N for N keys; 1 where the size of images or patches is not known."""
    size, patch = _SIZES.get(run.recipe.data), getattr(run.recipe.model, "patch_size", None)
    return 1.0 if size is None or patch is None else 1 - 1 / (-(-size // patch)) ** 2


def _dispersion(run: RunResult) -> dict[float, float]:
    """Temperature -> deviation over heads of the entropy, averaged over steps and blocks."""
    seen: Any = run.over_heads
    if seen is None:
        return {}
    means = seen.groupby("temperature")["dispersion"].mean()
    return {float(temperature): float(value) for temperature, value in means.items()}


def _step(fixed: Any, effect: Effect, otherwise: float) -> float:
    rows = fixed[(fixed["data"] == effect.data) & (fixed["time_steps"] == effect.time_steps)]
    return float(rows["step_ms"].mean()) if len(rows) else otherwise


def _shapes(run: RunResult) -> str | None:
    try:
        with safe_open(run.folder / "model.safetensors", "pt") as file:
            return str(sorted((name, file.get_slice(name).get_shape()) for name in file.keys()))  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
