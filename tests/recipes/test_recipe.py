import hashlib

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.data import describe, load_data
from sage_snn.policies import Fixed, Learnable
from sage_snn.recipes.fields import RecipeError, parse_settings
from sage_snn.recipes.recipe import Recipe, differences, load_recipe, parse_recipe, shipped_recipes
from sage_snn.studies.plan import run_key
from sage_snn.training.builders import build_optimizer, build_schedule

OFFICIAL_OPERATIONS = {"Equalize", "Rotate", "ShearX", "TranslateXRel", "TranslateYRel"}


def small_model():
    recipe = load_recipe("digits", {"model.dim": 16, "model.heads": 2})
    return recipe, recipe.model.build(**load_data("digits").shape)


def test_everything_promised_ships():
    promised = {"digits", "cifar10", "cifar100", "imagenet200", "tiny-imagenet200", "fashion-mnist"}
    assert promised | {"cifar10-small", "cifar10-mini"} <= set(shipped_recipes())


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_states_command_cost_and_reported_accuracy(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert {"what", "command", "cost", "reported"} <= recipe.about.keys()
    assert name in recipe.about["command"]


def test_the_official_schedule_has_the_authors_learning_rates():
    recipe = load_recipe("cifar10")
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=recipe.lr)
    schedule = build_schedule(recipe, optimizer)
    expected = {0: 1e-5, 1: 3.45e-5, 19: 4.755e-4, 20: 4.9465e-4, 150: 2.55e-4, 299: 1.001e-5, 300: 1e-5, 309: 1e-5}
    for epoch, rate in expected.items():
        schedule.step(epoch)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate, rel=5e-4)
    assert recipe.total_epochs == 310


def test_weight_decay_reaches_only_tensors_of_two_dimensions_and_more():
    recipe, model = small_model()
    policy = Learnable(model)
    optimizer = build_optimizer(recipe, model, policy)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.06}
    for parameter in model.parameters():
        assert (id(parameter) in decayed) == (parameter.ndim >= 2)
    own = list(policy.parameters())
    assert own
    assert not decayed & {id(p) for p in own}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in [*model.parameters(), *own]}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_official_augmentation_is_written_out(name):
    recipe = load_recipe(name)
    augmentation = recipe.augmentation
    assert set(augmentation.operations) == OFFICIAL_OPERATIONS
    assert (augmentation.flip, augmentation.erasing, augmentation.mixup, augmentation.cutmix) == (0.5, 0.25, 0.5, 0.0)
    assert (augmentation.mixup_probability, augmentation.smoothing, augmentation.crop_scale) == (1.0, 0.1, None)
    assert augmentation.mixup_off_epoch is None
    assert (recipe.lr, recipe.weight_decay, recipe.batch_size, recipe.seed) == (5e-4, 0.06, 128, 42)


def test_what_is_applied_is_described_in_words():
    described = " ".join(describe(load_recipe("digits").augmentation, load_data("digits")))
    assert "shift" in described
    assert "smooth" in described


def test_policies_are_built_as_the_recipe_says():
    recipe, model = small_model()
    fixed = recipe.updated({"policy.kind": "fixed", "policy.slope": 3.0}).policy
    with fixed.build(model, 10, 0) as policy:
        assert isinstance(policy, Fixed)
        assert policy.slopes.tolist() == [3.0, 3.0]
    part = recipe.policy.model_copy(update={"gain": -0.5, "temperature": 1.0, "warmup_epochs": 1.5})
    with part.build(model, 10, 0) as policy:
        assert (policy.law.gain, policy.signal.temperature, policy.warmup_steps) == (-0.5, 1.0, 15)


