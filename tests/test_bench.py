"""Every measurement runs and its rows add up; how fast anything is, no test asks."""

import json
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from sage_snn.bench import bench, gpu, measures, policies
from sage_snn.bench.contestants import ResNetSize, Size, Unit
from sage_snn.bench.events import Convolution, Map, event_driven
from sage_snn.bench.firing import RATE
from sage_snn.bench.timing import Timing, alternate
from sage_snn.cli import app
from sage_snn.kernels import native, switched_off
from sage_snn.recipes import POLICIES

TINY = Size(16, 2, 2, depth=2, time_steps=2, image=16)
TINY_RESNET = ResNetSize(0.0625, 2, time_steps=2, image=16)


def test_contestants_take_turns_after_a_round_to_warm_up():
    calls = []
    times = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repetitions=3)
    assert calls == ["a", "b"] * 4
    calls.clear()
    alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repetitions=1, calls=2)
    assert calls == ["a", "a", "b", "b"] * 2
    assert [len(t.seconds) for t in times.values()] == [3, 3]
    assert all(0 < t.minimum <= t.median for t in times.values())


def test_differences_are_taken_round_by_round():
    assert Timing((3.0, 12.0, 5.0)).minus(Timing((1.0, 9.0, 4.0))) == 2.0


def test_the_twin_runs_without_kernels_and_they_come_back():
    before = native.is_available()
    with switched_off():
        assert not native.is_available()
    assert native.is_available() == before


@pytest.mark.parametrize(
    ("rows", "contestants"),
    [
        (lambda: measures.training((TINY,), 1), 8),
        (lambda: measures.training((TINY_RESNET,), 1, measure="of ResNet-19"), 6),
        (lambda: measures.units((Unit(2, 2, 4, 8),), 1), 4),
        (lambda: measures.inferring((TINY,), 1), 7),
    ],
    ids=["training", "ResNet-19", "units", "inference"],
)
def test_ratios_are_to_spikingjelly_in_the_same_run(rows, contestants):
    found = list(rows())
    assert len(found) == contestants
    peer = next(row for row in found if row.contestant == "SpikingJelly")
    assert peer.ratio == 1.0
    assert [row.ratio for row in found] == [peer.minimum / row.minimum for row in found]


def test_event_driven_and_dense_products_stand_side_by_side_at_every_rate():
    found = list(event_driven((Convolution(32, 32, 8, images=2), Map(32, 32, 128)), 1, rates=(0.05, 0.3)))
    assert len(found) == 2 * 2 * 2 * 2
    for dense, driven in zip(found[::2], found[1::2], strict=True):
        assert dense.size == driven.size
        assert driven.ratio == dense.minimum / driven.minimum
    assert [row.contestant for row in found[:4]] == [
        "5 % firing, dense",
        "5 % firing, event-driven",
        "30 % firing, dense",
        "30 % firing, event-driven",
    ]
    assert [row.size for row in found[::4]] == [
        "3x3 convolution 32 -> 32, 8x8, 2 images, forward",
        "3x3 convolution 32 -> 32, 8x8, 2 images, weight gradient",
        "token-wise map 32 -> 32, 128 tokens, forward",
        "token-wise map 32 -> 32, 128 tokens, weight gradient",
    ]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_the_steps_for_a_gpu_run_on_a_cpu_too(monkeypatch, half):
    monkeypatch.setattr(gpu, "MODES", {})  # compiling has tests of its own, and takes minutes
    found = list(gpu.training((TINY,), 1, half=half))
    names = ["SpikingJelly", "SpikingJelly, channels last", "ours", "ours with SAGE", "ours, torch twin"]
    assert [row.contestant for row in found] == names
    assert all(row.minimum > 0 for row in found)


def test_networks_and_data_are_made_on_the_device_that_is_measured():
    with torch.device("meta"):
        assert {p.device.type for p in TINY.ours().parameters()} == {"meta"}
        assert {p.device.type for p in TINY.theirs().parameters()} == {"meta"}
        assert [t.device.type for t in TINY.data()] == ["meta", "meta"]


def test_a_device_that_is_not_here_is_refused():
    result = CliRunner().invoke(app, ["bench", "--device", "warp"])
    assert result.exit_code == 2
    assert "warp is not here; choose from cpu" in " ".join(result.output.replace("│", " ").split())


def test_the_pair_that_is_measured_is_the_same_on_both_sides_and_fused_on_ours():
    unit = Unit(3, 2, 4, 8)
    ours, theirs, x = unit.ours(), unit.theirs(), torch.randn(3, 2, 4, 8)
    assert ours.why_not_fused() is None
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.slow
def test_memory_is_measured_in_processes_of_their_own():
    theirs, ours = measures.memory(TINY_RESNET, small=1, large=64)
    assert (theirs.contestant, theirs.ratio) == ("SpikingJelly", 1.0)
    assert ours.size == "ResNet-19 of width 0.0625, batch 1 to 64"
    assert ours.ratio == pytest.approx(theirs.minimum / ours.minimum)


