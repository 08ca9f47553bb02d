import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import sage_snn
from sage_snn.recipes import load_recipe
from sage_snn.runs import RunError, assess, open_run, places
from sage_snn.runs.model_card import escaped
from sage_snn.runs.places import FILES, repository, shipped_runs
from sage_snn.runs.publish import push, write_folder

HUB_PAGE = Path(__file__).parents[2] / "docs/hub.md"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def same(a, b):
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture
def published(finished, tmp_path):
    """Folder of what is published of a tiny run."""
    return write_folder(open_run(finished), tmp_path / "published")


@pytest.mark.parametrize("which", ["last", "best"])
def test_a_published_folder_loads_as_the_run_itself(finished, tmp_path, which):
    folder = write_folder(open_run(finished), tmp_path / "out", which)
    assert {path.name for path in folder.iterdir()} == {*FILES, "README.md"}
    assert same(sage_snn.load(folder), sage_snn.load(finished, which))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["published"] == which
    assert f"**{summary[f'{which}_top1']:.2f} %**, seed 42" in (folder / "README.md").read_text()


def test_publishing_again_replaces_and_other_folders_are_left_alone(finished, published):
    write_folder(open_run(finished), published)
    (published / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="holds other files"):
        write_folder(open_run(finished), published)
    assert (published / "thesis.txt").read_text() == "mine"


def test_an_unfinished_run_is_not_published(tmp_path, tiny, interrupted):
    folder = interrupted(tmp_path / "run", tiny)
    with pytest.raises(RunError, match="is not finished"):
        write_folder(open_run(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["[1]", "{", "9" * 5000, "{}", '{"last_top1": "97.5"}'])
def test_a_run_whose_summary_is_damaged_is_not_published(finished, tmp_path, content):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "summary.json").write_text(content)
    with pytest.raises(RunError, match=r"summary\.json (cannot be read|lacks) .*; copy it again"):
        write_folder(open_run(folder), tmp_path / "out")


def test_folders_of_this_machine_are_not_published(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "run")
    fields = yaml.safe_load((copy / "recipe.yaml").read_text())
    fields |= {"data_dir": "/home/anna/data", "init_from": "/home/anna/first.safetensors", "init_digest": "0" * 16}
    (copy / "recipe.yaml").write_text(yaml.safe_dump(fields))
    folder = write_folder(open_run(copy), tmp_path / "out")
    for name in ("recipe.yaml", "summary.json", "README.md"):
        assert "anna" not in (folder / name).read_text()
    written = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert written["init_from"] == "first.safetensors"
    assert "data_dir" not in written
    assert "| started from | first.safetensors |" in (folder / "README.md").read_text()
    assert same(sage_snn.load(folder), sage_snn.load(finished))


def test_the_card_is_yaml_and_words(published):
    _, header, text = (published / "README.md").read_text().split("---\n", 2)
    told = yaml.safe_load(header)
    assert (told["library_name"], told["pipeline_tag"]) == ("sage-snn", "image-classification")
    assert "## Energy" not in text  # it was not measured
    assert "One seed is one draw" in text
    assert "| epochs | 2 |" in text


def test_energy_is_told_where_it_was_measured(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "run")
    summary = json.loads((copy / "summary.json").read_text())
    activity = {
        "images": 60,
        "sops": 1234.0,
        "macs": 56.0,
        "energy_uj": 0.25,
        "ann_energy_uj": 1.0,
        "firing_rate": 0.125,
    }
    (copy / "summary.json").write_text(json.dumps(summary | {"activity": activity}))
    text = (write_folder(open_run(copy), tmp_path / "out") / "README.md").read_text()
    assert (
        "on 60 test images: 1,234 synaptic operations, 56 MACs, mean firing rate 12.5%; 0.25 µJ, 1 µJ as an ANN" in text
    )
    assert "no hardware was measured" in text


def test_names_from_a_run_mean_nothing_in_the_card(finished, tmp_path):
    evil = "x](javascript:alert(1)) <script>alert(2)</script>"
    copy = shutil.copytree(finished, tmp_path / "run")
    fields = yaml.safe_load((copy / "recipe.yaml").read_text())
    fields["name"] = evil.replace("/", "")
    fields["applied"] |= {"commit": evil, "augmentations": [evil, "a\n---\nlicense: mine | b"], "device": "\x1b[31m"}
    (copy / "recipe.yaml").write_text(yaml.safe_dump(fields))
    text = (write_folder(open_run(copy), tmp_path / "out") / "README.md").read_text()
    assert "<script>" not in text
    assert "](javascript" not in text
    assert "\x1b" not in text
    assert text.count("\n---\n") == 1  # the end of the header
    assert escaped("a|b <i> [c](d) `e`\nf") == r"a\|b \<i\> \[c\]\(d\) \`e\` f"


