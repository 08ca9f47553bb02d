import subprocess

import pytest

from sage_snn.runs import RunError, applied


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package's file as it lies in an environment inside somebody's repository."""
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "--message", "theirs")
    path = tmp_path / "site-packages" / "applied.py"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(applied, "__file__", str(path))
    return path


def test_the_commit_is_that_of_the_repository_that_tracks_the_package(installed):
    git(installed.parent, "add", installed.name)
    git(installed.parent, "commit", "--message", "ours")
    assert applied.commit() == git(installed.parent, "rev-parse", "HEAD")


def test_the_commit_of_somebody_elses_repository_is_not_recorded(installed):
    assert applied.commit() is None


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert applied.commit() is None


def test_a_run_of_a_cpu_is_gone_on_with_where_the_gpu_is_hidden(tmp_path):
    there, here = {"precision": "32", "device": "cpu", "ranks": 2}, {"precision": "16", "device": "cuda", "ranks": 1}
    words = (
        r"precision: 32 there, 16 here[^$]*go on with 2 processes .* and with the GPU hidden \(CUDA_VISIBLE_DEVICES=\)"
    )
    with pytest.raises(RunError, match=words):
        applied.require_same_means(tmp_path, there, here)


@pytest.mark.parametrize(
    ("there", "cure"), [("plain torch", "with SAGE_SNN_KERNELS=off"), ("C++", "with a compiler and without")]
)
def test_a_run_goes_on_with_the_kernels_that_it_began_with(tmp_path, there, cure):
    with pytest.raises(RunError, match=f"go on {cure}"):
        applied.require_same_means(tmp_path, {"kernels": there}, {"kernels": "Triton"})


def test_the_same_means_and_those_that_nobody_wrote_down_are_no_obstacle(tmp_path):
    here = {"precision": "32", "device": "cpu", "ranks": 1}
    for there in ({}, {"device": "cpu"}, here | {"threads": 7}):
        assert applied.require_same_means(tmp_path, there, here) is None
