"""Whole runs of policies that change the network: trained, evaluated, loaded, exported, resumed."""

import pytest
import torch
from safetensors.torch import load_file

import sage_snn
from sage_snn.deploy import export
from sage_snn.runs.assessment import assess
from sage_snn.runs.run import open_run
from sage_snn.training import train

CHANGING = [
    {"policy.kind": "ds_atgo"},
    {"policy.kind": "learnable_constants", "policy.target": "threshold"},
    {"policy.kind": "learnable_constants", "policy.target": "time_constant", "policy.constants_per": "group"},
]
OTHERS = ["scheduled", "mpd_agl", "asgl", "gain_matched"]


def told(settings):
    return "-".join(str(value) for value in settings.values())


@pytest.mark.slow
@pytest.mark.parametrize("settings", CHANGING, ids=told)
def test_a_network_with_constants_of_its_own_is_evaluated_loaded_exported_and_resumed(
    settings, tiny, tmp_path, interrupted, same_run, capsys
):
    folder, name = tmp_path / "run", "time_constant" if "group" in told(settings) else "threshold"
    summary = train("digits", folder, settings=tiny | settings)
    assert "changes the forward pass" in capsys.readouterr().err
    weights = load_file(folder / "model.safetensors")
    constants = {key: value for key, value in weights.items() if key.endswith(f"lif.{name}")}
    start = 2.0 if name == "time_constant" else 1.0
    assert len(constants) > 10
    assert any(abs(float(value.flatten()[0]) - start) > 1e-4 for value in constants.values())

    network = sage_snn.load(folder)
    assert all(torch.equal(network.state_dict()[key], value) for key, value in constants.items())
    assert assess(open_run(folder)).top1 == pytest.approx(summary["last_top1"])

    interrupted(tmp_path / "cut", tiny | settings)
    train("digits", tmp_path / "cut", settings=tiny | settings, resume=True, quiet=True)
    assert same_run(folder, tmp_path / "cut")

    path = export(network, tmp_path / "network.safetensors", "safetensors", torch.zeros(1, 1, 8, 8))
    assert all(torch.equal(load_file(path)[key], value) for key, value in weights.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_runs_of_other_policies_leave_a_plain_network_and_resume(kind, tiny, tmp_path, interrupted, same_run):
    settings = tiny | {"policy.kind": kind}
    train("digits", tmp_path / "whole", settings=settings, quiet=True)
    assert not [key for key in load_file(tmp_path / "whole" / "model.safetensors") if key.endswith("threshold")]
    interrupted(tmp_path / "cut", settings)
    train("digits", tmp_path / "cut", settings=settings, resume=True, quiet=True)
    assert same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["silent_share", "near_threshold", "gradient_gain"])
def test_sage_follows_signals_of_nodes_from_a_recipe(signal, tiny, tmp_path):
    model = {"model.name": "vgg11", "model.width": 0.0625}
    settings = {k: v for k, v in tiny.items() if not k.startswith("model.") or k == "model.time_steps"}
    train("digits", tmp_path / "run", settings=settings | model | {"policy.signal": signal}, quiet=True)
    import pandas as pd

    table = pd.read_parquet(tmp_path / "run" / "signals" / "epoch-0001.parquet")
    assert table[signal].map(len).eq(1).all()
    assert table["slope"].nunique() > 3


def test_a_run_says_where_a_schedule_stays_that_is_shorter_than_the_training(tiny, tmp_path, capsys):
    settings = {"policy.kind": "scheduled", "policy.schedule_epochs": 1.0, "epochs": 2, "max_steps_per_epoch": 1}
    train("digits", tmp_path / "run", settings=tiny | settings)
    assert "the schedule ends after 1 of 2 steps: the slope stays at 4 from there" in capsys.readouterr().err