def cached(root, name, folder):
    """A cache as the hub's library lays it out."""
    repo = root / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)


@pytest.mark.slow
def test_the_hub_is_read_from_its_cache_offline(published, tmp_path):
    cached(tmp_path / "cache", "anna/tiny", published)
    code = (
        "import sage_snn, torch; from safetensors.torch import load_file\n"
        f"for name in ('hub:anna/tiny', 'hub:anna/tiny@{COMMIT}'):\n"
        "    state = sage_snn.load(name).state_dict()\n"
        f"    kept = load_file({str(published / 'model.safetensors')!r})\n"
        "    assert state.keys() == kept.keys() and all(torch.equal(state[k], kept[k]) for k in kept)\n"
        "from sage_snn.runs import RunError\n"
        "try:\n    sage_snn.load('hub:anna/gone')\n"
        "except RunError as error:\n    assert 'cannot be fetched' in str(error), error\n"
        "else:\n    raise AssertionError\n"
    )
    here = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Hub:
    """The calls of huggingface_hub that are made, on a folder."""

    def __init__(self, root):
        self.root, self.asked = root, []

    def HfApi(self):
        return self

    def create_repo(self, name, *, private, exist_ok):
        self.asked.append((name, private, exist_ok))
        made = type("Url", (str,), {"repo_id": name})
        return made(f"https://hub/{name}")

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id)

    def snapshot_download(self, name, *, revision, allow_patterns):
        self.asked.append((name, revision, allow_patterns))
        return str(self.root / name)


def test_a_run_is_pushed_and_loaded_again(finished, tmp_path, monkeypatch):
    from sage_snn.runs import publish

    hub = Hub(tmp_path)
    for module in (places, publish):
        monkeypatch.setattr(module, "hub_library", lambda: hub)
    assert push(open_run(finished), "anna/tiny", private=True) == "https://hub/anna/tiny"
    assert same(sage_snn.load("hub:anna/tiny@v1"), sage_snn.load(finished))
    assert hub.asked == [("anna/tiny", True, True), ("anna/tiny", "v1", list(FILES))]  # and no file of another kind


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b/c", "a/b@", "-x/y"])
def test_what_names_no_repository_is_refused(name):
    with pytest.raises(RunError, match="names no repository"):
        repository(name)


def test_weights_that_are_code_are_refused(published):
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('code was run')",))

    torch.save({"a": Evil()}, published / "model.safetensors")
    with pytest.raises(RunError, match="cannot be read as weights"):
        sage_snn.load(published)


@pytest.mark.parametrize("name", shipped_runs())
def test_shipped_networks_load_in_one_line_and_are_those_of_their_recipes(name):
    run, network = open_run(f"shipped:{name}"), sage_snn.load(f"shipped:{name}")
    apart = {key for key, value in load_recipe(name).identity().items() if run.recipe.identity()[key] != value}
    assert apart <= {"threads", "observe.activity"}
    assert load_file(run.folder.weights).keys() == network.state_dict().keys()
    assert run.folder.weights.stat().st_size < 3_000_000
    with torch.no_grad():
        logits = network(torch.rand(2, 1, 8, 8) if name == "digits" else torch.rand(2, 3, 32, 32))
    assert logits.isfinite().all()
    assert logits.std() > 0
    top1 = run.folder.summary()["last_top1"]
    assert re.search(rf"\| `shipped:{name}` \|[^\n]*\| {top1:.2f} %", HUB_PAGE.read_text()), "told as it is"


def test_the_shipped_digits_have_their_recorded_accuracy():
    assert "digits" in shipped_runs()
    run = open_run("shipped:digits")
    told = assess(run)
    assert told.top1 == pytest.approx(run.folder.summary()["last_top1"])
    assert told.top1 == pytest.approx(97.5)
    assert same(sage_snn.load("shipped:digits"), run.network())
    assert (run.folder.weights).stat().st_size < 1_000_000
    assert load_file(run.folder.weights).keys() == run.network().state_dict().keys()


def test_a_network_that_does_not_ship_is_named_with_those_that_do():
    with pytest.raises(RunError, match=r"no trained network 'digit' ships; there are .*digits"):
        sage_snn.load("shipped:digit")


def test_nothing_is_written_beside_a_named_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = open_run("shipped:digits")
    assert (run.pictures, run.exports) == (places.Path("inspection/digits"), places.Path())
