from sage_snn.training import demo, train


def test_a_demo_of_one_epoch_cuts_the_warm_up(tmp_path, tiny, monkeypatch, capsys):
    small = {key: value for key, value in tiny.items() if not key.endswith("epochs")}

    def train_small(recipe, folder, *, settings, resume):
        return train(recipe, folder, settings=small | settings, resume=resume, quiet=True)

    monkeypatch.setattr(demo, "train", train_small)
    summaries = demo.run_demo(tmp_path, epochs=1)
    assert [summary["epochs"] for summary in summaries.values()] == [1, 1, 1]
    assert "learnable" in capsys.readouterr().out
