"""Runs whose policy tries slopes: the loop gives it the loss and the batches, and a kill anywhere resumes."""

import pandas as pd
import pytest
import torch

from sage_snn.models.spikformer import Spikformer
from sage_snn.policies import Aligned
from sage_snn.recipes import load_recipe
from sage_snn.runs.health import check_recipe
from sage_snn.training import train

ALIGNED = {"policy.kind": "aligned", "policy.trial_every": 2, "observe.temperatures": [0.25]}
DGS = {"policy.kind": "dgs", "policy.search_epochs": 0.67, "policy.search_batches": 2}  # steps 3, 4 and 5, 6


@pytest.mark.parametrize(
    "policy", [ALIGNED, DGS, ALIGNED | {"accumulate": 2, "loss": "tet"}], ids=["aligned", "dgs", "accumulated"]
)
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, tiny, policy, same_run, interrupted):
    settings = tiny | policy
    train("digits", tmp_path / "whole", settings=settings, quiet=True)
    interrupted(tmp_path / "parts", settings)
    train("digits", tmp_path / "parts", settings=settings, quiet=True, resume=True)
    assert same_run(tmp_path / "whole", tmp_path / "parts")
    slopes = pd.concat(pd.read_parquet(part) for part in (tmp_path / "whole" / "signals").glob("*.parquet"))["slope"]
    assert slopes.nunique() > 1


def test_trials_that_move_nothing_change_no_bit_of_a_run_nor_of_what_is_observed(tmp_path, tiny, same_run):
    for name, policy in (("plain", {"policy.kind": "fixed"}), ("inert", ALIGNED | {"policy.trial_rate": 0})):
        train("digits", tmp_path / name, settings=tiny | {"observe.temperatures": [0.25]} | policy, quiet=True)
    assert same_run(tmp_path / "plain", tmp_path / "inert")


def test_a_trial_has_the_loss_of_the_training_on_the_last_micro_batch(tmp_path, tiny, monkeypatch):
    seen, usual = [], Aligned._try
    monkeypatch.setattr(
        Aligned, "_try", lambda self, *args: (seen.append((args[1], self.loss(args[1]))), usual(self, *args))[1]
    )
    train("digits", tmp_path / "run", settings=tiny | ALIGNED | {"accumulate": 2, "loss": "tet"}, quiet=True)
    (images, targets), loss = seen[0]
    assert len(seen) == 3
    assert images.shape[0] == len(targets) == 4  # the outer half of 8 images
    assert targets.shape[1] == 10
    assert loss.requires_grad


def test_trials_compute_in_the_precision_of_the_training(tmp_path, tiny, monkeypatch):
    seen, usual = [], Spikformer.forward_features

    def watched(self, x):
        if self.training:
            seen.append((len(x), torch.is_autocast_enabled("cpu")))
        return usual(self, x)

    monkeypatch.setattr(Spikformer, "forward_features", watched)
    train("digits", tmp_path / "half", settings=tiny | ALIGNED | {"precision": "bf16", "epochs": 1}, quiet=True)
    assert seen == 2 * [(16, True)] + 4 * [(8, True)] + [(16, True)]


def test_a_recipe_that_tries_slopes_can_be_checked():
    recipe = load_recipe("digits", ALIGNED | {"train_images": 40, "batch_size": 8})
    assert torch.isfinite(torch.tensor(check_recipe(recipe).loss))
