import importlib.util
from pathlib import Path

import pytest
import torch
from spikingjelly.activation_based import functional

from sage_snn import SAGE
from sage_snn.models import load_official_state_dict, official_state_dict, spikformer

_spec = importlib.util.spec_from_file_location("official_twin", Path(__file__).with_name("official_twin.py"))
_twin = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_twin)

FORMS = [("cifar", 4, 32), ("imagenet", 16, 64)]


def pair(form, patch, size):
    torch.manual_seed(0)
    twin = _twin.OfficialTwin(depth=2, dim=32, heads=4, time_steps=3, classes=10, form=form, patch=patch).double()
    ours = spikformer(2, 32, 4, time_steps=3, image_size=size, patch_size=patch, form=form).double()
    return twin, ours


@pytest.mark.parametrize(("form", "patch", "size"), FORMS)
@pytest.mark.parametrize("training", [True, False])
def test_the_authors_weights_give_the_authors_logits(form, patch, size, training):
    twin, ours = pair(form, patch, size)
    load_official_state_dict(ours, twin.state_dict())
    images = torch.randn(4, 3, size, size).double() * 2
    twin.train(training), ours.train(training)
    torch.testing.assert_close(ours(images), twin(images), rtol=1e-9, atol=1e-9)


def test_events_and_the_scale_of_the_authors_network_for_them_give_its_logits():
    torch.manual_seed(0)
    twin = _twin.OfficialTwin(depth=2, dim=32, heads=4, time_steps=1, classes=10, form="imagenet", patch=16).double()
    ours = spikformer(2, 32, 4, 3, image_size=64, patch_size=16, form="imagenet", attention_scale=0.25).double()
    for block in twin.block:
        block.attn.scale = 0.25
        for part in ("q", "k", "v"):  # so that enough of them fire for the scale to matter
            torch.nn.init.ones_(getattr(block.attn, f"{part}_bn").bias)
    unused = {"pos_embed": torch.zeros(1, 16, 32), "norm.weight": torch.ones(32), "norm.bias": torch.zeros(32)}
    load_official_state_dict(ours, twin.state_dict() | unused)
    events = torch.poisson(torch.full((3, 4, 3, 64, 64), 0.7, dtype=torch.float64)) * 2
    tokens = twin.patch_embed(events).flatten(-2)
    for block in twin.block:
        tokens = block(tokens)
    expected = twin.head(tokens.mean(-1).mean(0))
    torch.testing.assert_close(ours(events), expected, rtol=1e-9, atol=1e-9)
    plain = spikformer(2, 32, 4, 3, image_size=64, patch_size=16, form="imagenet").double()
    plain.load_state_dict(ours.state_dict())
    assert not torch.allclose(plain(events), expected)


@pytest.mark.parametrize(("form", "patch", "size"), FORMS)
@pytest.mark.parametrize("layer_norms", [True, False])
def test_names_and_shapes_survive_both_ways(form, patch, size, layer_norms):
    twin, ours = pair(form, patch, size)
    load_official_state_dict(ours, twin.state_dict())
    written = official_state_dict(ours, layer_norms=layer_norms)
    twins = {k: v for k, v in twin.state_dict().items() if layer_norms or ".norm" not in k}
    assert written.keys() == twins.keys()
    assert all(torch.equal(written[name], twins[name].to(written[name])) for name in twins)


def test_layer_norms_make_the_9330874_parameters_of_the_authors():
    state = official_state_dict(spikformer(), layer_norms=True)
    counted = sum(v.numel() for k, v in state.items() if "running" not in k and "tracked" not in k)
    assert counted == 9_330_874


def test_a_checkpoint_as_saved_by_a_trainer_is_unwrapped():
    twin, ours = pair(*FORMS[0])
    load_official_state_dict(ours, {"state_dict": {f"module.{k}": v for k, v in twin.state_dict().items()}})
    assert torch.equal(ours.head.weight, twin.head.weight)


def test_weights_of_another_form_or_depth_are_refused_and_nothing_is_loaded():
    twin, _ = pair(*FORMS[0])
    for wrong in (spikformer(2, 32, 4, form="imagenet"), spikformer(3, 32, 4), spikformer(2, 64, 4)):
        before = {k: v.clone() for k, v in wrong.state_dict().items()}
        with pytest.raises(ValueError, match="build it with the same"):
            load_official_state_dict(wrong, twin.state_dict())
        assert all(torch.equal(v, before[k]) for k, v in wrong.state_dict().items())


@pytest.mark.parametrize(("form", "patch", "size"), FORMS)
def test_sage_reads_the_same_entropy_in_the_authors_modules_and_in_ours(form, patch, size):
    twin, ours = pair(form, patch, size)
    load_official_state_dict(ours, twin.state_dict())
    images = torch.randn(4, 3, size, size).double() * 2
    read = []
    for model in (twin, ours):
        with SAGE(model, warmup_steps=0) as sage:
            model(images)
            sage.step()
            functional.reset_net(model)
            read.append(torch.stack(sage.head_entropy))
            assert [len(block.neurons) for block in sage.blocks] == [7, 7]
    torch.testing.assert_close(read[0], read[1], rtol=0, atol=1e-9)