def test_overhead_names_its_parts_and_leaves_nothing_attached():
    parts = {row.contestant: row for row in measures.overhead((TINY,), 1)}
    assert list(parts) == ["statistic", "controller", "recording, four temperatures", "whole"]
    assert all("% of the step" in row.note for row in parts.values())


def test_every_policy_of_the_recipes_is_measured_in_every_size():
    rows = {row.contestant: row for row in policies.policies(Size(16, 2, 4, depth=2, time_steps=2, image=16), 1)}
    assert next(iter(rows)) == "plain step"
    assert {name.split(" per ")[0].split(",")[0] for name in rows} == {"plain step", *POLICIES.names} - {"none"}
    assert {"learnable", "learnable per layer", "learnable per time", "sage per channel"} <= set(rows)
    assert {"sage, firing rate", "sage, near threshold", "sage, gradient gain"} <= set(rows)
    assert "learnable_constants, time constant" in rows
    assert "learnable per network" not in rows
    assert all(
        row.note.endswith("% of the step, median difference") for name, row in rows.items() if name != "plain step"
    )


def test_a_policy_that_cannot_run_on_a_network_is_named_with_the_reason(capsys):
    rows = [row.contestant for row in policies.policies(ResNetSize(0.0625, 4, time_steps=2, image=16), 1)]
    assert "fixed" in rows
    assert "sage" not in rows
    told = capsys.readouterr().out
    assert "policy sage does not take part on ResNet-19 of width 0.0625: policy: no spiking self-attention" in told


class Trying:
    """Wants the batch, and acts every third step."""

    needs_batch, every = True, 3

    def __init__(self):
        self.batches = []

    def parameters(self):
        return iter(())

    def step(self, batch):
        self.batches.append(batch)


@pytest.mark.parametrize("every", [3, 65])
def test_a_turn_holds_a_whole_period_and_gives_the_batch_to_those_who_want_it(every):
    policy, part = Trying(), SimpleNamespace()
    policy.every, part.build = every, lambda model, steps_per_epoch, seed: policy
    if every > policies.LONGEST:
        with pytest.raises(ValueError, match="it acts every 65 steps, and a turn here has at most 64"):
            policies._turn(part, TINY)
        return
    turn = policies._turn(part, TINY)
    assert len(policy.batches) == every
    turn()
    assert len(policy.batches) == 2 * every
    images, labels = policy.batches[-1]
    assert images.equal(TINY.data()[0])
    assert labels.equal(TINY.data()[1])
    assert turn.timing(Timing((6.0, 3.0))).seconds == (2.0, 1.0)


def test_a_bench_prints_its_table_and_writes_it(tmp_path, monkeypatch, capsys):
    plan = [("training step", measures.training((TINY,), 1))]
    monkeypatch.setattr(bench, "_plan", lambda *_: plan)
    rows = bench.run_bench(tmp_path / "out" / "bench.json", quick=True)
    written = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [row["minimum"] for row in written["rows"]] == [row.minimum for row in rows]
    assert written["environment"]["versions"]["spikingjelly"]
    assert f"brought to fire at {RATE:.0%}" in written["weights"]
    assert "SpikingJelly, accelerated" in capsys.readouterr().out


def test_growth_is_drawn(tmp_path):
    rows = [
        measures.Row(f"growth with {name}", str(Size(16, 2, 2, **{field: value})), "ours", 0.1, 0.1, "s", 1.0)
        for name, field in (("T", "time_steps"), ("tokens", "image"), ("batch", "depth"), ("width", "depth"))
        for value in (4, 8)
    ]
    bench.draw_growth(rows, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_a_peer_that_does_not_compile_is_left_out_and_named(monkeypatch, capsys):
    def broken(model):
        def call(*_):
            raise RuntimeError("no")

        return call

    monkeypatch.setattr(measures.torch, "compile", broken)
    names = [row.contestant for row in measures.training((TINY,), 1, compiled=True)]
    assert not [name for name in names if "torch.compile" in name]
    assert "torch.compile fails with SpikingJelly" in capsys.readouterr().out


def test_ours_stands_beside_the_better_layout_and_compiled_beside_compiled():
    times = {
        "SpikingJelly": Timing((8.0,)),
        "SpikingJelly, channels last": Timing((6.0,)),
        "ours": Timing((4.0,)),
        "ours, torch twin": Timing((9.0,)),
        "SpikingJelly, torch.compile": Timing((3.0,)),
        "ours, torch.compile": Timing((2.0,)),
    }
    notes = {row.contestant: row.note for row in measures.rows("", "", times) if row.note}
    assert notes == {"ours": "1.50 to the better layout", "ours, torch.compile": "1.50 where both have torch.compile"}
