from pathlib import Path

import pytest
import yaml

from sage_snn.recipes import POLICIES, load_recipe
from sage_snn.studies import StudyError, load_study, shipped_studies
from sage_snn.studies.plan import run_key
from sage_snn.studies.study import parse_study, shipped_study

BASE = {"name": "mine", "recipe": "digits", "axes": {"policy.kind": ["fixed", "sage"], "seed": [1, 2]}}
PAPER = (
    "table1",
    "table2",
    "timesteps",
    "heads",
    "gini",
    "temperature",
    "slopes",
    "overhead",
    "sensitivity",
    "direction",
)


def assert_refused(message, **changes):
    with pytest.raises(StudyError, match=message):
        parse_study(BASE | changes)


@pytest.mark.parametrize("name", PAPER)
def test_every_experiment_ships_in_a_full_and_a_small_form(name):
    assert {name, f"{name}-small"} <= set(shipped_studies())


@pytest.mark.parametrize("name", shipped_studies())
def test_shipped_studies_are_whole(name):
    study = load_study(name, {"data_dir": "/data"})
    runs = study.runs()
    assert study.about["what"]
    assert study.about["command"] == f"sage-snn study run {name} --data-dir DATA"
    assert study.report
    assert len({run.key for run in runs}) == len(runs)
    assert all(run.recipe.threads for run in runs), "bits depend on threads"
    assert all(run.recipe.data_dir == "/data" for run in runs)
    assert "seconds_per_run" in study.about or "cost" in study.about


OF_THE_PAPER = [n for n in shipped_studies() if not (shipped_study(n).compares_systems or shipped_study(n).phase)]


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_shipped_studies_of_policies_judge_the_paper_over_five_seeds(name):
    study = load_study(name)
    runs = study.runs()
    assert study.claims == "paper"
    assert len({run.recipe.seed for run in runs}) == 5
    assert study.compare.baseline in {run.label for run in runs}
    if name.endswith("-small"):
        assert study.recipe == "cifar10-study"


def test_seeds_are_outermost_so_that_an_early_stop_compares_like_with_like():
    runs = parse_study(BASE | {"axes": {"seed": [1, 2], "model.time_steps": [1, 2], "policy.kind": ["fixed", "sage"]}})
    plan = runs.runs()
    assert [run.recipe.seed for run in plan] == [1] * 4 + [2] * 4
    assert [run.label for run in plan] == ["fixed", "sage"] * 4


def test_studies_share_runs_of_the_same_recipe():
    def keys(name):
        return {run.key for run in load_study(name).runs()}

    assert len(keys("timesteps-small") & keys("table1-small")) == 15
    assert len(keys("direction-small") & keys("table1-small")) == 10
    assert len(keys("sensitivity-small") & keys("timesteps-small")) == 5
    assert keys("heads-small") == keys("gini-small") == keys("temperature-small") == keys("slopes-small")


def test_a_key_tells_the_run_and_does_not_depend_on_the_machine():
    recipe = load_recipe("digits", {"seed": 7})
    key = run_key(recipe)
    assert key.startswith("digits-sage-t4-s7-")
    assert run_key(recipe.updated({"data_dir": "/elsewhere", "workers": 3, "name": "x"})) == key
    assert run_key(recipe.updated({"lr": 0.1})) != key


def test_labels_name_what_differs_and_leave_out_what_is_usual():
    study = parse_study(BASE | {"axes": {"policy.gain": [0.5, -0.5], "seed": [1]}})
    assert [run.label for run in study.runs()] == ["sage", "sage gain=-0.5"]
    study = parse_study(BASE | {"axes": {"policy.kind": ["fixed", "sage"], "lr": [0.001, 0.002]}})
    assert {run.label for run in study.runs()} == {f"{k} lr={v}" for k in ("fixed", "sage") for v in ("0.001", "0.002")}


def test_variants_are_linked_settings_with_names_of_their_own():
    runs = load_study("direction-small").runs()
    assert [run.label for run in runs[:5]] == ["fixed", "sage", "broaden", "random", "constant"]
    assert [run.recipe.identity()["policy.gain"] for run in runs[:3]] == [0.5, 0.5, -0.5]
    assert [run.recipe.policy.signal for run in runs[3:5]] == ["random", "constant"]


