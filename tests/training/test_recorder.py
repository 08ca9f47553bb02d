import pandas as pd
import pytest

from sage_snn import SAGE, Fixed, find_layers
from sage_snn.signals import Constant, HeadGini
from sage_snn.training import train
from sage_snn.training.recorder import Recorder


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({}, "entropy"),
        ({"signal": HeadGini()}, "gini"),
        ({"signal": Constant()}, "readings"),
        ({"source": "firing"}, "firing_rate"),
    ],
)
def test_readings_are_named_after_their_signal(ours, images, tmp_path, options, column):
    model = ours()
    groups = {"groups": find_layers(model)} if "source" in options else {}
    with SAGE(model, warmup_steps=0, **options, **groups) as sage:
        model(images).sum().backward()
        sage.step()
        recorder = Recorder(tmp_path, sage)
        recorder.record(0)
        table = recorder.write(0)
        assert list(table.columns) == ["step", "block", "dispersion", "zscore", "slope", column]
        assert table[column].iloc[0] == sage.readings[0].tolist()
    assert list(pd.read_parquet(tmp_path / "epoch-0000.parquet").columns) == list(table.columns)


def test_a_policy_that_reads_nothing_has_the_columns_of_old_files(ours, tmp_path):
    with Fixed(ours()) as fixed:
        recorder = Recorder(tmp_path, fixed)
        recorder.record(0)
        table = recorder.table()
    assert list(table.columns) == ["step", "block", "dispersion", "zscore", "slope", "entropy"]
    assert table["entropy"].isna().all()


def test_a_run_of_another_signal_is_drawn_and_written_under_its_name(tmp_path, tiny):
    train("digits", tmp_path / "run", settings=tiny | {"epochs": 1, "policy.signal": "gini"}, quiet=True)
    signals = pd.read_parquet(tmp_path / "run" / "signals" / "epoch-0000.parquet")
    assert all(len(heads) == 2 for heads in signals["gini"])
    assert "entropy" not in signals
