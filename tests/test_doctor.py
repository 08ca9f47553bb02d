"""The doctor: one row per operator, right answers where kernels are right, and an alarm where they are not."""

from importlib.metadata import version

import pytest
import torch
from typer.testing import CliRunner

from sage_snn.cli import app
from sage_snn.doctor import operators
from sage_snn.doctor.operators import OPERATORS, diagnose

CPU = torch.device("cpu")


def test_every_operator_agrees_with_its_twin_on_this_machine() -> None:
    seen = list(diagnose(CPU))
    assert [diagnosis.operator for diagnosis in seen] == list(OPERATORS)
    assert all(diagnosis.path == "C++" and diagnosis.reason is None for diagnosis in seen)
    assert [diagnosis.operator for diagnosis in seen if not diagnosis.is_right] == []


def test_a_wrong_kernel_is_noticed_and_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    right = operators.lif

    def wrong(currents: torch.Tensor, *others: object) -> tuple[torch.Tensor, torch.Tensor]:
        shift = 0.0 if operators.path(currents) == "twin" else 1.0
        return right(currents + shift, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(operators, "lif", wrong)
    lif, *others = diagnose(CPU)
    assert not lif.is_right
    assert lif.flips > 0.1
    assert all(diagnosis.is_right for diagnosis in others)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "LIF on cpu is WRONG; until it is mended, set SAGE_SNN_KERNELS=off" in " ".join(result.output.split())


def test_a_gradient_that_is_not_finite_is_not_right() -> None:
    errors = operators._differences((torch.empty(0), torch.tensor([float("nan")])), (torch.empty(0), torch.ones(1)))
    assert not operators.Diagnosis("LIF", "cpu", "C++", None, *errors, 0.0, 0.0).is_right


def test_the_screen_tells_versions_kernels_and_operators() -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    for words in (f"torch {version('torch')}", "kernels   compiled with", "every operator agrees", *OPERATORS):
        assert words in result.output


def test_the_twins_are_named_with_the_reason() -> None:
    with operators.switched_off():
        seen = list(diagnose(CPU))
    assert {(diagnosis.path, diagnosis.reason) for diagnosis in seen} == {("twin", "switched off")}


def test_an_unknown_kind_of_device_is_refused_with_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["doctor", "--compile", "sm_13"])
    assert "no kind of device is called 'sm_13'; choose from sm_75" in str(result.exception)