def test_a_study_file_may_name_a_recipe_beside_it(tmp_path):
    (tmp_path / "own.yaml").write_text("data: digits\nepochs: 2\nwarmup_epochs: 0\n")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"recipe": "own.yaml", "axes": {"seed": [1, 2]}}))
    study = load_study(tmp_path / "grid.yaml")
    assert study.name == "grid"
    assert [run.recipe.epochs for run in study.runs()] == [2, 2]


def two_recipes(folder):
    """A study file whose second variant has a recipe of its own beside it."""
    (folder / "other.yaml").write_text(yaml.safe_dump({"data": "digits", "epochs": 7, "warmup_epochs": 0, "lr": 0.1}))
    own = {"label": "other", "recipe": "other.yaml", "protocol": "own"}
    return {"recipe": "digits", "variants": [{"label": "plain", "protocol": "own"}, own], "axes": {"seed": [1, 2]}}


def loaded(folder, fields, settings=None):
    (folder / "study.yaml").write_text(yaml.safe_dump(fields))
    return load_study(folder / "study.yaml", settings)


def test_a_variant_may_have_a_recipe_of_its_own(tmp_path):
    study = loaded(tmp_path, two_recipes(tmp_path), {"batch_size": 32})
    runs = study.runs()
    assert [(run.label, run.name, run.protocol, run.recipe.seed) for run in runs] == [
        ("plain (own)", "plain", "own", 1),
        ("other (own)", "other", "own", 1),
        ("plain (own)", "plain", "own", 2),
        ("other (own)", "other", "own", 2),
    ]
    assert [run.recipe.lr for run in runs[:2]] == [load_recipe("digits").lr, 0.1]
    assert {run.recipe.batch_size for run in runs} == {32}
    assert study.compares_systems
    assert study.count() == 4
    assert not parse_study(BASE).compares_systems


def test_labels_of_different_recipes_tell_what_the_axes_add_and_nothing_else(tmp_path):
    fields = two_recipes(tmp_path) | {"axes": {"seed": [1], "batch_size": [16, 32]}}
    labels = [run.label for run in loaded(tmp_path, fields).runs()]
    assert labels == [f"{name} (own) batch_size={size}" for name in ("plain", "other") for size in (16, 32)]


def test_an_axis_needs_one_recipe_that_looks_at_it(tmp_path):
    fields = two_recipes(tmp_path)
    fields["variants"][1]["settings"] = {"loss": "tet"}
    study = loaded(tmp_path, fields | {"axes": {"seed": [1], "loss.weight": [0.1, 0.2]}})
    assert [run.name for run in study.runs()] == ["plain", "other weight=0.1", "other weight=0.2"]
    del fields["variants"][1]["settings"]
    with pytest.raises(StudyError, match=r"none of its losses looks at loss\.weight"):
        loaded(tmp_path, fields | {"axes": {"seed": [1], "loss.weight": [0.1, 0.2]}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": "othr.yaml"}, "cannot read othr.yaml"),
        ({"recipe": "digit"}, "no recipe 'digit'; did you mean 'digits'"),
        ({"protocol": "owned"}, "variants.1.protocol: Input should be 'own' or 'common', not 'owned'"),
        ({"recpe": "digits"}, "variants.1.recpe: no such field; did you mean 'recipe'"),
        ({"settings": {"lrr": 1}}, "no recipe field 'lrr'; did you mean 'lr'"),
        ({"label": None}, "variant 2 names a recipe or protocol; give it a label too"),
        ({"label": "plain"}, r"two variants are called 'plain \(own\)'; give each a label of its own"),
        ({"protocol": None}, "other names no protocol and others do; give it `protocol: own` or `common`"),
        (
            {"recipe": "digits"},
            r"'plain \(own\)' with {'seed': 1} and 'other \(own\)' with {'seed': 1} are the same run",
        ),
    ],
)
def test_mistakes_in_variants_of_their_own_recipe_are_told(tmp_path, change, message):
    fields = two_recipes(tmp_path)
    fields["variants"][1] |= change
    with pytest.raises(StudyError, match=message):
        loaded(tmp_path, fields)


def test_a_system_that_would_be_lost_in_another_is_refused(tmp_path):
    fields = two_recipes(tmp_path)
    # A cross entropy has no weight: it is the same run without it.
    unseen = {"label": "plain", "protocol": "common", "settings": {"loss.weight": 0.2}}
    fields["variants"].append(unseen)
    with pytest.raises(StudyError, match="are the same run"):
        loaded(tmp_path, fields)


