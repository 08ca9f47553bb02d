"""SAGE per token: each query row decides for the neurons of its token, in the same backward pass."""

import math

import pytest
import torch
from spikingjelly.activation_based import functional
from torch import nn
from torch.utils.checkpoint import checkpoint

from sage_snn import SAGE, Block, Constant, DeadZoneTanh, LIFNode, Random, Statistics
from sage_snn.control import TokenSlope, TokenSlopes, nodes_of
from sage_snn.signals import SPREADS, population_std, spread_of_rows

STRICT = DeadZoneTanh(dead_zone=0.0)


def batch(seed, count=4, dtype=torch.float32):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def warmed(model, dtype=torch.float32, **options):
    """SAGE after two steps: tokens have a mean and a deviation."""
    sage = SAGE(model, warmup_steps=0, per="token", law=STRICT, **options)
    for seed in range(2):
        model(batch(seed, dtype=dtype)).square().sum().backward()
        functional.reset_net(model)
        sage.step()
    model.zero_grad()
    return sage


def gradients(model, *batches):
    """Of all passes together, which run before the first goes back."""
    model.zero_grad()
    losses = [model(x).square().sum() for x in batches]
    for loss in losses:
        loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def differ(one, other):
    return [name for name, gradient in one.items() if not torch.equal(gradient, other[name])]


class Mixer(nn.Sequential):
    """Two nodes, the query and the key of a block: (T, B, C, N) -> (T, B, C, N)."""

    def __init__(self):
        super().__init__(*(LIFNode(v_threshold=0.4, step_mode="m", carry_state=False) for _ in range(2)))

    def block(self, **options):
        return Block(list(self), self[0], self[1], heads=2, layout="TBCN", name="it", **options)


def row_spreads(q, k, scale=0.125, temperature=0.25):
    """Deviation over heads of the entropy of each query row, one row after the other; q, k (T, B, H, N, K)."""
    times, images, heads, tokens, _ = q.shape
    found = torch.zeros(times, images, tokens, dtype=torch.float64)
    for t in range(times):
        for b in range(images):
            for n in range(tokens):
                entropies = []
                for h in range(heads):
                    scores = [scale / temperature * float(q[t, b, h, n] @ k[t, b, h, j]) for j in range(tokens)]
                    total = sum(map(math.exp, scores))
                    p = [math.exp(score) / total for score in scores]
                    entropies.append(-sum(each * math.log(each) for each in p) / math.log(tokens))
                mean = sum(entropies) / heads
                found[t, b, n] = math.sqrt(sum((e - mean) ** 2 for e in entropies) / heads)
    return found


@pytest.mark.parametrize(
    "statistics",
    [Statistics(), Statistics(running="exponential", momentum=0.1), Statistics(center=False, restart=True)],
    ids=["cumulative", "exponential", "not centred, restarted"],
)
def test_slopes_of_tokens_are_those_of_a_straight_line_over_100_steps(statistics):
    model, warmup = Mixer(), 3
    sage = SAGE(model, warmup_steps=warmup, per="token", blocks=[model.block()], statistics=statistics, law=STRICT)
    steps, seen, mean, variance = 100, 0, 0.0, 0.0
    for step in range(steps):
        x = 3 * torch.rand(2, 2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        q = model[0](x)
        k = model[1](x.flip(2) * q)
        values = row_spreads(*(s.detach().unflatten(2, (2, 3)).transpose(3, 4) for s in (q, k)))
        expected = torch.full((2, 2, 3), 4.0, dtype=torch.float64)
        if step >= warmup and variance > 0:
            scores = (values - mean) / (math.sqrt(variance) + 1e-8)
            for b in range(2):
                for t in range(2):
                    for n in range(3):
                        own = scores[t, b, n] - (scores[:, b].mean() if statistics.center else 0)
                        expected[t, b, n] = 4 + 0.5 * math.tanh(own)
        assert torch.allclose(sage.fine_slopes[0], expected, rtol=0, atol=1e-9)
        sage.step()
        assert float(sage.slopes[0]) == pytest.approx(float(expected.mean()), abs=1e-9)
        assert float(sage.dispersion[0]) == pytest.approx(float(values.mean()), abs=1e-12)
        weight = 1 / (seen + 1) if statistics.running == "cumulative" or seen == 0 else 0.1
        change, spread = float(values.mean()) - mean, float(values.var(correction=0))
        variance = (1 - weight) * variance + weight * spread + weight * (1 - weight) * change**2
        mean, seen = mean + weight * change, seen + 1
        if statistics.restart and step + 1 == warmup:
            seen, mean, variance = 0, 0.0, 0.0
        history = sage.state_dict()["history"]
        assert float(history["mean"]) == pytest.approx(mean, abs=1e-12)
        assert float(history["variance"]) == pytest.approx(variance, abs=1e-12)
    assert len(sage.fine_slopes[0].unique()) > 2


def test_mean_and_deviation_are_those_of_all_tokens_so_far():
    statistics, series = Statistics(), [torch.rand(7, dtype=torch.float64) for _ in range(5)]
    sage = SAGE(model := Mixer(), warmup_steps=0, per="token", blocks=[model.block()])
    history = sage._grain.tracks[0].history
    for values in series:
        history = statistics.gather(history, values.mean().view(1), values.square().mean().view(1))
    everything = torch.cat(series)
    assert float(history.mean) == pytest.approx(float(everything.mean()), abs=1e-12)
    assert float(history.variance) == pytest.approx(float(everything.var(correction=0)), abs=1e-12)
    kept = statistics.gather(history, torch.tensor([math.nan]), torch.tensor([1.0]))
    assert all(torch.equal(a, b) for a, b in zip(kept, history, strict=True))


def test_gradients_are_those_of_a_loop_over_tokens(ours, settle, as_loops):
    model = settle(ours().double(), batch(0, dtype=torch.float64))
    sage = warmed(model, torch.float64)
    x = batch(7, 2, torch.float64)
    found = gradients(model, x)
    slopes = [each.unsqueeze(2) for each in sage.fine_slopes]
    assert slopes[0].shape == (2, 2, 1, 16)
    assert len(slopes[0].unique()) > 5
    expected = gradients(as_loops(model, lambda block, place: slopes[block]), x)
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-9, atol=1e-9 * float(gradient.abs().max())), name


