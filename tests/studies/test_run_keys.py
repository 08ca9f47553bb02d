"""Keys of runs never change: finished runs of earlier versions are found under them."""

import json
from pathlib import Path

import pytest

from sage_snn.recipes import load_recipe, parse_recipe
from sage_snn.recipes.fields import flat
from sage_snn.studies import load_study, shipped_studies
from sage_snn.studies.plan import run_key

KEYS = json.loads(Path(__file__).with_name("run_keys.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", KEYS["studies"])
def test_runs_of_shipped_studies_keep_their_keys(name):
    assert name in shipped_studies()
    assert [planned.key for planned in load_study(name).runs()] == KEYS["studies"][name]


@pytest.mark.parametrize("case", KEYS["recipes"], ids=lambda case: case["key"])
def test_recipes_keep_their_keys(case):
    assert run_key(load_recipe(case["source"], case["settings"])) == case["key"]


@pytest.mark.parametrize("case", KEYS["written"], ids=lambda case: case["key"])
def test_recipes_that_list_the_fields_of_all_policies_keep_their_keys_and_their_values(case):
    recipe = parse_recipe(case["fields"])
    assert run_key(recipe) == case["key"]
    written = recipe.model_dump(mode="json", exclude={"about"})
    assert parse_recipe(written) == parse_recipe(case["fields"])
    values, whole = dict(flat(case["fields"])), recipe.identity()  # files leave defaults of other kinds out
    assert {name: whole[name] for name in values if name in whole} == {n: v for n, v in values.items() if n in whole}
    assert values.keys() - whole.keys() <= {"name", "data_dir", "workers"}