def test_the_baseline_of_systems_has_its_protocol(tmp_path):
    fields = two_recipes(tmp_path)
    with pytest.raises(StudyError, match=r"the baseline 'plain' is none of its runs: plain \(own\), other \(own\)"):
        loaded(tmp_path, fields | {"compare": {"baseline": "plain"}})
    assert loaded(tmp_path, fields | {"compare": {"baseline": "plain (own)"}}).compare.baseline == "plain (own)"


def test_settings_on_top_win_over_the_file():
    assert load_study("table1-small", {"epochs": 2}).runs()[0].recipe.epochs == 2
    nested = parse_study(BASE | {"settings": {"model": {"depth": 1}}})
    assert nested.runs()[0].recipe.model.depth == 1


def test_unknown_axes_are_refused_with_the_nearest_right_one():
    assert_refused(r"no recipe field 'time_steps'; did you mean 'model.time_steps'\?", axes={"time_steps": [1]})
    assert_refused(r"no recipe field 'policy.gian'; did you mean 'policy.gain'\?", axes={"policy.gian": [1]})
    assert_refused(r"no recipe field 'modle.dim'; did you mean 'model.dim'\?", settings={"modle.dim": 16})
    assert_refused(r"no recipe field 'xyzzy'; leave it out, or see what `sage-snn recipes", axes={"xyzzy": [1]})
    assert_refused("data_dir does not change a result", axes={"data_dir": ["a", "b"]})


def test_empty_axes_and_empty_studies_are_refused():
    assert_refused("the axis seed is empty; give it at least one value", axes={"seed": []})
    assert_refused("nothing varies; add `axes:`", axes={})


def test_duplicate_runs_are_refused():
    assert_refused("are the same run; remove a value that stands twice", axes={"policy.gain": [1, 1.0]})
    assert_refused(
        "are the same run",
        axes={},
        variants=[{"settings": {"policy.kind": "sage"}}, {"settings": {"policy.gain": 0.5}}],
    )


def test_what_a_policy_does_not_look_at_makes_no_runs():
    study = parse_study(BASE | {"axes": {"policy.kind": ["fixed", "sage"], "policy.gain": [0.5, 1.0], "seed": [1]}})
    assert [planned.label for planned in study.runs()] == ["fixed", "sage", "sage gain=1"]
    assert_refused("none of its policies looks at policy.slope", axes={"policy.slope": [2, 4]})


def test_places_of_the_grid_can_be_left_out():
    axes = {"model.time_steps": [1, 2, 4], "policy.kind": ["fixed", "sage"], "seed": [1]}
    study = parse_study(BASE | {"axes": axes, "without": [{"policy.kind": "sage", "model.time_steps": [1, 2]}]})
    assert [(run.label, run.recipe.model.time_steps) for run in study.runs()] == [
        *(("fixed", 1), ("fixed", 2)),
        *(("fixed", 4), ("sage", 4)),
    ]
    assert study.count() == len(study.recipes()) == 4
    study = parse_study(BASE | {"without": [{"policy.slope": 4}]})  # a field that sage does not have
    assert [run.label for run in study.runs()] == ["sage", "sage"]


def test_places_that_nothing_is_at_are_mistakes():
    assert_refused(r"no run is at \{'policy.kind': 'learnable'\}", without=[{"policy.kind": "learnable"}])
    assert_refused("`without` leaves no run", without=[{"seed": [1, 2]}])
    assert_refused("no recipe field 'policy.knid'; did you mean 'policy.kind'", without=[{"policy.knid": "sage"}])


def test_an_axis_may_be_any_field_of_any_kind():
    axes = {"policy.kind": ["fixed", "learnable"], "policy.slope": [3, 4], "policy.per": ["network", "block"]}
    study = parse_study(BASE | {"axes": axes})
    expected = ["fixed slope=3", "fixed", "learnable slope=3", "learnable slope=3 per=block"]
    assert [planned.label for planned in study.runs()] == [*expected, "learnable", "learnable per=block"]
    axes = {"loss.kind": ["cross_entropy", "tet"], "loss.weight": [0.05, 0.1]}
    study = parse_study(BASE | {"axes": axes})
    labels = ["sage loss=cross_entropy", "sage loss=tet weight=0.05", "sage loss=tet weight=0.1"]
    assert [planned.label for planned in study.runs()] == labels
    assert_refused("none of its losses looks at loss.weight", axes={"loss.weight": [0.1, 0.2]})