def test_an_image_changes_its_own_gradients_only(ours, settle):
    model = settle(ours(), batch(0))
    warmed(model)
    x = batch(7).requires_grad_()
    model(x).square().sum().backward()
    before = x.grad.clone()
    changed = x.detach().clone()
    changed[1, :, :8] = batch(9)[1, :, :8]
    changed.requires_grad_()
    model(changed).square().sum().backward()
    same = [bool(torch.equal(a, b)) for a, b in zip(before, changed.grad, strict=True)]
    assert same == [True, False, True, True]


def test_every_pass_of_a_step_has_slopes_of_its_own(ours, settle):
    model = settle(ours(), batch(0))
    sage = warmed(model)
    halves = batch(7).split(2)
    together = gradients(model, *halves)
    apart = [gradients(model, half) for half in halves]
    for name, gradient in together.items():
        assert torch.allclose(gradient, apart[0][name] + apart[1][name], rtol=1e-4, atol=1e-6), name
    whole = gradients(model, batch(7))
    for name, gradient in whole.items():  # no image sees the others: how they are divided changes rounding only
        assert torch.allclose(gradient, together[name], rtol=1e-3, atol=1e-5), name
    sage.step()


def test_warm_up_and_evaluation_keep_the_base(ours, settle):
    model = settle(ours(), batch(0))
    plainly = gradients(model, batch(7))
    sage = SAGE(model, warmup_steps=2, per="token", law=STRICT)
    for _ in range(2):
        assert not differ(gradients(model, batch(7)), plainly)
        sage.step()
    assert differ(gradients(model, batch(7)), plainly)
    state = sage.state_dict()["history"]
    model.eval()
    assert not differ(gradients(model, batch(7)), plainly)
    with sage.paused(), torch.no_grad():
        model.train()(batch(8))
    sage.step()
    assert float(sage.state_dict()["history"]["seen"][0]) == float(state["seen"][0]) + 1


def test_checkpointing_replays_with_the_slopes_of_the_pass(ours, settle):
    model = settle(ours(), batch(0))
    sage = warmed(model)
    expected, history = gradients(model, batch(7)), None
    for block in model.blocks:
        block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=False)
    assert not differ(gradients(model, batch(7)), expected)
    sage.step()
    history = sage.state_dict()["history"]
    assert history["seen"].tolist() == [3.0, 3.0]
    for block in model.blocks:
        del block.forward
        block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="pass use_reentrant=False"):
        gradients(model, batch(7))


@pytest.mark.slow
def test_a_compiled_model_is_refused(ours):
    model = ours(depth=1)
    sage = SAGE(model, warmup_steps=0, per="token")
    compiled = torch.compile(model, backend="eager")
    compiled(batch(0)).sum().backward()
    with pytest.raises(RuntimeError, match=r"which torch.compile cannot do; train the model uncompiled"):
        sage.step()
    assert all(node.slope is None for node in nodes_of(model))
    with pytest.raises(RuntimeError, match=r"which torch.compile cannot do"):
        SAGE(compiled, warmup_steps=0, per="token")
    torch.compiler.reset()


