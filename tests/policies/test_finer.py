"""SAGE per head and per channel: what each slope is, where it acts, what is refused."""

import copy
import math
import pickle
import statistics as plain

import pytest
import torch
from torch import nn

from sage_snn import SAGE, Block, DeadZoneTanh, HeadEntropy, LIFNode, Statistics, find_layers
from sage_snn.control import nodes_of
from sage_snn.models import vgg11
from sage_snn.signals import FiringRate
from sage_snn.surrogate import ChannelSlopes
from sage_snn.training.recorder import Recorder

STRICT = DeadZoneTanh(dead_zone=0.0)
FINER = {"head": {}, "channel": {"source": "firing"}, "token": {}}
BY_HEAD = ("query", "key", "value", "attention")


def batch(seed, count=4, dtype=torch.float32):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def train(model, sage, seeds, lr=0.05):
    """Losses of a few steps of gradient descent."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=lr), []
    for seed in seeds:
        loss = model(batch(seed)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if sage is not None:
            sage.step()
        losses.append(loss.item())
    return losses


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def straight_line(series, decay=0.95, eps=1e-8, gain=0.5):
    """Slopes after the last step, of values that are compared with each other: a list of values per step."""
    scores = []
    for values in zip(*series, strict=True):
        smoothed = [values[0]]
        for value in values[1:]:
            smoothed.append(decay * smoothed[-1] + (1 - decay) * value)
        deviation = plain.pstdev(smoothed)
        scores.append((smoothed[-1] - plain.fmean(smoothed)) / (deviation + eps) if deviation > 0 else 0.0)
    centred = [score - plain.fmean(scores) for score in scores]
    return [4 + gain * math.tanh(score) for score in centred]


# Per head


class Scripted:
    """A signal that gives one row of a script after the other: a value per head, block by block."""

    def __init__(self, script):
        self.rows = iter(script.flatten(0, 1))

    def __call__(self, q, k, scale):
        return next(self.rows)


def test_slopes_of_heads_are_those_of_the_equations_over_100_steps(ours):
    steps, model = 100, ours()
    script = torch.rand(steps, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    sage = SAGE(model, warmup_steps=2, per="head", signal=Scripted(script), law=STRICT)
    for step in range(steps):
        with torch.no_grad():
            q = torch.zeros(1, 1, 4, 1, 1)
            for taps in sage._reader.taps:
                taps[0].add(q, q, 0.125)
        sage.step()
        for block in range(2):
            slopes = straight_line(script[: step + 1, block].tolist()) if step + 1 >= 2 else [4.0] * 4
            assert sage.fine_slopes[block].tolist() == pytest.approx(slopes, abs=1e-9)
            assert float(sage.slopes[block]) == pytest.approx(plain.fmean(slopes), abs=1e-9)
            assert float(sage.dispersion[block]) == pytest.approx(plain.pstdev(script[step, block].tolist()), abs=1e-12)
    assert len(set(sage.fine_slopes[0].tolist())) == 4


def test_query_key_value_and_attention_have_a_slope_per_head_and_the_others_their_mean(ours):
    model = ours()
    sage = SAGE(model, warmup_steps=0, per="head", law=STRICT)
    train(model, sage, range(4))
    for block, slopes in zip(model.blocks, sage.fine_slopes, strict=True):
        attention = block.attention
        for node in (attention.query.lif, attention.key.lif, attention.value.lif, attention.lif):
            written = node.slope.begin((2, 4, 32, 16))
            assert written.shape == (1, 1, 32, 1)
            assert torch.equal(written.flatten(), slopes.repeat_interleave(8))
        for node in (attention.projection.lif, block.mlp.first.lif, block.mlp.second.lif):
            assert torch.equal(node.slope(), slopes.mean())


def test_a_node_of_query_key_and_value_repeats_the_heads(jelly):
    model = jelly(spiking_neuron=LIFNode)
    sage = SAGE(model, warmup_steps=0, per="head", law=STRICT)
    from spikingjelly.activation_based import functional

    for seed in range(3):
        model(batch(seed)).sum().backward()
        functional.reset_net(model)
        sage.step()
    packed = [node for group in sage.groups for node in group.by_head if node is group.query]
    assert len(packed) == 2
    for node, slopes in zip(packed, sage.fine_slopes, strict=True):
        assert torch.equal(node.slope.tensor.flatten(), slopes.repeat_interleave(8).repeat(3))
    other = sage.groups[0].by_head[1]  # the attention's, whose third axis is that of the heads
    assert torch.equal(other.slope.tensor.flatten(), sage.fine_slopes[0])


def test_gradients_per_head_are_those_of_a_loop_over_channels(ours, settle, as_loops):
    model = settle(ours().double(), batch(0, dtype=torch.float64))
    sage = SAGE(model, warmup_steps=0, per="head", law=STRICT)
    for seed in range(3):
        model(batch(seed, dtype=torch.float64)).sum().backward()
        sage.step()
    each = [(s.repeat_interleave(8).view(1, 1, -1, 1), s.mean().view(1, 1, 1, 1)) for s in sage.fine_slopes]
    loops = as_loops(model, lambda block, place: each[block][place not in BY_HEAD])
    x = batch(7, 2, dtype=torch.float64)
    found, expected = gradients(model, x), gradients(loops, x)
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-9, atol=1e-9 * float(gradient.abs().max())), name


def test_a_block_with_one_head_keeps_its_base(ours):
    model = ours(heads=1)
    with SAGE(model, warmup_steps=0, per="head", law=STRICT, statistics=Statistics(center=False)) as sage:
        train(model, sage, range(4))
        assert sage.slopes.tolist() == [4.0, 4.0]
        assert "keeps its base" in str(sage)


# Per channel


def test_slopes_of_channels_are_those_of_the_equations_over_100_steps():
    model = nn.Sequential(*(LIFNode(v_threshold=0.4, step_mode="m", carry_state=False) for _ in range(2)))
    sage = SAGE(model, warmup_steps=1, per="channel", source="firing", law=STRICT)
    rates = []
    model[1].register_forward_hook(lambda _m, _a, spikes: rates.append(spikes.detach().mean((0, 1, 3)).tolist()))
    for step in range(100):
        model((1 + torch.arange(5.0))[:, None] * torch.rand(3, 2, 5, 6, generator=torch.Generator().manual_seed(step)))
        sage.step()
        assert sage.fine_slopes[1].tolist() == pytest.approx(straight_line(rates), abs=1e-6)  # rates in float32
    assert torch.equal(model[1].slope.tensor, sage.fine_slopes[1].view(1, 1, -1, 1))
    assert sage.readings[1].tolist() == pytest.approx([plain.fmean(rates[-1])])
    assert sage.slopes[1] == sage.fine_slopes[1].mean()
    assert len(set(sage.fine_slopes[1].tolist())) > 3


def test_channels_follow_their_firing_where_no_source_is_named(ours):
    found = []
    for options in ({}, {"source": "firing"}):
        model = ours()
        sage = SAGE(model, warmup_steps=0, per="channel", law=STRICT, **options)
        found.append((train(model, sage, range(3)), sage.fine_slopes))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


def test_gradients_per_channel_are_those_of_a_loop_over_channels(ours, settle, as_loops):
    model = settle(ours().double(), batch(0, dtype=torch.float64))
    sage = SAGE(model, warmup_steps=0, per="channel", source="firing", law=STRICT)
    for seed in range(3):
        model(batch(seed, dtype=torch.float64)).sum().backward()
        sage.step()
    slopes = iter(sage.fine_slopes)  # node after node, as they stand in the network
    loops = as_loops(model, lambda block, place: next(slopes).view(1, 1, -1, 1))
    x = batch(7, 2, dtype=torch.float64)
    found, expected = gradients(model, x), gradients(loops, x)
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-9, atol=1e-9 * float(gradient.abs().max())), name


def test_channels_of_a_convolutional_network():
    torch.manual_seed(0)
    model = vgg11(width=0.125, time_steps=2)
    sage = SAGE(model, warmup_steps=0, per="channel", groups=find_layers(model), source="firing", law=STRICT)
    for seed in range(3):
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        model(x).square().mean().backward()
        sage.step()
    assert len(sage.fine_slopes) == len(nodes_of(model))
    assert all(
        node.slope.tensor.shape == (1, 1, len(s), 1) for node, s in zip(nodes_of(model), sage.fine_slopes, strict=True)
    )
    assert any(len(set(slopes.tolist())) > 1 for slopes in sage.fine_slopes)
    sage.remove()
    assert all(node.slope is None for node in nodes_of(model))


def test_rates_of_channels_average_to_that_of_the_node():
    spikes = (torch.rand(2, 3, 5, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    rates = FiringRate().each_channel(spikes, 2)
    assert torch.equal(rates, spikes.double().mean((0, 1, 3, 4)))
    assert torch.equal(FiringRate().each_channel(spikes.movedim(2, -1), -1), rates)
    assert float(rates.mean()) == pytest.approx(float(FiringRate()(spikes)))
    assert FiringRate().each_channel(torch.ones(2, 3, 5), 2).tolist() == [1.0] * 5


# All of them


@pytest.mark.parametrize("per", FINER)
def test_slopes_that_never_move_change_no_bit(ours, per):
    still, weights = DeadZoneTanh(gain=0.0), []
    for options in ({"per": per, **FINER[per]}, {"per": "group", **FINER[per]}):
        model = ours()
        with SAGE(model, warmup_steps=1, law=still, **options) as sage:
            losses = train(model, sage, range(5))
            weights.append((losses, model.state_dict()))
    assert weights[0][0] == weights[1][0]
    assert all(torch.equal(weights[0][1][name], value) for name, value in weights[1][1].items())


@pytest.mark.parametrize("per", FINER)
def test_a_resumed_training_goes_on_to_the_same_bits(ours, per):
    model, again = ours(), ours()
    sage = SAGE(model, warmup_steps=1, per=per, law=STRICT, **FINER[per])
    train(model, sage, range(3))
    again.load_state_dict(model.state_dict())
    resumed = SAGE(again, warmup_steps=1, per=per, law=STRICT, **FINER[per])
    resumed.load_state_dict(sage.state_dict())
    assert torch.equal(sage.slopes, resumed.slopes)
    assert train(model, sage, range(5, 9)) == train(again, resumed, range(5, 9))
    assert torch.equal(sage.slopes, resumed.slopes)
    assert all(torch.equal(a, b) for a, b in zip(sage.fine_slopes, resumed.fine_slopes, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))
    assert any(len(slopes.unique()) > 2 for slopes in sage.fine_slopes)


@pytest.mark.parametrize("per", FINER)
def test_a_state_of_before_the_first_step_is_one_too(ours, per):
    with SAGE(ours(), warmup_steps=0, per=per, **FINER[per]) as sage:
        state = sage.state_dict()
        sage.load_state_dict(state)
        assert sage.slopes.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("per", FINER)
def test_a_copied_network_is_on_its_own(ours, per):
    model = ours()
    with SAGE(model, warmup_steps=0, per=per, law=STRICT, **FINER[per]) as sage:
        train(model, sage, range(3))
        expected = gradients(model, batch(5))
        copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        gradients(copied, batch(6))
        assert all(torch.equal(gradient, expected[name]) for name, gradient in gradients(model, batch(5)).items())
        sage.step()
    with SAGE(copied, warmup_steps=0):
        gradients(copied, batch(6))


@pytest.mark.parametrize("per", FINER)
def test_bfloat16_has_finer_slopes_too(ours, per):
    model = ours()
    with SAGE(model, warmup_steps=0, per=per, law=STRICT, **FINER[per]) as sage:
        for seed in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(batch(seed)).square().mean()
            loss.backward()
            sage.step()
        assert any(len(slopes.unique()) > 1 for slopes in sage.fine_slopes)


@pytest.mark.parametrize("per", FINER)
def test_removal_gives_the_network_back(ours, per):
    model, x = ours(), batch(5)
    with SAGE(model, warmup_steps=0, per=per, law=STRICT, **FINER[per]) as sage:
        for seed in range(3):
            model(batch(seed)).sum().backward()
            sage.step()
        moved = gradients(model, x)
    assert all(node.slope is None for node in nodes_of(model))
    plainly = gradients(model, x)
    untouched = ours()
    untouched.load_state_dict(model.state_dict())
    assert all(torch.equal(plainly[name], g) for name, g in gradients(untouched, x).items())
    assert any(not torch.equal(moved[name], g) for name, g in plainly.items())


@pytest.mark.parametrize("per", FINER)
def test_the_recorder_gets_a_slope_and_the_readings_of_each_block(ours, per, tmp_path):
    model = ours()
    with SAGE(model, warmup_steps=0, per=per, law=STRICT, **FINER[per]) as sage:
        train(model, sage, range(3))
        assert f"a slope per {per}" in str(sage)
        recorder = Recorder(tmp_path, sage)
        recorder.record(3)
        table = recorder.table()
        assert table["slope"].tolist() == sage.slopes.tolist()
        assert [len(values) for values in table[recorder.column]] == ([7, 7] if per == "channel" else [4, 4])


def test_same_step_slopes_of_heads_act_on_this_backward(ours, settle):
    found = []
    for same_step in (False, True):
        model = settle(ours(), batch(0))
        sage = SAGE(model, warmup_steps=0, per="head", same_step=same_step, law=STRICT)
        for seed in range(3):
            model(batch(seed))
            sage.step()
        if not same_step:
            found.append(gradients(model, batch(2)))  # the slopes that were written after this batch
        else:
            model.zero_grad()
            loss = model(batch(2)).square().sum()
            history, slopes = sage.state_dict()["history"], sage.fine_slopes
            assert torch.equal(sage.groups[0].by_head[0].slope.tensor.flatten(), slopes[0].repeat_interleave(8))
            assert history["seen"].tolist() == [3.0] * 8
            loss.backward()
            found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert all(torch.equal(found[0][name], g) for name, g in found[1].items())


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": "neuron"}, "per must be 'group', 'head', 'channel' or 'token', not 'neuron'"),
        (
            {"per": "channel", "source": "attention"},
            "source='attention' has no value per channel; pass source='firing'",
        ),
        ({"per": "channel", "source": "membrane"}, "source='membrane' has no value per channel; pass source='firing'"),
        ({"per": "channel", "signal": HeadEntropy()}, "HeadEntropy reads attention.* a signal of firing such as"),
        ({"per": "head", "source": "firing"}, "per='head' follows attention; with source='firing' pass per='group'"),
        ({"per": "token", "source": "firing"}, "per='token' follows attention"),
        ({"per": "head", "neurons": "all"}, "nodes outside the blocks have no heads of them; pass neurons='block'"),
        ({"per": "token", "every": 2}, "pass every=1"),
        ({"per": "token", "same_step": True}, "leave same_step= out"),
        ({"per": "token", "signal": HeadEntropy(images=2)}, "needs every row of every image"),
        ({"per": "token", "signal": lambda q, k, scale: q.sum((0, 1, 3, 4))}, "has no value per token"),
        ({"per": "channel", "source": "firing", "signal": lambda s: s.mean().view(1)}, "has no value per channel"),
    ],
)
def test_what_a_grain_cannot_do_is_refused_with_its_cure(ours, options, message):
    model = ours()
    with pytest.raises(ValueError, match=message):
        SAGE(model, warmup_steps=0, **options)
    SAGE(model, warmup_steps=0).remove()


@pytest.mark.parametrize("per", ["head", "token"])
def test_a_network_without_attention_has_no_heads_and_no_tokens(per):
    model = vgg11(width=0.125, time_steps=2)
    with pytest.raises(ValueError, match=r"no spiking self-attention found .*source='firing'"):
        SAGE(model, warmup_steps=0, per=per)


@pytest.mark.parametrize("per", FINER)
def test_nodes_that_keep_one_number_are_refused_with_the_cure(jelly, per):
    model = jelly()
    told = r"LIFNode of spikingjelly\.\S+ keeps its slope as one number; build the network with sage_snn\.LIFNode"
    with pytest.raises(ValueError, match=told):
        SAGE(model, warmup_steps=0, per=per, **FINER[per])
    SAGE(model, warmup_steps=0).remove()


def test_a_state_of_another_grain_is_refused(ours):
    model = ours()
    with SAGE(model, warmup_steps=0) as sage:
        state = sage.state_dict()
    del state["settings"]["per"]  # as states were before there were others
    with SAGE(model, warmup_steps=0, per="head") as sage, pytest.raises(ValueError, match="per: 'group' there, 'head'"):
        sage.load_state_dict(state)


def test_a_block_that_does_not_say_which_nodes_have_heads_is_refused():
    node = LIFNode(step_mode="m")
    model = nn.Sequential(node, nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"pass Block\(by_head="):
        SAGE(model, warmup_steps=0, per="head", blocks=[Block([node], node, node, heads=2, name="it")] * 1)
    assert node.slope is None


def test_slopes_that_do_not_fit_the_channels_are_refused():
    slope = ChannelSlopes(4.0, repeats=3)
    slope.tensor = slope.spread(torch.full((4,), 4.0))
    assert slope.begin((2, 1, 24, 5)).shape == (1, 1, 24, 1)
    with pytest.raises(ValueError, match=r"slopes \(4,\), 3 times, do not fit the 16 channels"):
        slope.begin((2, 1, 16, 5))
