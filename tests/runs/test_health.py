import shutil
import sys

import pytest
from safetensors.torch import load_file, save_file

from sage_snn.cli import main
from sage_snn.recipes import load_recipe
from sage_snn.runs import check_recipe, check_run, open_run


@pytest.fixture
def command(monkeypatch, capsys):
    """`sage-snn check ...` -> exit code and what it printed."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sage-snn", "check", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr().out

    return run


def test_a_fresh_network_is_checked_with_the_slopes_of_its_policy(tiny):
    usual = check_recipe(load_recipe("digits", tiny | {"policy.kind": "fixed"}))
    assert [part.name for part in usual.parts] == ["outside blocks", "blocks.0.attention", "blocks.1.attention"]
    steep = check_recipe(load_recipe("digits", tiny | {"policy.kind": "fixed", "policy.slope": 1000.0}))
    assert steep.parts[1].gain != usual.parts[1].gain
    assert steep.parts[1].firing_rate == usual.parts[1].firing_rate


@pytest.mark.parametrize("loss", ["tet", "sum_cross_entropy"])
def test_a_loss_of_every_time_step_is_checked_too(tiny, loss):
    assert check_recipe(load_recipe("digits", tiny | {"loss": loss})).loss > 0


def test_a_run_is_checked_with_its_own_weights(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    weights = load_file(folder / "model.safetensors")
    for name, value in weights.items():
        if name.startswith("blocks.1.") and name.endswith(("norm.weight", "norm.bias")):
            value.fill_(-1.0 if name.endswith("bias") else 0.0)
    save_file(weights, folder / "model.safetensors")
    (folder / "summary.json").unlink()  # it tells the digest of the weights
    report = check_run(open_run(folder))
    assert "all neurons silent" in report.parts[2].problems
    assert not report.ok


def test_the_command_prints_the_report_and_fails_if_there_is_something_to_worry_about(command, tiny, finished):
    settings = [part for key, value in tiny.items() for part in ("--set", f"{key}={value}")]
    code, printed = command("digits", *settings, "--set", "model.dim=32")
    assert (code, "nothing to worry about" in printed) == (0, True)
    code, printed = command("digits", *settings, "--set", "policy.kind=fixed", "--set", "policy.slope=1e5")
    assert (code, "look at the verdicts" in printed) == (1, True)
    code, printed = command(finished)
    assert code == (0 if "nothing to worry about" in printed else 1)
    assert "blocks.1.attention" in printed
    assert "a run is checked as it was trained" in command(finished, "--set", "lr=1")[0]