def test_nodes_of_spikingjellys_spikformer_have_the_slopes_of_their_tokens(jelly, settle):
    model = jelly(spiking_neuron=LIFNode)
    functional.reset_net(settle(model, batch(0)))
    given = {}
    sage = warmed(model)
    for name in ("qkv_lif", "attn_lif", "proj_lif"):
        node = next(m for n, m in model.named_modules() if n.endswith(name))
        begin = node.slope.begin
        node.slope.begin = lambda shape, name=name, begin=begin: given.setdefault(name, begin(shape))
    model(batch(7)).square().sum().backward()
    slopes = sage.fine_slopes[0]
    assert torch.equal(given["qkv_lif"].squeeze(2), slopes)
    assert torch.equal(given["proj_lif"].squeeze(2), slopes)
    assert torch.equal(given["attn_lif"].squeeze(2), slopes.repeat(1, 1, 8))  # (T, B, H, K, N), the tokens innermost


def test_positions_that_are_not_tokens_take_the_mean_of_the_image():
    tokens = TokenSlopes()
    tokens.may_move = True
    before, half = TokenSlope(tokens, 4.0), TokenSlope(tokens, 2.0)
    given = before.begin((2, 3, 8, 5))
    assert torch.equal(given, torch.full((2, 3, 1, 5), 4.0))
    ratios = torch.rand(2, 3, 5, dtype=torch.float64)
    tokens.fill(ratios, heads=2, width=4)
    assert torch.equal(given.squeeze(2), 4 * ratios)
    assert torch.equal(half.begin((2, 3, 8, 5)).squeeze(2), 2 * ratios)
    of_time = TokenSlope(tokens, 4.0).begin((2, 3, 8, 1))
    assert torch.allclose(of_time[..., 0, 0], 4 * ratios.mean(2))
    again = before.begin((2, 3, 8, 5))  # another pass
    assert torch.equal(again, torch.full((2, 3, 1, 5), 4.0))
    assert torch.equal(given.squeeze(2), 4 * ratios)
    with torch.no_grad():
        assert before.begin((2, 3, 8, 5)).shape == ()
    tokens.fill(ratios, heads=2, width=4)
    with pytest.raises(ValueError, match=r"slopes of tokens \(2, 3, 5\) do not fit a node's currents \(1, 3, 8, 5\)"):
        half.begin((1, 3, 8, 5))
    last = TokenSlopes("TBNC")
    last.may_move = True
    last.fill(ratios, heads=2, width=4)
    assert torch.equal(TokenSlope(last, 1.0).begin((2, 3, 5, 8)).squeeze(3), ratios)


def test_step_by_step_every_time_step_is_a_pass():
    model = Mixer()
    functional.set_step_mode(model, "s")
    sage = SAGE(model, warmup_steps=0, per="token", blocks=[model.block()], law=STRICT)
    for seed in range(2):
        x = 3 * torch.rand(4, 2, 6, 3, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        torch.stack([model(step) for step in x]).sum().backward()
        functional.reset_net(model)
        sage.step()
    assert sage.fine_slopes[0].shape == (1, 2, 3)
    assert len(sage.fine_slopes[0].unique()) > 1


def test_a_block_that_is_read_between_passes_is_refused():
    model = Mixer()
    block = Block(list(model), heads=2, read=lambda block: (torch.ones(1, 1, 2, 3, 4), torch.ones(1, 1, 2, 3, 4)))
    with pytest.raises(ValueError, match=r"is not read while the pass runs; pass Block\(query="):
        SAGE(model, warmup_steps=0, per="token", blocks=[block])


def test_controls_have_a_value_per_row(ours):
    for signal, moves in ((Random(seed=1), True), (Constant(), False)):
        model = ours()
        sage = warmed(model, signal=signal)
        model(batch(3))
        assert (len(sage.fine_slopes[0].unique()) > 1) is moves
        assert all(node.slope is not None for node in nodes_of(model.blocks))


@pytest.mark.parametrize("name", SPREADS)
def test_the_spread_of_rows_is_that_of_each_row(name):
    rows = torch.rand(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = spread_of_rows(SPREADS[name], rows)
    for t, b, n in torch.cartesian_prod(*map(torch.arange, (2, 3, 5))).tolist():
        assert float(found[t, b, n]) == pytest.approx(float(SPREADS[name](rows[t, b, :, n])), abs=1e-14)
    assert torch.allclose(spread_of_rows(lambda values: population_std(values), rows), rows.std(2, correction=0))
