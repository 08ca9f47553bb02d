"""The package as people get it: built, installed into an environment of its own, and used there."""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution, version
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sage_snn"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
BLOCK = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
# Without the optimiser the kernels compile in a third of the time; what is asked here is whether they do.
QUICKLY = "from sage_snn.kernels import native\nnative.FLAGS = [f.replace('-O3', '-O0') for f in native.FLAGS]\n"

pytestmark = pytest.mark.slow


class Built(NamedTuple):
    sdist: Path
    wheel: Path


class Home(NamedTuple):
    """An environment that has the wheel, and of the developer's own only what the wheel depends on: no extras."""

    python: Path
    command: Path
    folder: Path

    def run(self, *command, **environment):
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SAGE_SNN"))}
        return subprocess.run(
            list(map(str, command)),
            env=clean | environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel made from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(*out.glob("*.tar.gz"), *out.glob("*.whl"))


def brought(requirements, extras=("",), found=None):
    """What pip brings for these requirements, with all that it depends on, as it is installed here."""
    found = {} if found is None else found
    for need in map(Requirement, requirements):
        key = canonicalize_name(need.name), *sorted(need.extras)
        if key not in found and (need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras)):
            found[key] = distribution(need.name)
            brought(found[key].requires or [], ("", *need.extras), found)
    return found


def places(found):
    """Where the modules of these lie, beside each other; their scripts do not."""
    return {one.locate_file(file.parts[0]) for one in found.values() for file in one.files if file.parts[0] != ".."}


@pytest.fixture(scope="module")
def home(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=600)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, built.wheel], check=True, timeout=600)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    for place in places(brought(PROJECT["dependencies"])):
        (packages / place.name).symlink_to(place)
    (folder / "work").mkdir()
    return Home(python, folder / "venv" / "bin" / "sage-snn", folder / "work")


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_the_wheel_has_every_file_of_the_package_and_no_other(built):
    names = zipfile.ZipFile(built.wheel).namelist()
    inside = {name.removeprefix("sage_snn/") for name in names if name.startswith("sage_snn/")}
    assert inside == files(SOURCE)
    assert {"py.typed", "kernels/cpp/lif.cpp", "recipes/digits.yaml", "studies/page/page.css"} <= inside
    assert {name.split("/")[0] for name in names} == {"sage_snn", f"sage_snn-{version('sage-snn')}.dist-info"}


def test_the_sdist_has_what_is_needed_to_test_it(built):
    with tarfile.open(built.sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "Makefile", "mkdocs.yml"}
    assert wanted <= names
    assert {f"tests/{name}" for name in files(ROOT / "tests")} <= names
    assert {f"examples/{name}" for name in files(ROOT / "examples")} <= names


@pytest.fixture(scope="module")
def metadata(built):
    wheel = zipfile.ZipFile(built.wheel)
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def test_the_index_is_told_what_it_shows(metadata):
    assert all(metadata[field] for field in ("Summary", "Author", "License-Expression", "Keywords", "Requires-Python"))
    links = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} == links.keys()
    assert all(link.startswith("https://") for link in links.values())
    page = metadata.get_payload()
    assert "sage = SAGE(model, warmup_steps=len(loader))" in page
    assert (
        re.findall(r"\]\((?!https?:)", re.sub(r"```.*?```", "", page, flags=re.S)) == []
    )  # nothing is beside it there


def test_every_extra_is_known_and_its_packages_are_those_that_the_tests_ran_with(metadata):
    extras = set(metadata.get_all("Provides-Extra"))
    assert {"all", "dev", "docs", "export", "notebook", "ray"} <= extras
    wanted = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    assert {"torch", "spikingjelly", "timm"} <= {need.name for need in wanted if need.marker is None}
    for need in wanted:
        assert need.specifier.contains(version(need.name), prereleases=True), str(need)
    for extra in extras:
        assert any(need.marker and need.marker.evaluate({"extra": extra}) for need in wanted), extra