def test_a_loss_may_be_set_by_a_word():
    study = parse_study(BASE | {"settings": {"loss": "tet"}}, settings={"loss.weight": 0.2})
    assert {planned.recipe.loss.weight for planned in study.runs()} == {0.2}
    variants = [{"label": name, "settings": {"loss": name}} for name in ("cross_entropy", "tet")]
    plan = parse_study(BASE | {"axes": {"seed": [1]}, "variants": variants}).runs()
    assert [(planned.label, planned.recipe.loss.kind) for planned in plan] == [(n, n) for n in ("cross_entropy", "tet")]


@pytest.mark.parametrize("name", ["timesteps", "direction-small", "sensitivity-small"])
def test_runs_can_be_counted_without_their_labels(name):
    assert shipped_study(name).count() == len(load_study(name).runs())


def test_variants_keep_their_labels_apart_by_what_the_axes_add():
    variants = [
        {"label": name, "settings": {"policy.kind": kind}} for name, kind in (("plain", "fixed"), ("ours", "sage"))
    ]
    study = parse_study(BASE | {"variants": variants, "axes": {"lr": [0.1, 0.2], "seed": [1]}})
    assert [planned.label for planned in study.runs()] == ["plain lr=0.1", "plain lr=0.2", "ours lr=0.1", "ours lr=0.2"]


def test_a_baseline_that_is_not_run_and_figures_that_do_not_exist_are_refused():
    assert_refused("the baseline 'fixd' is none of its runs: fixed, sage", compare={"baseline": "fixd"})
    assert_refused("report", report=["acuracy"])


def test_a_study_of_one_s_own_asks_for_the_paper_s_claims_or_has_none():
    assert parse_study(BASE).claims is None
    assert parse_study(BASE | {"claims": "paper"}).claims == "paper"
    assert_refused("claims: Input should be 'paper'", claims="mine")


def test_conflicting_settings_are_refused():
    assert_refused("seed is both an axis and a setting", settings={"seed": 1})
    variants = [{"settings": {"policy.kind": "fixed"}}, {"settings": {"policy.kind": "sage"}}]
    assert_refused("policy.kind is both an axis and set by a variant", variants=variants)
    changes = {"variants": variants, "axes": {"seed": [1]}, "settings": {"policy.kind": "sage"}}
    assert_refused("policy.kind is both in settings and set by a variant", **changes)


def test_bad_values_are_told_like_those_of_recipes():
    assert_refused(f"policy.kind: Input should be .*'{POLICIES.names[-1]}', not 'fxed'", axes={"policy.kind": ["fxed"]})
    assert_refused("axs: no such field; did you mean 'axes'", axs={"seed": [1]})
    assert_refused("compare.basline: no such field; did you mean 'baseline'", compare={"basline": "fixed"})
    assert_refused("axes.seed: Input should be a valid list, not 3", axes={"seed": 3})
    assert_refused("no recipe 'digit'; did you mean 'digits'", recipe="digit")
    assert_refused("name: String should match", name="../up")


def test_missing_and_broken_files_are_told(tmp_path):
    with pytest.raises(StudyError, match="no study 'tabel1'; did you mean 'table1'"):
        load_study("tabel1")
    with pytest.raises(StudyError, match="cannot read"):
        load_study(tmp_path / "none.yaml")
    for text, message in [("a: [", "is not YAML"), ("- 1", "must be a mapping"), ("axes: {}", "recipe: missing")]:
        path = Path(tmp_path / "broken.yaml")
        path.write_text(text)
        with pytest.raises(StudyError, match=message):
            load_study(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("recipe: digits\naxes: {seed: [1, 2]}\nsettings: {lrLONG}\n", "no recipe field"),
        ("recipe: digits\naxes: {seedLONG}\nvariants: 1\n", r"axes\.seed9"),
        ("recipe: !LONG digits\naxes: {seed: [1, 2]}\n", "is not YAML"),
        ("recipe: digits\naxes: {seed: ['LONG', 2]}\n", "should be a smaller number"),
    ],
)
def test_what_is_wrong_is_not_quoted_at_length(tmp_path, text, told):
    (tmp_path / "mine.yaml").write_text(text.replace("LONG", "9" * 5000))
    with pytest.raises(StudyError, match=told) as error:
        load_study(tmp_path / "mine.yaml").runs()
    assert max(map(len, str(error.value).splitlines())) < 1500
