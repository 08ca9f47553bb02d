"""Predictions: the network's own answer for images of one's own, prepared as in its test set."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from sage_snn.cli import app
from sage_snn.data import DataError
from sage_snn.runs import RunError, open_run, predict

RUN = Path(__file__).parents[1] / "old_runs" / "finished-sage"  # on the embedded digits, 8x8


@pytest.fixture
def digits(tmp_path):
    """Five test images as an .npz file and as pictures, and what the network answers to them."""
    run = open_run(RUN)
    batch = next(run.test_loader(5).epoch(0))
    chosen = run.data.test.select(torch.linspace(0, len(run.data.test) - 1, 5).round().long())
    np.savez(tmp_path / "five.npz", images=chosen.pixels.numpy())
    for index in range(5):
        chosen.picture(index).save(tmp_path / f"{index}.png")
    with torch.no_grad():
        expected = torch.softmax(run.network()(batch.images).double(), 1)
    return tmp_path, run, expected


def test_arrays_and_pictures_get_the_networks_own_probabilities(digits):
    folder, run, expected = digits
    for sources in ([folder / "five.npz"], [folder / f"{i}.png" for i in range(5)]):
        told = predict(run, sources).images
        assert len(told) == 5
        for one, row in zip(told, expected, strict=True):
            assert [one.probabilities[name] for name in run.data.classes] == pytest.approx(row.tolist(), abs=1e-6)
            assert list(one.probabilities.values()) == sorted(one.probabilities.values(), reverse=True)


def test_more_images_than_a_batch_come_back_in_their_order(digits):
    folder, run, expected = digits
    told = predict(run, [folder / "five.npz"] * 9).images
    assert [one.image for one in told] == [f"{folder / 'five.npz'}[{i}]" for i in range(5)] * 9
    assert next(iter(told[44].probabilities.values())) == pytest.approx(expected[4].max().item(), abs=1e-6)


def test_pictures_of_another_size_and_in_colour_are_brought_to_the_networks(digits):
    folder, run, _ = digits
    Image.new("RGB", (30, 40), "red").save(folder / "red.jpg")
    (told,) = predict(run, [folder / "red.jpg"]).images
    assert sum(told.probabilities.values()) == pytest.approx(1)


def test_the_command_prints_a_table_and_json(digits):
    folder, run, expected = digits
    arguments = ["predict", str(RUN), str(folder / "0.png")]
    shown = CliRunner().invoke(app, [*arguments, "--top", "2"])
    assert shown.exit_code == 0
    likeliest = run.data.classes[int(expected[0].argmax())]
    assert f"{likeliest} {100 * expected[0].max():.1f} %" in shown.output
    assert "3." not in shown.output.splitlines()[1]
    (told,) = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert told["class"] == likeliest
    assert set(told["probabilities"]) == set(run.data.classes)


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing.png", "is not there"), ("", "is a folder"), ("text.png", "cannot be read as a picture")],
)
def test_what_is_no_image_is_refused_by_name(digits, name, words):
    folder, run, _ = digits
    (folder / "text.png").write_text("no picture")
    with pytest.raises(DataError, match=f"{name}.* {words}"):
        predict(run, [folder / "0.png", folder / name])


def test_an_npz_without_images_is_refused(digits):
    folder, run, _ = digits
    np.savez(folder / "other.npz", pixels=np.zeros(3))
    with pytest.raises(DataError, match=r"other\.npz lacks images"):
        predict(run, [folder / "other.npz"])


def test_a_run_that_does_not_know_its_classes_asks_for_the_data(digits, monkeypatch):
    folder, run, _ = digits
    monkeypatch.setattr("sage_snn.runs.prediction.card_of", lambda *_: {"input": [1, 8, 8]})
    with pytest.raises(RunError, match="give --data-dir"):
        predict(run, [folder / "0.png"])
