import io
import json

import pytest
import torch
from rich.console import Console

import sage_snn
from sage_snn.runs import RunFolder
from sage_snn.runs.assessment import Assessment, assess
from sage_snn.runs.energy import Activity, Layer
from sage_snn.runs.run import open_run


@pytest.fixture(scope="module")
def assessment(finished):
    return assess(open_run(finished))


def printed(thing):
    file = io.StringIO()
    Console(file=file, width=120).print(thing)
    return file.getvalue()


def test_accuracy_is_that_of_the_last_epoch(finished, assessment):
    last = RunFolder(finished).metrics()[-1]
    assert assessment.top1 == pytest.approx(last["test_top1"])
    assert assessment.top5 == pytest.approx(last["test_top5"])
    assert assessment.loss == pytest.approx(last["test_loss"], rel=1e-5)


def test_confusion_holds_every_test_image_once(finished, assessment):
    run = open_run(finished)
    assert torch.equal(assessment.confusion.sum(1), torch.bincount(run.data.test.labels, minlength=10))
    assert 100 * assessment.confusion.trace() / 60 == pytest.approx(assessment.top1)


def test_it_is_ready_for_json(assessment):
    told = json.loads(json.dumps(assessment.as_dict()))
    assert told["costs"]["mac_pj"] == 4.6
    assert told["costs"]["ac_pj"] == 0.9
    per_image = told["per_image"]
    assert per_image["energy_uj"] == pytest.approx((0.9 * per_image["sops"] + 4.6 * per_image["macs"]) * 1e-6)
    assert told["layers"]["stem.stages.0"]["firing_rate"] >= 0
    assert told["confusion"] == assessment.confusion.tolist()


def told(**layers):
    """What is printed for a network with these layers."""
    activity = Activity(1, layers)
    return printed(Assessment("run", "last", 1, ("a", "b"), 50.0, 100.0, 0.1, torch.eye(2).long(), activity))


def test_the_costs_are_stated():
    text = told(stem=Layer(macs=8.0, ann_macs=8.0, firing_rate=0.1), head=Layer(acs=2.0, ann_macs=8.0))
    assert "4.6 pJ per MAC, 0.9 pJ per AC" in text
    assert "times as much" in text
    assert "silent" not in text


def test_a_network_that_does_not_fire_has_no_energy_figure():
    silent = Layer(ann_macs=8.0, firing_rate=0.0)
    text = told(stem=Layer(macs=8.0, ann_macs=8.0, firing_rate=0.1), middle=silent, last=silent, head=Layer(ann_macs=8))
    assert "energy per image means nothing here: the network is silent from middle on" in text
    assert "times as much" not in text


def test_layers_that_are_silent_beside_a_shortcut_are_named_and_the_energy_told():
    stem, silent = Layer(macs=8.0, ann_macs=8.0, firing_rate=0.1), Layer(ann_macs=8.0, firing_rate=0.0)
    text = told(stem=stem, block=silent, head=Layer(acs=2.0, ann_macs=8.0))
    assert "silent from block on" in text
    assert "times as much" in text


def test_the_tables_show_every_layer(assessment):
    text = printed(assessment)
    assert f"top-1 {assessment.top1:.2f} %" in text
    assert "blocks.1.mlp.second" in text


@pytest.mark.parametrize(
    ("operations", "shown"),
    [(0, "·"), (0.25, "0.25"), (640, "640"), (999.9, "1 k"), (4608, "4.61 k"), (999_999, "1 M"), (3.7e9, "3.7 G")],
)
def test_operations_are_shown_with_three_digits(operations, shown):
    assert f" {shown} " in told(head=Layer(acs=operations, macs=7.0, ann_macs=8.0))


def test_a_long_name_is_folded_and_not_cut():
    name = "stages.3." + "blocks.1." * 20 + "attention.projection"
    assert name in "".join(line.split()[0] for line in told(**{name: Layer(acs=2.0)}).splitlines() if line.strip())


def test_many_classes_show_the_pairs_mistaken_most():
    classes = tuple(f"[kind {i}]" for i in range(50))
    confusion = torch.eye(50, dtype=torch.int64)
    confusion[3, 7], confusion[8, 1] = 5, 2
    activity = Activity(1, {"head": Layer(acs=1.0, ann_macs=2.0)})
    text = printed(Assessment("run", "best", 57, classes, 87.7, 100.0, 0.1, confusion, activity))
    lines = [line for line in text.splitlines() if "[kind" in line]
    assert len(lines) == 2
    assert all(part in lines[0] for part in ("[kind 3]", "[kind 7]", "5"))


def test_what_the_machine_did_stands_beside_what_spikes_need(assessment):
    told, work = assessment.as_dict(), assessment.work
    assert told["per_image"]["macs_done"] == work.macs > told["per_image"]["sops"] + told["per_image"]["macs"]
    assert told["work"]["layers"]["head"]["seconds"] > 0
    assert told["weights_as"] == "float32"
    assert told["rounded"] is None
    text = printed(assessment)
    assert "done here" in text
    assert "between layers" in text
    ratio = work.macs / (assessment.activity.sops + assessment.activity.macs)
    assert f"{ratio:.1f} times the operations that spikes need" in " ".join(text.split())


def test_int8_stands_beside_float32(finished, assessment):
    rounded = assess(open_run(finished), weights_as="int8")
    assert rounded.rounded.float32_top1 == pytest.approx(assessment.top1)
    assert 0.8 <= rounded.rounded.same_class <= 1
    assert rounded.work.layers.keys() == assessment.work.layers.keys()
    assert rounded.as_dict()["weights_as"] == "int8"
    assert f"weights as int8; in float32 top-1 is {assessment.top1:.2f} %" in printed(rounded)


def test_an_unfinished_run_says_so(tmp_path, tiny, interrupted):
    assessment = assess(open_run(interrupted(tmp_path / "run", tiny)))
    assert printed(assessment).startswith("run is not finished: 1 of 2 epochs are done")
    assert "after step 2 of epoch 2" in assessment.as_dict()["unfinished"]


def test_a_finished_run_is_not_called_unfinished(assessment):
    assert assessment.as_dict()["unfinished"] is None
    assert "finished" not in printed(assessment)


def test_a_run_is_ready_for_inference_in_one_line(finished):
    images = next(iter(open_run(finished).test_loader().epoch(0))).images
    with torch.no_grad():
        trained, fused = (network(images) for network in (sage_snn.load(finished), sage_snn.load(finished).fuse()))
    assert (trained.argmax(1) == fused.argmax(1)).double().mean() >= 0.99
    torch.testing.assert_close(fused, trained, rtol=1e-4, atol=1e-4)
