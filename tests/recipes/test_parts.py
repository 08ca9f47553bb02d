from typing import Literal

import pytest
import torch
import torch.nn.functional as F
import yaml

from sage_snn.losses import TET, CrossEntropy, SumCrossEntropy
from sage_snn.recipes import LOSSES, MODELS, POLICIES, RecipeError, differences, load_recipe, load_typed
from sage_snn.recipes.parts import Family, Kind
from sage_snn.recipes.policies import FixedPart, LearnablePart, SagePart
from sage_snn.studies.plan import run_key


def test_a_part_has_its_own_fields_only():
    assert set(FixedPart.model_fields) == {"kind", "slope"}
    assert set(LearnablePart.model_fields) == {"kind", "slope", "per"}
    assert not {"slope", "per"} & set(SagePart.model_fields)
    assert POLICIES.names[:5] == ("fixed", "scheduled", "learnable", "sage", "none")
    transformers = ("spikformer", "qkformer", "spikingresformer")
    assert MODELS.names == (*transformers, "resnet19", "resnet20", "resnet20_wide", "vgg11", "vgg16")
    assert LOSSES.names == ("cross_entropy", "tet", "sum_cross_entropy")


def test_fields_of_other_kinds_are_accepted_and_ignored():
    fixed = load_recipe("digits", {"policy.kind": "fixed", "policy.gain": -0.5, "policy.per": "block"})
    assert fixed.policy.model_dump() == {"kind": "fixed", "slope": 4.0}
    assert not hasattr(fixed.policy, "gain")
    with pytest.raises(RecipeError, match=r"policy\.gian: no such field; did you mean 'gain'\?"):
        load_recipe("digits", {"policy.gian": 1})
    with pytest.raises(RecipeError, match=r"policy\.per: Input should be 'network', 'block', 'layer' or 'time'"):
        fixed.updated({"policy.per": "head"})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"policy.kind": "fixed", "policy.gian": 1}, r"policy\.gian: no such field; leave it out, .* of kind, slope$"),
        ({"policy.kind": "mpd_agl", "policy.slop": 1}, r"policy\.slop: .* or use one of kind$"),
        ({"loss": "tet", "loss.margin": 1}, r"loss\.margin: .* or use one of kind, weight, target$"),
        ({"policy.kind": "sgae", "policy.gian": 1}, r"policy\.gian: no such field; did you mean 'gain'\?"),
    ],
)
def test_a_field_that_does_not_exist_is_answered_with_those_of_its_kind(settings, told):
    with pytest.raises(RecipeError, match=told):
        load_recipe("digits", settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"policy.kind": "fixed", "policy.gain": 2}, "policy.gain is a field of sage; fixed has slope: leave it out"),
        ({"policy": {"kind": "none", "gain": 2}}, "policy.gain is a field of sage; none has none: leave it out"),
        ({"policy.kind": "fixed", "policy.per": "block"}, "policy.per is a field of learnable; fixed has slope"),
        ({"loss.weight": 0.2}, "loss.weight is a field of tet; cross_entropy has none: .* another loss.kind"),
        ({"model.name": "vgg11", "model.dim": 64}, "model.dim is a field of spikformer, qkformer; vgg11 has .*width"),
    ],
)
def test_a_setting_that_was_typed_for_another_kind_is_an_error_that_names_both(settings, told):
    assert load_recipe("digits", settings)  # inherited fields are no mistake
    with pytest.raises(RecipeError, match=told):
        load_typed("digits", settings)


def test_typed_settings_that_have_an_effect_give_the_same_recipe(tmp_path):
    for settings in (
        {"policy.gain": -0.5, "model.depth": 1, "data_dir": "x", "observe": {"activity": 3}},
        {"policy.kind": "fixed", "policy.slope": 2.0, "loss": "tet", "loss.weight": 0.2},
    ):
        assert load_typed("digits", settings) == load_recipe("digits", settings)
    (tmp_path / "own.yaml").write_text("from: digits\npolicy: {kind: fixed, gain: 2}\n")
    assert load_typed(tmp_path / "own.yaml", {"seed": 1}).policy.kind == "fixed"


@pytest.mark.parametrize("per", ["group", "head", "channel", "token"])
def test_a_recipe_says_how_fine_the_slopes_of_sage_are(ours, per):
    sage = load_recipe("digits", {"policy.slopes_per": per}).policy.build(ours(), 10, 0)
    assert sage.per == per
    assert f"a slope per {per}" in str(sage)
    with pytest.raises(RecipeError, match=r"policy\.slopes_per: Input should be 'group', 'head', 'channel' or 'token'"):
        load_recipe("digits", {"policy.slopes_per": "neuron"})


def test_channels_follow_the_firing_rate_unless_a_signal_is_named(ours):
    usual, per = load_recipe("digits"), {"policy.slopes_per": "channel"}
    for finer in (load_recipe("digits", per), usual.updated(per)):
        assert finer.identity()["policy.signal"] == "firing_rate"  # what a run writes down
        assert run_key(finer) == run_key(usual.updated(per | {"policy.signal": "firing_rate"}))
        assert finer.updated({"policy.slopes_per": "group"}) == usual
    named = load_recipe("digits", per | {"policy.signal": "entropy"})
    for recipe in (named, load_recipe("digits", {"policy.signal": "entropy"}).updated(per)):
        with pytest.raises(RecipeError, match="source='attention' has no value per channel"):
            recipe.policy.build(ours(), 10, 0)
    assert load_recipe("digits", {"policy.signal": "entropy"}) == usual


