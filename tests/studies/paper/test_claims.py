import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from sage_snn.recipes import load_recipe
from sage_snn.studies.paper.claims import claims
from sage_snn.studies.results import RunResult

SEEDS = (1, 2, 3, 4, 5)
NOISE = dict(zip(SEEDS, (0.1, -0.2, 0.05, 0.15, -0.1), strict=True))


def rows(kind, gain=0.0, time_steps=4, seeds=SEEDS, data="cifar10", label=None, **fields):
    """Accuracies of a policy whose gain over fixed is known, up to a little noise."""
    usual = {"policy.gain": 0.5, "policy.signal": "entropy"}
    unusual = tuple(key for key, value in usual.items() if fields.get(key, value) != value)
    columns = {f"recipe.{key}": value for key, value in (usual | fields).items()}
    return [
        {"folder": f"{kind}{seed}", "data": data, "policy": kind, "label": label or kind, "time_steps": time_steps}
        | {"seed": seed, "last_top1": 60 + seed + gain + NOISE[seed] * (kind != "fixed"), "images_per_second": 100.0}
        | columns
        | {"unusual": unusual}
        for seed in seeds
    ]


def verdict(table, words):
    """Of the claim that has these words."""
    claim = judged(table, words)
    return claim.verdict, claim.reason, claim.figure


def judged(table, words):
    """The claim that has these words."""
    (claim,) = [claim for claim in claims(pd.DataFrame(table)) if words in claim.text]
    return claim


@pytest.mark.parametrize(("gain", "expected"), [(1.5, "supported"), (0.0, "cannot tell"), (-1.5, "not supported")])
def test_beating_fixed_follows_from_the_interval(gain, expected):
    found, reason, figure = verdict(rows("fixed") + rows("sage", gain), "more accurate than a fixed slope at T=4")
    assert found == expected
    assert ("holds zero" in reason) == (gain == 0)
    assert "5 seeds" in reason
    assert figure == "difference"


def test_every_dataset_must_show_it():
    table = rows("fixed") + rows("sage", 1.5) + rows("fixed", data="cifar100") + rows("sage", 0.0, data="cifar100")
    found, reason, _ = verdict(table, "more accurate than a fixed slope at T=4")
    assert found == "cannot tell"
    assert "cifar10 T=4: higher by" in reason
    assert "cifar100 T=4: no difference seen" in reason
    table += rows("fixed", data="digits") + rows("sage", -1.5, data="digits")
    assert verdict(table, "more accurate than a fixed slope at T=4")[0] == "not supported"


def test_what_only_other_networks_differ_in_is_not_told():
    scene = {"model.dim": 64, "lr": 0.1}
    other = [row | {"recipe.model.dim": None, "recipe.lr": 0.2} for row in rows("none", label="TET")]
    table = rows("fixed", **scene) + rows("sage", 1.5, **scene) + other
    assert verdict(table, "more accurate than a fixed slope at T=4")[1].startswith("cifar10 T=4: higher by")


def test_one_seed_or_nan_tests_nothing():
    one = rows("fixed", seeds=(1,)) + rows("sage", 1.5, seeds=(1,))
    assert verdict(one, "fixed slope at T=4")[:2] == ("not tested here", "cifar10 T=4: one seed only: no interval")
    broken = rows("fixed") + [row | {"last_top1": math.nan} for row in rows("sage")]
    assert verdict(broken, "fixed slope at T=4")[0] == "not tested here"


def test_the_abstract_s_gain_is_one_point_to_two():
    assert verdict(rows("fixed") + rows("sage", 0.5), "1 to 2 points")[0] == "not supported"
    assert verdict(rows("fixed") + rows("sage", 1.4), "1 to 2 points")[0] == "supported"
    assert verdict(rows("fixed") + rows("sage", 6.0), "1 to 2 points")[0] == "not supported"


