import resource
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from sage_snn.recipes import load_recipe
from sage_snn.training.devices import (
    applied_precision,
    build_fabric,
    by_the_first,
    from_all,
    peak_memory_mb,
    resident_peak_mb,
)


def test_the_peak_is_this_processs_own_where_linux_tells(monkeypatch):
    # What a process inherits from the one that started it is in ru_maxrss.
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2**40))
    assert resident_peak_mb("VmPeak:\t  999999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n", "linux") == 2.0
    if sys.platform == "linux" and not torch.cuda.is_available():
        assert 10 < peak_memory_mb() < 2**20


@pytest.mark.parametrize(("platform", "peak"), [("darwin", 4.0), ("freebsd14", 4096.0)])
def test_elsewhere_the_unit_is_that_of_the_system(monkeypatch, platform, peak):
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=4 * 2**20))
    assert resident_peak_mb("", platform) == peak


class Ranks:
    """Of two processes the one with this rank; the first sends what the other then receives."""

    world_size = 2

    def __init__(self, rank, sent=None):
        self.is_global_zero, self.sent = rank == 0, sent

    def broadcast(self, value):
        self.sent = value if self.is_global_zero else self.sent
        return self.sent


def test_the_first_rank_reads_and_the_others_are_told():
    first = Ranks(0)
    assert by_the_first(first, lambda: "weights") == "weights"
    assert by_the_first(Ranks(1, first.sent), lambda: pytest.fail("no disk here")) == "weights"


def test_what_fails_on_the_first_rank_is_told_once_and_ends_the_others(monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    first = Ranks(0)
    with pytest.raises(ZeroDivisionError):
        by_the_first(first, lambda: 1 / 0)
    with pytest.raises(SystemExit):
        by_the_first(Ranks(1, first.sent), lambda: 1)
    assert waits == [5]  # or torchrun might end the first before it has spoken


@pytest.mark.filterwarnings("ignore:You passed .Fabric")
@pytest.mark.parametrize(("asked", "applied"), [("auto", "32"), ("32", "32"), ("bf16", "bf16"), ("16", "bf16")])
def test_the_precision_that_is_written_down_is_the_one_computed_in(asked, applied):
    if torch.cuda.is_available():
        pytest.skip("what a CPU does")
    assert applied_precision(build_fabric(load_recipe("digits", {"precision": asked}))) == applied


def test_one_process_is_all_there_are():
    alone = SimpleNamespace(world_size=1)
    assert by_the_first(alone, lambda: 3) == 3
    assert from_all(alone, "mine") == ["mine"]
