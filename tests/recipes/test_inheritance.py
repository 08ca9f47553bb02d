import pytest

from sage_snn.cli import main
from sage_snn.recipes import RecipeError, differences, load_recipe
from sage_snn.recipes.recipe import load_written_recipe
from sage_snn.runs import RunFolder
from sage_snn.studies.plan import run_key


def write(path, text):
    path.write_text(text)
    return path


def changed(recipe, parent):
    return {key: new for key, _, new in differences(load_recipe(parent), recipe)}


def test_a_recipe_begins_with_another_and_says_what_differs(tmp_path):
    recipe = load_recipe(write(tmp_path / "mine.yaml", "from: cifar10\nepochs: 30\nmodel: {depth: 2}\nloss: tet\n"))
    assert changed(recipe, "cifar10") == {"epochs": 30, "model.depth": 2, "loss.kind": "tet"}
    assert recipe.model.dim == 384  # the fields beside a changed one stay
    assert recipe.augmentation == load_recipe("cifar10").augmentation


def test_the_name_and_what_is_told_of_a_recipe_are_not_handed_on(tmp_path):
    recipe = load_recipe(write(tmp_path / "mine.yaml", "from: digits\n"))
    assert recipe.name == "mine"
    assert recipe.about == {}  # the accuracy of another recipe is not this one's
    assert run_key(recipe) == run_key(load_recipe("digits"))


def test_files_begin_with_files_beside_them_over_several_steps(tmp_path):
    (tmp_path / "inner").mkdir()
    write(tmp_path / "first.yaml", "from: digits\nepochs: 4\nlr: 0.25\n")
    write(tmp_path / "inner" / "second.yaml", "from: ../first.yaml\nlr: 0.5\n")
    third = write(tmp_path / "inner" / "third.yaml", "from: second.yaml\nseed: 7\n")
    assert changed(load_recipe(third), "digits") == {"epochs": 4, "lr": 0.5, "seed": 7}


def test_settings_win_over_both(tmp_path):
    mine = write(tmp_path / "mine.yaml", "from: digits\nepochs: 4\n")
    assert changed(load_recipe(mine, {"epochs": 6, "model.depth": 1}), "digits") == {"epochs": 6, "model.depth": 1}


def test_a_mapping_may_begin_with_a_recipe():
    assert changed(load_recipe({"from": "digits", "epochs": 3}), "digits") == {"epochs": 3}


def test_a_circle_is_refused_and_named(tmp_path):
    one = write(tmp_path / "one.yaml", "from: two.yaml\n")
    write(tmp_path / "two.yaml", "from: one.yaml\n")
    with pytest.raises(
        RecipeError, match=r"one\.yaml -> .*two\.yaml -> .*one\.yaml: .* in a circle; remove one `from`"
    ):
        load_recipe(one)
    with pytest.raises(RecipeError, match="in a circle"):
        load_recipe(write(tmp_path / "self.yaml", "from: self.yaml\n"))


@pytest.mark.parametrize(
    ("parent", "told"),
    [
        ("digit", r"mine\.yaml, from: no recipe .*'digits'"),
        ("gone.yaml", r"mine\.yaml, from: cannot read .*gone\.yaml"),
        ("3", r"mine\.yaml: from names one recipe, shipped or a YAML file, not 3"),
        ("[digits, cifar10]", r"from names one recipe"),
        ("null", r"from names one recipe, .*; write one such as `from: digits`, or leave it out"),
    ],
)
def test_a_parent_that_is_none_is_refused_with_the_file_that_names_it(tmp_path, parent, told):
    with pytest.raises(RecipeError, match=told):
        load_recipe(write(tmp_path / "mine.yaml", f"from: {parent}\n"))


def test_mistakes_of_a_child_are_told_as_ever(tmp_path):
    with pytest.raises(RecipeError, match=r"epoch: no such field; did you mean 'epochs'"):
        load_recipe(write(tmp_path / "mine.yaml", "from: digits\nepoch: 3\n"))


def test_fields_inside_a_value_are_refused_with_the_file_and_the_cure(tmp_path):
    with pytest.raises(RecipeError, match=r"mine\.yaml: data\.a\.b: data has no fields of its own; give it one value"):
        load_recipe(write(tmp_path / "mine.yaml", "from: digits\ndata: {a: {b: 1}}\n"))


@pytest.mark.parametrize("text", ["from: [LONG]\n", "from: digits\ndata: {a: {LONG}}\n"])
def test_neither_is_quoted_at_length(tmp_path, text):
    with pytest.raises(RecipeError, match=r"mine\.yaml: ") as error:
        load_recipe(write(tmp_path / "mine.yaml", text.replace("LONG", "x" * 5000)))
    assert len(str(error.value)) < 1500


def test_the_whole_recipe_is_shown_and_written_with_a_run(tmp_path, monkeypatch, capsys):
    mine = write(tmp_path / "mine.yaml", "from: digits\nepochs: 4\n")
    monkeypatch.setattr("sys.argv", ["sage-snn", "recipes", str(mine)])
    with pytest.raises(SystemExit) as done:
        main()
    shown = capsys.readouterr().out
    assert not done.value.code
    assert "epochs: 4" in shown
    assert "batch_size: 32" in shown  # of digits
    RunFolder(tmp_path).write_recipe(load_recipe(mine), {})
    written = (tmp_path / "recipe.yaml").read_text()
    assert "from:" not in written
    assert load_written_recipe(tmp_path / "recipe.yaml") == load_recipe(mine)


def test_what_a_run_wrote_reads_no_other_file(tmp_path):
    with pytest.raises(RecipeError, match="from: no such field"):
        load_written_recipe(write(tmp_path / "recipe.yaml", "from: digits\n"))