@pytest.mark.parametrize(("spread", "expected"), [(3.0, "cannot tell"), (0.1, "not supported")])
def test_an_interval_that_leaves_the_claim_possible_is_not_held_against_it(spread, expected):
    table = rows("fixed") + rows("sage", -0.5)
    table = [
        row | {"last_top1": row["last_top1"] + spread * NOISE[row["seed"]] * (row["policy"] == "sage") * 10}
        for row in table
    ]
    claim = judged(table, "more accurate than a fixed slope at T=4")
    assert claim.verdict == expected
    assert ("too few seeds to tell" in claim.reason) == (expected == "cannot tell")


def test_no_verdict_contradicts_its_reason():
    for gain in (1.5, 0.3, 0.0, -1.5):
        for claim in claims(pd.DataFrame(steps({1: gain, 2: 0.1, 4: gain}))):
            assert ("too few seeds to tell" in claim.reason) == (claim.verdict == "cannot tell")


def test_the_documented_verdicts_do_not_contradict_their_reasons_either():
    lines = (Path(__file__).parents[3] / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    judged_lines = [line for line in lines if re.match(r"\| .* \| \*\*[a-z ]+\*\* \|", line)]
    assert len(judged_lines) == len(claims([]))
    for line in judged_lines:
        assert ("too few seeds to tell" in line) == ("**cannot tell**" in line), line


def test_runs_on_other_devices_are_paired_apart():
    device = {"applied.device": "cpu"}, {"applied.device": "cuda"}
    table = [
        row | here for here in device for row in rows("fixed") + rows("sage", 1.5 if "cpu" in here.values() else -1.5)
    ]
    _, reason, _ = verdict(table, "more accurate than a fixed slope at T=4")
    assert "applied.device=cpu: higher by" in reason
    assert "applied.device=cuda: lower by" in reason


@pytest.mark.parametrize("unusual", [("policy.gain",), ("policy.slope",), ("policy.temperature",)])
def test_other_settings_than_the_paper_s_test_none_of_its_claims(unusual):
    table = [row | {"unusual": unusual} for row in rows("fixed") + rows("sage", 1.5)]
    assert verdict(table, "more accurate than a fixed slope at T=4")[0] == "not tested here"


def test_settings_without_a_dot_set_the_scene_too():
    table = rows("fixed", lr=0.1) + rows("sage", 1.5, lr=0.1) + rows("fixed", lr=0.01) + rows("sage", -1.5, lr=0.01)
    found, reason, _ = verdict(table, "more accurate than a fixed slope at T=4")
    assert found == "not supported"
    assert "lr=0.1: higher by" in reason
    assert "lr=0.01: lower by" in reason


def steps(gains):
    return [row for t, gain in gains.items() for row in rows("fixed", 0, t) + rows("sage", gain, t)]


def test_gains_over_time_steps():
    peak = {1: 0.6, 2: 0.8, 4: 1.5, 8: 0.0}
    assert verdict(steps(peak), "every T up to 4")[0] == "supported"
    assert verdict(steps(peak), "largest at T=4")[0] == "supported"
    assert verdict(steps({2: 1.5, 4: 1.5}), "largest at T=4")[0] == "not supported"  # equal to the bit
    assert verdict(steps({1: 0.0, 2: 1.5, 4: 1.5}), "every T up to 4")[0] == "cannot tell"
    assert verdict(steps({1: 1.5, 2: 1.5}), "every T up to 4")[0] == "not tested here"


@pytest.mark.parametrize(("gain", "expected"), [(0.1, "supported"), (3.0, "not supported")])
def test_on_a_par_means_an_interval_within_the_claimed_gain(gain, expected):
    table = [row for T in (8, 12) for row in rows("learnable", 0.0, T) + rows("sage", gain, T)]
    assert verdict(table[:10], "learnable slope at T=8")[0] == "not tested here"
    table = [row | {"last_top1": row["last_top1"] + 0.1 * row["seed"] * (row["policy"] == "sage")} for row in table]
    found, reason, _ = verdict(table, "learnable slope at T=8")
    assert found == expected
    assert "within ±0.81 points" in reason


def test_direction_and_controls_are_told_apart():
    table = rows("sage", 1.5) + rows("sage", 0.0, label="broaden", **{"policy.gain": -0.5})
    table += rows("sage", 1.5, label="random", **{"policy.signal": "random"}) + rows("fixed")
    assert verdict(table, "narrowing")[0] == "supported"
    found, reason, _ = verdict(table, "random or constant")
    assert found == "not supported"
    assert "against random" in reason
    assert "against constant" not in reason


def test_without_runs_nothing_is_tested():
    assert {claim.verdict for claim in claims([])} == {"not tested here"}
    assert all(claim.reason for claim in claims([]))


class Recorded(RunResult):
    """A run with observations at hand."""

    def observations(self):
        rng = np.random.default_rng(self.recipe.seed)
        places = [(e, b, t) for e in range(3) for b in range(2) for t in (0.25, 1.0)]
        spread = {0.25: self.summary["spread"], 1.0: 0.01}
        columns = pd.DataFrame(places, columns=["epoch", "block", "temperature"])
        entropy = [0.9 + spread[t] * rng.uniform(0.9, 1.1) * np.array([-1, 1]) for t in columns["temperature"]]
        gini = [[(1 - 1 / 64) * self.summary["gini"] * (1 - self.summary["drift"] * e)] * 2 for e in columns["epoch"]]
        return columns.assign(step=columns["epoch"], entropy=entropy, gini=gini)


def recorded(tmp_path, kind, seed, gini=0.99, drift=0.0, spread=0.05, speed=100.0, weights=("a",)):
    folder = tmp_path / f"{kind}{seed}"
    folder.mkdir()
    save_file({name: torch.zeros(2) for name in weights}, folder / "model.safetensors")
    recipe = load_recipe("cifar10-study", {"policy.kind": kind, "seed": seed})
    summary = {"last_top1": 50.0, "best_top1": 50.0, "seconds": 1.0, "peak_memory_mb": 1.0, "parameters": 2}
    metrics = pd.DataFrame({"epoch": [0], "images_per_second": [speed * (1 + seed / 1000)]})
    return Recorded(
        folder, recipe, summary | {"gini": gini, "drift": drift, "spread": spread}, metrics, {"device": "cpu"}
    )


def told(runs, words):
    (found,) = [claim for claim in claims(runs) if words in claim.text]
    return found.verdict


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "supported"), ({"gini": 0.8}, "not supported"), ({"drift": 0.015}, "not supported")],
)
def test_gini_is_judged_by_its_level_and_its_movement(tmp_path, options, expected):
    assert told([recorded(tmp_path, "sage", seed, **options) for seed in (1, 2)], "Gini") == expected