def test_the_block_of_the_readme_runs_from_the_wheel_with_kernels_that_it_brought(home, tmp_path):
    assert BLOCK is not None
    code = f"{QUICKLY}{BLOCK[1]}\nimport sage_snn\nprint(sage_snn.__file__)\nprint(native.status())"
    done = home.run(home.python, "-c", code, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    *_, where, kernels = done.stdout.splitlines()
    assert Path(where).is_relative_to(home.python.parents[1])
    assert kernels.startswith("compiled with ")
    assert "compiling its kernels" in done.stderr
    assert len(list(tmp_path.rglob("kernels-*.so"))) == 1


def test_the_tests_of_the_wheel_run_without_any_extra(home):
    extras = PROJECT["optional-dependencies"]
    asked = [need for name in extras.keys() - {"all", "dev"} for need in extras[name]]
    alone = places(brought(asked)) - places(brought(PROJECT["dependencies"]))
    modules = {place.name.partition(".")[0] for place in alone if place.suffix != ".dist-info"}
    assert {"ray", "onnx", "nir", "wandb", "mlflow", "ipywidgets"} <= modules
    code = "import sys; from importlib.util import find_spec; print('found:', *filter(find_spec, sys.argv[1:]))"
    assert home.run(home.python, "-c", code, *sorted(modules)).stdout.strip() == "found:"


def test_an_import_from_the_wheel_is_light(home):
    code = "import sys, sage_snn; from sage_snn import SAGE; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(home.run(home.python, "-c", code).stdout.split())
    assert {"sage_snn", "torch"} <= loaded
    assert not loaded & {"torchvision", "timm", "lightning", "matplotlib", "plotly", "pandas", "sklearn", "ray"}


def test_the_command_line_works_from_the_wheel(home):
    assert home.run(home.command, "--version").stdout.strip() == version("sage-snn")
    assert "cifar10-mini" in home.run(home.command, "recipes").stdout
    done = home.run(home.command, "demo", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert all(re.search(rf"^{policy} +\d", done.stdout, re.M) for policy in ("fixed", "learnable", "sage"))
    page = (home.folder / "runs" / "demo" / "report.html").read_text(encoding="utf-8")
    css = (SOURCE / "studies" / "page" / "page.css").read_text(encoding="utf-8")
    assert css.split("{")[0].strip() in page


def test_the_first_five_minutes_work_from_the_wheel(home):
    """Those of docs/start.md, with networks and trainings as small as they can be."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", START, re.M | re.S))
    done = home.run(home.python, "-c", code)
    assert done.returncode == 0, done.stderr
    assert (home.folder / "mine.npz").is_file()

    small = {"epochs": 1, "warmup_epochs": 0, "max_steps_per_epoch": 2, "test_images": 40, "threads": 1}
    train, evaluate, study = (line for line in START.splitlines() if re.match("sage-snn (train|eval|study)", line))
    settings = [part for key, value in small.items() for part in ("--set", f"{key}={value}")]
    for words in ([*shlex.split(train), *settings], shlex.split(evaluate)):
        done = home.run(home.command, *words[1:])
        assert done.returncode == 0, done.stderr
    assert re.search(r"top-1 +\d", done.stdout)

    [written] = re.findall(r"^```yaml\n(.*?)^```$", START, re.M | re.S)
    two = yaml.safe_load(written)
    two["settings"], two["axes"]["seed"] = small, [1]
    (home.folder / "two.yaml").write_text(yaml.safe_dump(two))
    done = home.run(home.command, *shlex.split(study)[1:])
    assert done.returncode == 0, done.stderr
    page = (home.folder / "runs" / "studies" / "two" / "report.html").read_text(encoding="utf-8")
    assert {"fixed", "sage"} <= set(re.findall(r"<td>(\w+)", page))


def test_what_needs_an_extra_says_which(home):
    done = home.run(home.command, "export", "shipped:digits", "--to", "onnx", "--out", home.folder)
    assert done.returncode == 1
    assert 'pip install "sage-snn[export]"' in done.stderr
    assert "Traceback" not in done.stderr