def test_changing_the_kind_and_back_gives_the_same_recipe():
    sage = load_recipe("digits", {"policy.gain": -0.5, "policy.warmup_epochs": 0})
    fixed = sage.updated({"policy.kind": "fixed"})
    assert fixed.policy.kind == "fixed"
    assert fixed.updated({"policy.kind": "sage"}) == sage
    assert differences(sage, fixed) == [("policy.kind", "sage", "fixed")]


def test_what_was_given_for_another_kind_is_written_and_read_again(tmp_path):
    fixed = load_recipe("digits", {"policy.kind": "fixed", "policy.gain": -0.5})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(fixed.model_dump(mode="json")))
    again = load_recipe(tmp_path / "recipe.yaml")
    assert again == fixed
    assert again.identity()["policy.gain"] == -0.5
    assert fixed != load_recipe("digits", {"policy.kind": "fixed"})


def test_a_part_may_be_given_as_it_is():
    assert load_recipe({"policy": FixedPart(slope=3.0)}).identity()["policy.slope"] == 3.0


class NarrowPart(Kind):
    kind: Literal["narrow"] = "narrow"
    slope: float = 3.0


def test_a_name_means_the_same_in_every_kind():
    with pytest.raises(TypeError, match=r"NarrowPart\.slope is not the slope of another kind; rename it"):
        Family(FixedPart | NarrowPart, default="fixed")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("cross_entropy", CrossEntropy()),
        ("tet", TET()),
        ({"kind": "tet", "weight": 0.1, "target": 0}, TET(weight=0.1, target=0.0)),
        ("sum_cross_entropy", SumCrossEntropy()),
    ],
)
def test_a_loss_is_a_word_or_a_mapping(given, expected):
    assert load_recipe({"loss": given}).loss.build() == expected
    assert load_recipe("digits", {"loss": given}).loss.build() == expected


def test_settings_reach_the_fields_of_a_loss_that_is_a_word(tmp_path):
    (tmp_path / "own.yaml").write_text("loss: tet\n")
    assert load_recipe(tmp_path / "own.yaml", {"loss.weight": 0.2}).loss.build() == TET(weight=0.2)
    assert load_recipe("digits", {"loss": "tet", "loss.weight": 0.2}).loss.build() == TET(weight=0.2)
    with pytest.raises(RecipeError, match=r"loss\.kind: Input should be 'cross_entropy', 'tet' or 'sum_cross_entropy'"):
        load_recipe({"loss": "tett"})


def test_the_usual_loss_is_not_written_but_every_field_can_be_seen():
    usual, other = load_recipe("digits"), load_recipe("digits", {"loss": "tet"})
    assert "loss" not in usual.model_dump()
    assert usual.all_fields()["loss"] == {"kind": "cross_entropy", "weight": 0.05, "target": 1.0}
    assert other.model_dump()["loss"]["kind"] == "tet"
    assert differences(usual, other) == [("loss.kind", "cross_entropy", "tet")]


def test_a_schedule_is_built_with_its_length_in_steps(ours):
    part = load_recipe("digits", {"policy.kind": "scheduled", "policy.schedule_epochs": 0.5, "policy.end": 8.0}).policy
    with part.build(ours(), 10, seed=0) as policy:
        assert (policy.start, policy.end, policy.steps, policy.shape) == (2.0, 8.0, 5, "exponential")


def test_policies_that_try_slopes_are_built_with_their_fields_and_the_loss_of_the_training(ours):
    def loss(batch):
        raise NotImplementedError

    recipe = load_recipe("digits", {"policy.kind": "aligned", "policy.trial_every": 3, "policy.trial_high": 6.0})
    with recipe.policy.build(ours(), 10, seed=5, loss=loss) as policy:
        assert (policy.every, policy.low, policy.high, policy.seed, policy.loss) == (3, 1.0, 6.0, 5, loss)
        assert (policy.reach, policy.rate, policy.length) == (0.2, 0.05, 0.01)
    settings = {
        "policy.kind": "dgs",
        "policy.search_epochs": 1.5,
        "policy.search_batches": 15,
        "policy.search_pairs": 2,
    }
    with load_recipe("digits", settings).policy.build(ours(), 10, seed=5, loss=loss) as policy:
        assert (policy.every, policy.batches, policy.pairs, policy.loss) == (15, 15, 2, loss)
        assert (policy.delta, policy.floor, policy.length) == (0.2, 0.2, 0.01)
    part = load_recipe("digits", settings).policy
    with pytest.raises(RecipeError, match=r"policy: a search of 15 batches does not fit .*--set policy\.FIELD=VALUE"):
        part.build(ours(), 9, seed=5)


@pytest.mark.parametrize("kind", ["aligned", "dgs"])
def test_a_policy_that_tries_slopes_takes_a_plain_cross_entropy_where_no_loss_is_given(ours, kind):
    settings = {"policy.kind": kind, "policy.trial_every": 1, "policy.search_epochs": 1, "policy.search_batches": 1}
    batch = torch.randn(4, 3, 16, 16), torch.arange(4)
    model = ours()
    with load_recipe("digits", settings).policy.build(model, 1, seed=5) as policy:
        assert torch.equal(policy.loss(batch), F.cross_entropy(model(batch[0]), batch[1]))
