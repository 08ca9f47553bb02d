import pytest
import yaml

from sage_snn.studies import StudyError, load_study
from sage_snn.studies.phase import phase_words, seeds_in_words
from sage_snn.studies.study import searches_of

FIXED, SLOPE_2, SAGE = (
    {"label": "fixed", "settings": {"policy.kind": "fixed"}},
    {"label": "slope 2", "settings": {"policy.kind": "fixed", "policy.slope": 2}},
    {"label": "sage", "settings": {"policy.kind": "sage"}},
)
SEARCH = {"recipe": "digits", "phase": "search", "variants": [FIXED, SLOPE_2, SAGE], "axes": {"seed": [1, 2, 3]}}
BEST = SLOPE_2 | {"label": "best fixed"}
CONFIRMATION = {
    "recipe": "digits",
    "phase": "confirmation",
    "follows": "search.yaml",
    "variants": [BEST, SAGE],
    "axes": {"seed": [4, 5]},
    "compare": {"baseline": "best fixed"},
}


def loaded(folder, confirmation=None, search=None):
    """The confirmation beside its search, with changes to each."""
    (folder / "search.yaml").write_text(yaml.safe_dump(SEARCH | (search or {})))
    (folder / "confirmation.yaml").write_text(yaml.safe_dump(CONFIRMATION | (confirmation or {})))
    return load_study(folder / "confirmation.yaml")


def test_a_confirmation_is_of_the_search_beside_it(tmp_path):
    study = loaded(tmp_path)
    assert [search.name for search in searches_of(study)] == ["search"]
    assert [run.label for run in study.runs()] == ["best fixed", "sage"] * 2


def test_a_confirmation_may_follow_several_searches(tmp_path):
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(SEARCH | {"axes": {"seed": [7]}, "variants": [FIXED, BEST]}))
    study = loaded(tmp_path, {"follows": ["search.yaml", "other.yaml"]}, {"variants": [FIXED, SAGE]})
    assert [search.name for search in searches_of(study)] == ["search", "other"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axes": {"seed": [3, 4, 2]}}, "the search search used seeds 2 and 3; a confirmation needs others, such as 4"),
        ({"follows": []}, "a confirmation needs the search whose settings it repeats; add `follows: NAME`"),
        ({"follows": "serch.yaml"}, "cannot read serch.yaml"),
        ({"phase": "search"}, "a study that follows another confirms it; add `phase: confirmation`"),
        ({"phase": None}, "a study that follows another confirms it; add `phase: confirmation`"),
        ({"phase": "confirm"}, "phase: Input should be 'search' or 'confirmation', not 'confirm'"),
        ({"compare": {}}, "compares with the best fixed slope of its search; name it in `compare: {baseline: LABEL}`"),
        ({"compare": {"baseline": "sage"}}, "the baseline sage is sage; a confirmation compares with a fixed slope"),
        (
            {"variants": [BEST, SAGE | {"settings": {"policy.kind": "sage", "policy.gain": 1.0}}]},
            r"sage was not tried in .*search.yaml, and a confirmation repeats what was; add it to the search",
        ),
    ],
)
def test_a_confirmation_of_nothing_that_was_frozen_is_refused(tmp_path, change, message):
    with pytest.raises(StudyError, match=message):
        loaded(tmp_path, change)


def test_only_a_search_can_be_confirmed(tmp_path):
    with pytest.raises(StudyError, match="it follows search, which is no search; add `phase: search` there"):
        loaded(tmp_path, search={"phase": None})
    with pytest.raises(StudyError, match="it follows confirmation, which is no search"):
        loaded(tmp_path, {"follows": "confirmation.yaml"})


def test_a_baseline_whose_name_begins_another_label_is_not_taken_for_it(tmp_path):
    other = SAGE | {"label": "best fixed sage"}
    assert loaded(tmp_path, {"variants": [BEST, other]}).compare.baseline == "best fixed"


def test_a_page_says_which_of_the_two_it_shows_and_what_that_means(tmp_path):
    study = loaded(tmp_path)
    (search,) = searches_of(study)
    said = phase_words(search, [])
    assert said.startswith("This is a search, on seeds 1 to 3: its best looks better here than it is")
    said = phase_words(study, [search])
    assert said.startswith("This is a confirmation of search: its settings, and the fixed slope")
    assert said.endswith("The intervals are of seeds 4 and 5 and the same images; the search had seeds 1 to 3.")
    assert "(best fixed), were frozen before these runs" in said
    assert phase_words(search.model_copy(update={"phase": None}), []) == ""


def test_other_images_are_told(tmp_path):
    sizes = {"train_images": 100, "test_images": 100}
    study = loaded(tmp_path, {"settings": sizes | {"subset": 1}}, {"settings": sizes})
    assert "seeds 4 and 5 and other images" in phase_words(study, searches_of(study))


def test_seeds_read_well():
    recipes = {seed: load_study("sensitivity-short", {}).recipes()[0].updated({"seed": seed}) for seed in range(9)}
    for seeds, words in [((3,), "seed 3"), ((1, 2), "seeds 1 and 2"), ((4, 2, 3), "seeds 2 to 4")]:
        assert seeds_in_words(recipes[seed] for seed in seeds) == words
    assert seeds_in_words(recipes[seed] for seed in (1, 3, 8)) == "seeds 1, 3 and 8"


def test_the_shipped_confirmation_has_seeds_and_images_of_its_own():
    study = load_study("policies-confirm")
    (search,) = searches_of(study)
    assert {recipe.seed for recipe in study.recipes()} == set(range(6, 16))
    assert "other images" in phase_words(study, [search])
    assert len({run.label for run in study.runs()}) <= 5, "the best fixed slope, 4, and at most three candidates"


@pytest.mark.parametrize("name", ["policies", "policies-small"])
def test_shipped_policies_run_on_both_networks_and_sage_where_there_is_attention(name):
    recipes = load_study(name).recipes()
    places = {(recipe.model.name, recipe.model.time_steps) for recipe in recipes}
    assert places == {("spikformer", 1), ("spikformer", 2), ("spikformer", 4), ("vgg11", 4)}
    assert {recipe.policy.kind for recipe in recipes} >= {"fixed", "scheduled", "learnable", "sage"}
    attending = [recipe for recipe in recipes if getattr(recipe.policy, "signal", "") == "entropy"]
    assert {recipe.model.name for recipe in attending} == {"spikformer"}
