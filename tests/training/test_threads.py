import os

import pytest
import torch

from sage_snn.runs import RunFolder
from sage_snn.training import threads, train
from sage_snn.training.threads import Threads, busy_cores, choose_threads

NOTHING = {"recipe": None, "before": None, "environment": None}


@pytest.mark.parametrize(
    ("cores", "busy", "number", "reason"),
    [
        (2, 0.0, 2, ""),
        (2, 0.4, 2, ""),
        (2, 1.2, 1, "the other core is busy"),
        (2, 9.0, 1, "the other core is busy"),
        (8, 3.0, 5, "3 of 8 cores are busy"),
        (1, 5.0, 1, ""),
    ],
)
def test_as_many_threads_as_cores_are_free(cores, busy, number, reason):
    assert choose_threads(**NOTHING, most=8, cores=cores, busy=busy) == (number, reason)


def test_never_more_than_torch_would_take():
    assert choose_threads(**NOTHING, most=1, cores=8, busy=0.0) == (1, "")


def test_the_recipe_wins_over_the_run_the_run_over_the_environment_and_that_over_the_load():
    here = {"most": 2, "cores": 2, "busy": 2.0}
    assert choose_threads(recipe=3, before=4, environment="1", **here) == (3, "")
    assert choose_threads(recipe=None, before=4, environment="1", **here) == (4, "as the run began")
    assert choose_threads(recipe=None, before=None, environment="2", **here) == (2, "OMP_NUM_THREADS")
    assert choose_threads(recipe=None, before=None, environment="64", **here) == (2, "OMP_NUM_THREADS")
    assert choose_threads(recipe=None, before=None, environment="many", **here).number == 1


def test_they_are_told_with_their_reason():
    assert str(Threads(1, "the other core is busy")) == "1 thread: the other core is busy"
    assert str(Threads(2)) == "2 threads"


@pytest.mark.parametrize(("load", "running", "busy"), [(2.0, 0, 0.0), (0.0, 3, 0.0), (2.0, 3, 1.0), (2.0, None, 1.0)])
def test_a_load_that_is_over_does_not_count(monkeypatch, load, running, busy):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)  # half of the cores have half of the load
    monkeypatch.setattr(threads, "_running_now", lambda: running)
    busy_cores.cache_clear()
    assert busy_cores() == busy
    busy_cores.cache_clear()


def test_a_run_writes_its_choice_down_says_it_and_keeps_it(tmp_path, tiny, monkeypatch, interrupted, capfd):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    monkeypatch.setattr(threads, "busy_cores", lambda: 1.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    settings = tiny | {"threads": None}
    interrupted(tmp_path / "run", settings)
    assert RunFolder(tmp_path / "run").applied()["threads"] == 1
    assert "1 thread: the other core is busy" in RunFolder(tmp_path / "run").applied()["in short"]
    monkeypatch.setattr(threads, "busy_cores", lambda: 0.0)
    train("digits", tmp_path / "run", settings=settings, resume=True)
    assert "1 thread: as the run began" in capfd.readouterr().err
    assert set_to == [1, 1]
    assert RunFolder(tmp_path / "run").applied()["threads"] == 1


def test_what_wakes_up_for_a_moment_does_not_count(monkeypatch):
    looks = iter([0, 2, 0, 1, 0])
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    monkeypatch.setattr(threads, "_running_now", lambda: next(looks))
    busy_cores.cache_clear()
    assert busy_cores() == 0
    busy_cores.cache_clear()