@pytest.mark.parametrize(("spread", "expected"), [(0.05, "supported"), (0.001, "not supported")])
def test_the_temperature_of_most_dispersion_is_judged_by_seed(tmp_path, spread, expected):
    runs = [recorded(tmp_path, "sage", seed, spread=spread) for seed in (1, 2, 3)]
    assert told(runs, "temperature 0.25") == expected
    assert told(runs[:1], "temperature 0.25") == "not tested here"


@pytest.mark.parametrize(("speed", "expected"), [(99.999, "supported"), (80.0, "not supported")])
def test_overhead_is_judged_by_the_time_of_a_step(tmp_path, speed, expected):
    runs = [recorded(tmp_path, "fixed", seed) for seed in (1, 2, 3)]
    runs += [recorded(tmp_path, "sage", seed, speed=speed) for seed in (1, 2, 3)]
    assert told(runs, "negligible") == expected
    assert told(runs, "0.03 ms") == expected


@pytest.mark.parametrize(("weights", "expected"), [(("a",), "supported"), (("a", "slope"), "not supported")])
def test_inference_is_judged_by_the_weights(tmp_path, weights, expected):
    runs = [recorded(tmp_path, "fixed", 1), recorded(tmp_path, "sage", 1, weights=weights)]
    assert told(runs, "inference is unchanged") == expected
    assert told(runs[:1], "inference is unchanged") == "not tested here"


def test_the_scale_of_small_runs_is_told(tmp_path):
    runs = [recorded(tmp_path, "sage", seed) for seed in (1, 2)]
    (gini,) = [claim for claim in claims(runs) if "Gini" in claim.text]
    assert "Spikformer-4-64, 4,000 images of cifar10, 5 epochs" in gini.reason