def test_a_number_with_an_exponent_is_a_number():
    assert yaml.safe_load("lr: 5e-4") == {"lr": "5e-4"}  # the trap
    assert load_recipe({"lr": "5e-4"}).lr == 5e-4
    assert load_recipe("digits", parse_settings(["lr=1e-3", "precision=32"])).lr == 1e-3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochz": 3}, "epochz: no such field; did you mean 'epochs'?"),
        ({"model": {"dept": 3}}, "model.dept: no such field; did you mean 'depth'?"),
        ({"augmentation": {"flipp": 1}}, "augmentation.flipp: no such field; did you mean 'flip'?"),
        ({"epochs": "many"}, "epochs: Input should be a valid integer"),
        ({"lr": "fast"}, "lr: Input should be a valid number"),
        ({"lr": float("nan")}, "lr: Input should be a finite number"),
        ({"policy": {"gain": float("nan")}}, "policy.gain: Input should be a finite number"),
        ({"policy": {"slope": float("inf")}}, "policy.slope: Input should be a finite number"),
        ({"augmentation": {"mixup": float("inf")}}, "augmentation.mixup: Input should be a finite number"),
        ({"observe": {"temperatures": [float("inf")]}}, "observe.temperatures.0: Input should be a finite number"),
        ({"seed": 99999999999999999999}, "seed: Input should be less than 9223372036854775808"),
        ({"model": {"time_steps": 0}}, "model.time_steps"),
        ({"model": {"heads": 7}}, "must divide dim"),
        ({"epochs": 3, "warmup_epochs": 5}, "warmup_epochs (5) must be fewer than epochs (3)"),
        ({"epochs": 3, "warmup_epochs": 0, "policy": {"warmup_epochs": 99}}, "longer than the training"),
        ({"data": "cifar11"}, "did you mean 'cifar10'?"),
        ({"policy": {"kind": "sgae"}}, "policy.kind"),
        ({"policy": {"low": 4.5}}, "must hold the base slope 4"),
        ({"model": "spikformer"}, "model"),
        ({"batch_size": 10, "accumulate": 3}, "must divide batch_size"),
        ({"subset": 1}, "set train_images or test_images, or remove it"),
    ],
)
def test_wrong_fields_are_errors_that_name_the_cure(fields, message):
    with pytest.raises(RecipeError) as error:
        load_recipe({"warmup_epochs": 0, **fields} if "epochs" in fields else fields)
    assert message in str(error.value)


