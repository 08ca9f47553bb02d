import pytest

from sage_snn.recipes import POLICIES, load_recipe
from sage_snn.recipes.policies import SagePart
from sage_snn.studies.paper.settings import SCHEDULE, SETTINGS, unusual


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_field_of_the_paper_s_policies_is_pinned(kind):
    assert SETTINGS[kind].keys() | set(SCHEDULE) == POLICIES.kinds[kind].model_fields.keys() | set(SCHEDULE)


@pytest.mark.parametrize("kind", SETTINGS)
def test_shipped_recipes_have_the_paper_s_policies(kind):
    assert unusual(load_recipe("cifar10", {"policy.kind": kind, "policy.warmup_epochs": 5}).policy) == ()


def test_what_differs_from_the_paper_is_named():
    assert unusual(SagePart(gain=-0.5, temperature=1.0)) == ("policy.temperature", "policy.gain")
    assert unusual(load_recipe("digits", {"policy.kind": "fixed", "policy.slope": 3}).policy) == ("policy.slope",)
    assert unusual(load_recipe("digits", {"policy.kind": "fixed", "policy.gain": -0.5}).policy) == ()


def test_a_default_of_the_recipe_is_not_taken_for_the_paper_s(monkeypatch):
    monkeypatch.setitem(SETTINGS["sage"], "gain", 0.75)
    assert unusual(SagePart()) == ("policy.gain",)


def test_a_policy_that_the_paper_does_not_have_is_unusual(monkeypatch):
    monkeypatch.delitem(SETTINGS, "learnable")
    assert unusual(load_recipe("digits", {"policy.kind": "learnable"}).policy) == ("policy.kind",)