def test_unknown_names_and_unreadable_files_are_explained(tmp_path):
    with pytest.raises(RecipeError, match="did you mean 'cifar10-mini'"):
        load_recipe("cifar10-mimi")
    with pytest.raises(RecipeError, match="cannot read"):
        load_recipe(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(RecipeError, match="mapping of fields"):
        load_recipe(tmp_path / "list.yaml")
    (tmp_path / "torn.yaml").write_text("model: {depth: 2\n")
    with pytest.raises(RecipeError, match="is not YAML"):
        load_recipe(tmp_path / "torn.yaml")


@pytest.mark.parametrize("setting", ["lr", "=3", "model.depth", "lr: 3"])
def test_a_setting_without_a_value_is_explained(setting):
    with pytest.raises(RecipeError, match="key=value"):
        parse_settings([setting])


def test_a_written_recipe_can_be_read_again_and_facts_are_ignored(tmp_path):
    recipe = load_recipe("cifar10", {"seed": 7})
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json") | {"applied": {"anything": 1}}))
    assert load_recipe(path) == recipe


def test_differences_name_what_decides_the_result_and_nothing_else():
    a = load_recipe("cifar10")
    assert differences(a, a.updated({"data_dir": "elsewhere", "workers": 9, "name": "b"})) == []
    changed = a.updated({"model.depth": 2, "lr": 1e-3})
    assert differences(a, changed) == [("lr", 5e-4, 1e-3), ("model.depth", 4, 2)]


def arrays_recipe(path, content, **settings):
    path.write_bytes(content)
    return load_recipe("digits", {"data": "arrays", "data_dir": str(path), **settings})


def test_arrays_are_part_of_what_is_trained_by_their_content(tmp_path):
    a, b = arrays_recipe(tmp_path / "a.npz", b"a"), arrays_recipe(tmp_path / "b.npz", b"b")
    assert [key for key, _, _ in differences(a, b)] == ["data_digest"]
    assert run_key(a) != run_key(b)
    assert run_key(arrays_recipe(tmp_path / "moved.npz", b"a")) == run_key(a)
    (tmp_path / "a.npz").write_bytes(b"changed")
    assert run_key(a) == run_key(arrays_recipe(tmp_path / "c.npz", b"changed"))


def test_a_recipe_can_be_compared_where_its_files_are_not(tmp_path):
    recipe = arrays_recipe(tmp_path / "a.npz", b"a", init_from=str(tmp_path / "absent.safetensors"))
    pinned = recipe.model_copy(update={"init_digest": "1234"}).identity()
    assert pinned["init_digest"] == "1234"
    (tmp_path / "a.npz").unlink()
    assert not {"data_digest", "init_digest"} & recipe.identity().keys()


def test_the_weights_to_start_from_are_part_of_what_is_trained_by_their_content(tmp_path):
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in files:
        path.write_bytes(path.name.encode())
    plain = load_recipe("digits")
    first, second = (plain.updated({"init_from": str(path)}) for path in files)
    assert [key for key, _, _ in differences(first, second)] == ["init_digest"]
    assert len({run_key(recipe) for recipe in (plain, first, second)}) == 3


def test_recipes_without_such_files_are_written_and_known_as_ever(tmp_path):
    recipe = load_recipe("cifar10-study", {"data_dir": str(tmp_path)})
    assert recipe.pinned() == recipe
    assert not {"init_from", "data_digest", "init_digest"} & (recipe.model_dump() | recipe.identity()).keys()
    assert run_key(recipe) == "cifar10-sage-t4-s42-053c64cf"


def test_other_images_are_another_run_and_the_usual_ones_are_written_as_ever():
    usual, other = (load_recipe("cifar10-study", {"subset": number}) for number in (0, 1))
    assert "subset" not in usual.model_dump()
    assert other.model_dump()["subset"] == 1
    assert run_key(other) != run_key(usual) == run_key(load_recipe("cifar10-study"))


def test_digests_are_read_from_the_files_never_from_settings(tmp_path):
    recipe = arrays_recipe(tmp_path / "a.npz", b"a").pinned()
    assert recipe.data_digest == hashlib.sha256(b"a").hexdigest()[:16]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    (tmp_path / "a.npz").write_bytes(b"changed")
    again = load_recipe(tmp_path / "recipe.yaml")
    assert again.identity()["data_digest"] == hashlib.sha256(b"changed").hexdigest()[:16]
    assert recipe.updated({"seed": 1}).data_digest is None


def test_what_only_the_data_shows_to_be_wrong_is_a_recipe_error():
    recipe = load_recipe("digits", {"model.patch_size": 16, "model.dim": 16, "model.heads": 1})
    with pytest.raises(RecipeError, match=r"model: an image of 8 pixels is smaller .*--set model\.FIELD=VALUE"):
        recipe.model.build(**load_data("digits").shape)
    recipe = recipe.updated({"model.patch_size": 2, "policy.spread": "sample_std"})
    model = recipe.model.build(**load_data("digits").shape)
    with pytest.raises(RecipeError, match="policy: the sample deviation of one head is undefined"):
        recipe.policy.build(model, 10, 0)


def outcome_of(read, source):
    """A recipe, or the one error that may be raised."""
    try:
        return read(source)
    except RecipeError as error:
        return error


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
keys = st.sampled_from([*Recipe.model_fields, "depth", "kind", "flip"]) | st.text(max_size=8)
fields = st.recursive(scalars, lambda inner: st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=3))


@given(st.dictionaries(keys, fields, max_size=6))
@settings(max_examples=300, deadline=None)
def test_no_recipe_whatever_ends_in_anything_but_a_recipe_or_a_recipe_error(given_fields):
    outcome = outcome_of(parse_recipe, given_fields)
    assert isinstance(outcome, Recipe) or str(outcome).startswith("the recipe:")


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_recipe_file_whatever_ends_in_a_traceback(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fuzz") / "recipe.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    outcome = outcome_of(load_recipe, path)
    assert isinstance(outcome, Recipe) or str(path) in str(outcome)


def test_thresholds_of_each_step_are_not_observed_at_other_steps():
    policy = {"policy.kind": "ds_atgo", "model.time_steps": 4}
    with pytest.raises(RecipeError, match="thresholds for 4 time steps and cannot be observed at 8; let"):
        load_recipe("digits", policy | {"observe.steps": [4, 8]})
    assert load_recipe("digits", policy | {"observe.steps": [2, 4]}).observe.steps == (2, 4)
