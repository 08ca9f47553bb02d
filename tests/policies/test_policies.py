"""Fixed, Learnable and SAGE: what they write, what they leave alone, what they refuse."""

import copy
import io
import math
import statistics as plain

import pytest
import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional, neuron, surrogate
from torch import nn

from sage_snn import SAGE, Block, DeadZoneTanh, Fixed, Learnable, LIFNode, Random, Scheduled, Statistics
from sage_snn.control import nodes_of
from sage_snn.kernels import native

HEADS = 3


class Given:
    """A law that gives the slopes it was told."""

    base = 4.0

    def __init__(self, *slopes):
        self.slopes = slopes

    def __call__(self, z):
        return torch.tensor(self.slopes, dtype=torch.float64)


class Scripted:
    """A signal that gives one row of the script after the other: a value per head, block by block."""

    def __init__(self, script):
        self.rows = iter(script.flatten(0, 1))

    def __call__(self, q, k, scale):
        return next(self.rows)


class Chain(nn.Module):
    """The smallest thing with blocks: nodes in a row, each its own block."""

    def __init__(self, blocks=3, make=LIFNode):
        super().__init__()
        self.nodes = nn.ModuleList(make(step_mode="m") for _ in range(blocks))

    def forward(self, x):
        functional.reset_net(self)
        for node in self.nodes:
            x = node(4 * x)
        return x

    def described(self):
        return [Block([n], query=n, key=n, heads=HEADS, name=f"node {i}") for i, n in enumerate(self.nodes)]


X = torch.rand(2, 1, 2, 2 * HEADS, generator=torch.Generator().manual_seed(0)).requires_grad_()


def loss_of(model, images, labels=(0, 1, 2, 3)):
    logits = model(images)
    return F.cross_entropy(logits.mean(0) if logits.ndim == 3 else logits, torch.tensor(labels))


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def attached(model, *slopes):
    """SAGE that has just written the given slopes."""
    sage = SAGE(model, warmup_steps=0, signal=Random(), law=Given(*slopes))
    loss_of(model, torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(9)))
    sage.step()
    functional.reset_net(model)
    return sage


def alphas(policy):
    nodes = policy._nodes.nodes
    return [float(n.slope() if getattr(n, "slope", None) else n.surrogate_function.alpha) for n in nodes]


# The inert twin


def trained(model, attach, steps=20):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    policy, data, losses = attach(model), torch.Generator().manual_seed(3), []
    for _ in range(steps):
        loss = loss_of(model, torch.randn(4, 3, 16, 16, generator=data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        functional.reset_net(model)
        losses.append(loss.item())
        if policy is not None:
            policy.step()
    return losses, model.state_dict()


@pytest.mark.slow
def test_a_policy_that_moves_nothing_changes_no_bit(build):
    losses, weights = trained(build(), lambda model: None)
    assert len(set(losses)) == 20
    for attach in (
        Fixed,
        lambda model: Scheduled(model, start=4.0, end=4.0, steps=5),
        lambda model: SAGE(model, warmup_steps=3, law=DeadZoneTanh(gain=0.0)),
    ):
        twin_losses, twin_weights = trained(build(), attach)
        assert twin_losses == losses
        assert all(torch.equal(twin_weights[name], value) for name, value in weights.items())


# The method, step by step


def reference(
    rows,
    *,
    warmup,
    same_step=False,
    every=1,
    decay=0.95,
    first="observation",
    momentum=None,
    restart=False,
    eps=1e-8,
    relative=False,
    center=True,
    gain=0.5,
    dead_zone=0.25,
    continuous=False,
):
    """Slopes after each update, from one row of dispersions per step, in plain Python and with nothing clever."""
    blocks = range(len(rows[0]))
    averages, smoothed, moments = [None] * len(blocks), [[] for _ in blocks], [None] * len(blocks)
    slopes, given = [4.0] * len(blocks), []
    for update, row in enumerate(rows, 1):
        if (update - 1) % every == 0:
            z = []
            for b in blocks:
                previous = averages[b]
                if previous is None:
                    previous = row[b] if first == "observation" else 0.0
                averages[b] = decay * previous + (1 - decay) * row[b]
                seen_so_far = (update - 1) // every + 1
                m = averages[b] if first == "observation" else averages[b] / (1 - decay**seen_so_far)
                smoothed[b].append(m)
                if momentum is None:
                    mean = math.fsum(smoothed[b]) / len(smoothed[b])
                    variance = math.fsum((value - mean) ** 2 for value in smoothed[b]) / len(smoothed[b])
                elif moments[b] is None:
                    mean, variance = m, 0.0
                else:
                    mean = (1 - momentum) * moments[b][0] + momentum * m
                    variance = (1 - momentum) * (moments[b][1] + momentum * (m - moments[b][0]) ** 2)
                moments[b] = mean, variance
                sigma = math.sqrt(variance)
                z.append((m - mean) / (sigma + (eps * mean if relative else eps)) if sigma > 0 else 0.0)
            middle = sum(z) / len(z) if center else 0.0
            z = [value - middle for value in z]
            if update >= (warmup + 1 if same_step else warmup):
                for b in blocks:
                    edge = math.copysign(dead_zone, z[b]) if continuous else 0.0
                    moved = 4.0 + gain * math.tanh(z[b] - edge)
                    slopes[b] = min(max(4.0 if abs(z[b]) < dead_zone else moved, 3.0), 5.0)
        if restart and update == warmup:
            smoothed, moments = [[] for _ in blocks], [None] * len(blocks)
        given.append(list(slopes))
    return given


OPTIONS = {  # how the user asks for it, and how the reference does
    "default": ({}, {}),
    "broaden": ({"law": DeadZoneTanh(gain=-0.5)}, {"gain": -0.5}),
    "clipped": ({"law": DeadZoneTanh(gain=3.0)}, {"gain": 3.0}),
    "no dead zone": ({"law": DeadZoneTanh(dead_zone=0.0)}, {"dead_zone": 0.0}),
    "continuous dead zone": ({"law": DeadZoneTanh(continuous=True)}, {"continuous": True}),
    "no smoothing": ({"statistics": Statistics(decay=0.0)}, {"decay": 0.0}),
    "from zero": ({"statistics": Statistics(first="zero")}, {"first": "zero"}),
    "exponential": ({"statistics": Statistics(running="exponential", momentum=0.1)}, {"momentum": 0.1}),
    "restart": ({"statistics": Statistics(restart=True)}, {"restart": True}),
    "restart between readings": ({"statistics": Statistics(restart=True), "every": 3}, {"restart": True, "every": 3}),
    "relative eps": ({"statistics": Statistics(eps=0.1, relative_eps=True)}, {"eps": 0.1, "relative": True}),
    "not centred": ({"statistics": Statistics(center=False)}, {"center": False}),
    "every third step": ({"every": 3}, {"every": 3}),
    "mean over heads": ({"spread": "mean"}, {}),
    "sample deviation": ({"spread": "sample_std"}, {}),
    "own spread": ({"spread": lambda values: values.max() - values.min()}, {}),
}
SPREADS = {"mean": plain.fmean, "sample_std": plain.stdev, "std": plain.pstdev}


@pytest.mark.parametrize(
    ("option", "warmup", "same_step"),
    [(name, 5, False) for name in OPTIONS] + [("default", w, s) for w in (0, 1, 5) for s in (False, True)],
)
def test_slopes_are_those_of_the_equations_over_200_steps(option, warmup, same_step):
    asked, told = OPTIONS[option]
    steps, every = 200, asked.get("every", 1)
    script = torch.rand(steps, 3, HEADS, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    model = Chain()
    sage = SAGE(model, warmup_steps=warmup, blocks=model.described(), same_step=same_step,
                signal=Scripted(script[::every]), **asked)  # fmt: skip
    spread = SPREADS.get(asked.get("spread", "std"), lambda values: max(values) - min(values))
    rows = [[spread(heads.tolist()) for heads in step] for step in script]
    expected = reference(rows, warmup=warmup, same_step=same_step, **told)
    moved = 0
    for step in range(steps):
        model(X)
        sage.step()
        if step % every == 0:
            assert sage.dispersion.tolist() == pytest.approx(rows[step], abs=1e-12)
        assert sage.slopes.tolist() == pytest.approx(expected[step], abs=1e-9)
        assert alphas(sage) == pytest.approx(expected[step], abs=1e-9)
        moved += sage.slopes.tolist() != [4.0] * 3
    assert moved > 100


@pytest.mark.parametrize(
    ("warmup", "same_step", "first_moved"),
    [(0, False, 1), (1, False, 1), (5, False, 5), (0, True, 1), (1, True, 2), (5, True, 6)],
)
def test_warm_up_ends_so_that_step_w_plus_one_is_the_first_with_another_slope(warmup, same_step, first_moved):
    model = Chain()
    sage = SAGE(model, warmup_steps=warmup, blocks=model.described(), same_step=same_step, signal=Random(),
                law=Given(4.1, 4.2, 4.3))  # fmt: skip
    after_update = []
    for _ in range(7):
        model(X)
        sage.step()
        after_update.append(alphas(sage) != [4.0] * 3)
    assert after_update.index(True) + 1 == first_moved
    assert sage.slopes.tolist() == [4.1, 4.2, 4.3]


def test_slopes_in_force_are_the_base_until_a_law_is_applied():
    model = Chain()
    sage = SAGE(model, warmup_steps=9, blocks=model.described(), law=Given(4.1, 4.2, 4.3))
    assert sage.slopes.tolist() == alphas(sage) == [4.0] * 3
    assert sage.dispersion.isnan().all()
    assert sage.zscores.isnan().all()


# Which nodes, and what they do to gradients


@pytest.mark.parametrize(("neurons", "in_block", "in_stem"), [("block", 7, 0), ("attention", 5, 0), ("all", 7, 5)])
def test_only_the_nodes_asked_for_follow(ours, images, neurons, in_block, in_stem):
    model = ours()
    sage = SAGE(model, warmup_steps=0, neurons=neurons, signal=Random(), law=Given(4.4, 3.6))
    model(images)
    sage.step()
    counts = [alphas(sage).count(4.4), alphas(sage).count(3.6)]
    assert counts == [in_block + in_stem, in_block]  # the stem follows the first block
    assert sum(node.slope is not None for node in nodes_of(model.stem)) == in_stem


@pytest.mark.parametrize("make", [LIFNode, neuron.LIFNode], ids=["ours", "jelly"])
def test_a_node_of_another_base_slope_moves_in_proportion(make):
    model = Chain(make=lambda **k: make(surrogate_function=surrogate.ATan(alpha=2.0), **k))
    sage = SAGE(model, warmup_steps=0, blocks=model.described(), signal=Random(), law=Given(3.0, 4.0, 5.0))
    assert alphas(sage) == [2.0] * 3
    model(X)
    sage.step()
    assert alphas(sage) == [1.5, 2.0, 2.5]
    sage.remove()
    with Fixed(model, slope=6.0, blocks=model.described()) as fixed:
        assert alphas(fixed) == [3.0] * 3
        assert fixed.slopes.tolist() == [6.0] * 3


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_blocks_slope_changes_gradients_there_and_upstream_only(ours, images, changed):
    found = []
    for slopes in ([4.0] * 3, [4.9 if b == changed else 4.0 for b in range(3)]):
        model = ours(depth=3)
        with attached(model, *slopes):
            loss_of(model, images).backward()
        found.append(gradients(model))
    plain_grads, moved_grads = found
    for part in ("stem", "blocks.0", "blocks.1", "blocks.2", "head"):
        names = [name for name in plain_grads if name.startswith(part)]
        same = [torch.equal(plain_grads[name], moved_grads[name]) for name in names]
        upstream = part == "stem" or (part.startswith("blocks") and int(part[-1]) <= changed)
        assert (sum(same) < len(same) / 2) if upstream else all(same)


def test_backward_uses_the_slope_of_its_forward_wherever_step_is_called(build, images):
    usual, between = build(), build()
    with attached(usual, 4.0, 4.0):
        loss_of(usual, images).backward()
    sage = attached(between, 4.0, 4.0)
    sage.law = Given(4.9, 3.1)
    loss = loss_of(between, images)
    sage.step()
    assert sage.slopes.tolist() == [4.9, 3.1]
    loss.backward()
    expected, found = gradients(usual), gradients(between)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_same_step_lets_backward_see_the_new_slope(ours, images):
    usual, same = ours(), ours()
    with attached(usual, 4.9, 3.1):
        loss_of(usual, images).backward()
    loss_of(same, torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(9)))
    sage = SAGE(same, warmup_steps=0, same_step=True, law=Given(4.9, 3.1))
    loss = loss_of(same, images)
    sage.step()
    loss.backward()
    expected, found = gradients(usual), gradients(same)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_same_step_needs_nodes_that_keep_a_tensor(jelly):
    model = jelly()
    with pytest.raises(ValueError, match=r"sage_snn\.neurons\.LIFNode"):
        SAGE(model, warmup_steps=0, same_step=True)
    Fixed(model).remove()


# The model stays the user's


def footprint(model):
    nodes = [(n.surrogate_function, n.surrogate_function.alpha, getattr(n, "slope", None)) for n in nodes_of(model)]
    hooks = [list(m._forward_hooks.values()) for m in model.modules()]
    return nodes, hooks, [(name, type(m)) for name, m in model.named_modules()]


ATTACH = {
    "sage": lambda model: SAGE(model, warmup_steps=0),
    "fixed": lambda model: Fixed(model, slope=4.5),
    "network": Learnable,
    "layer": lambda model: Learnable(model, per="layer"),
}


@pytest.fixture(params=ATTACH.values(), ids=ATTACH.keys())
def attach(request):
    return request.param


def test_the_state_dict_is_the_same_before_while_and_after(build, attach):
    model = build()
    before = copy.deepcopy(model.state_dict())
    policy = attach(model)
    for state in (model.state_dict(), (policy.remove(), model.state_dict())[1]):
        assert list(state) == list(before)
        assert all(torch.equal(state[name], before[name]) for name in before)


def test_remove_gives_the_model_back_exactly(build, attach, images):
    model = build()
    before = footprint(model)
    with attach(model) as policy:
        loss_of(model, images).backward()
        policy.step()
        assert footprint(model) != before
    assert footprint(model) == before
    policy.remove()  # harmless the second time
    attach(model).remove()


def test_users_hooks_keep_firing(build, attach, images):
    model, fired = build(), []
    for node in nodes_of(model):
        node.register_forward_hook(lambda *args: fired.append(1))
    with attach(model):
        model(images)
    assert len(fired) == len(nodes_of(model))


def test_copies_of_an_attached_model_work_and_report_to_nobody(build, attach, images):
    model = build()
    policy = attach(model)
    stored = io.BytesIO()
    torch.save(model, stored)
    assert b"Tap" not in stored.getvalue()  # nothing of the policy travels with the model
    stored.seek(0)
    twins = [copy.deepcopy(model), torch.load(stored, weights_only=False)]
    loss = loss_of(model, images)
    loss.backward()
    policy.step()
    slopes = policy.slopes
    for twin in twins:
        twin_loss = loss_of(twin, images)
        twin_loss.backward()
        assert torch.equal(twin_loss, loss)
        assert torch.equal(gradients(twin)["head.weight"], gradients(model)["head.weight"])
    if isinstance(policy, SAGE):
        with pytest.raises(RuntimeError, match="before any forward"):
            policy.step()
    assert torch.equal(policy.slopes, slopes)


def test_timms_average_of_an_attached_model_works(ours, images):
    from timm.utils import ModelEmaV3

    model = ours()
    sage = SAGE(model, warmup_steps=0)
    average = ModelEmaV3(model, decay=0.5)
    loss_of(model, images).backward()
    average.update(model)
    assert list(average.module.state_dict()) == list(model.state_dict())
    assert average.module(images).shape == (4, 10)
    sage.step()  # one reading: the average's pass did not count
    assert sage.head_entropy[0].isfinite().all()


def test_half_precision_does_not_round_slopes(ours):
    model = ours()
    odd = 4.000123456789
    with attached(model, odd, odd) as sage:
        model.half()
        assert alphas(sage) == [odd] * 14
        assert nodes_of(model.blocks)[0].slope().dtype == torch.float64


def test_a_second_policy_is_refused_and_told_the_cure(build, attach):
    model = build()
    policy = attach(model)
    before = footprint(model)
    with pytest.raises(RuntimeError, match=r"has a policy already; call remove\(\)"):
        Fixed(model)
    assert footprint(model) == before
    policy.remove()
    Fixed(model).remove()


# States


@pytest.mark.parametrize("signal", [None, Random], ids=["entropy", "random"])
def test_a_resumed_policy_goes_on_to_the_same_bits(build, signal):
    options = {"warmup_steps": 2, "every": 2, "law": DeadZoneTanh(dead_zone=0.0)}
    batches = torch.randn(10, 4, 3, 16, 16, generator=torch.Generator().manual_seed(2)).unbind()

    def run(model, sage, batches):
        slopes = []
        for batch in batches:
            loss_of(model, batch)
            functional.reset_net(model)
            sage.step()
            slopes.append(sage.slopes)
        return torch.stack(slopes)

    def fresh():
        model = build()
        return model, SAGE(model, **options, **({"signal": signal()} if signal else {}))

    whole = run(*fresh(), batches)
    model, sage = fresh()
    run(model, sage, batches[:5])
    stored = io.BytesIO()
    torch.save(sage.state_dict(), stored)
    stored.seek(0)
    state = torch.load(stored, weights_only=True)
    again, resumed = fresh()
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    assert alphas(resumed) == alphas(sage)
    assert str(resumed) == str(sage)
    rest = run(again, resumed, batches[5:])
    assert torch.equal(rest, whole[5:])
    assert len(set(rest.flatten().tolist())) > 3


@pytest.mark.parametrize(("change", "what"), [({"blocks": ["other"]}, "blocks"), ({"version": 99}, "version"),
                                              ({"policy": "Fixed"}, "policy")])  # fmt: skip
def test_a_state_of_another_model_or_version_is_refused(ours, change, what):
    sage = SAGE(ours(), warmup_steps=0)
    before = str(sage)
    with pytest.raises(ValueError, match=f"of other {what}.* attach the same policy to the same model"):
        sage.load_state_dict(sage.state_dict() | change)
    assert str(sage) == before


def test_a_state_of_another_depth_is_refused(ours):
    with pytest.raises(ValueError, match="of other blocks"):
        SAGE(ours(), warmup_steps=0).load_state_dict(SAGE(ours(depth=3), warmup_steps=0).state_dict())


def test_a_state_of_other_heads_is_refused(ours):
    with pytest.raises(ValueError, match=r"of other heads: it has \[8, 8\], here it is \[4, 4\]"):
        SAGE(ours(), warmup_steps=0).load_state_dict(SAGE(ours(heads=8), warmup_steps=0).state_dict())


def test_a_state_of_another_fixed_slope_is_refused(ours):
    with pytest.raises(ValueError, match=r"of slopes \[8.0, 8.0\], here they are \[4.0, 4.0\]"):
        Fixed(ours()).load_state_dict(Fixed(ours(), 8.0).state_dict())


def test_a_state_of_another_number_of_time_steps_is_refused(ours):
    with pytest.raises(ValueError, match=r"slopes of shapes \[\(1,\)\], here they are \[\(2,\)\]"):
        Learnable(ours(), "time").load_state_dict(Learnable(ours(time_steps=1), "time").state_dict())


# Copies of an attached model


@pytest.mark.parametrize("pickled", [False, True])
def test_a_policy_on_a_copy_of_an_attached_model_goes_on_as_on_the_original(jelly, images, pickled):
    model = jelly()
    sage = SAGE(model, warmup_steps=0, signal=Random(), law=DeadZoneTanh(dead_zone=0.0))
    for _ in range(3):
        loss_of(model, images).backward()
        functional.reset_net(model)
        sage.step()
    assert sage.slopes.tolist() != [4.0, 4.0]
    twin = copy.deepcopy(model)
    if pickled:
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        twin = torch.load(stored, weights_only=False)
    on_twin = SAGE(twin, warmup_steps=0, signal=Random(), law=DeadZoneTanh(dead_zone=0.0))
    on_twin.load_state_dict(sage.state_dict())
    alphas = [[node.surrogate_function.alpha for node in nodes_of(net)] for net in (model, twin)]
    assert alphas[0] == alphas[1]
    on_twin.remove()
    assert {node.surrogate_function.alpha for node in nodes_of(twin)} == {4.0}


def test_a_copy_with_learnt_slopes_can_be_controlled(jelly, images):
    model = jelly()
    Learnable(model)
    twin = copy.deepcopy(model)
    sage = SAGE(twin, warmup_steps=0, law=Given(3.0, 5.0))
    loss_of(twin, images).backward()
    sage.step()
    assert [b.neurons[0].surrogate_function.alpha for b in sage.blocks] == [3.0, 5.0]


# A removed policy


@pytest.mark.parametrize("attach", [Fixed, Learnable, lambda m: SAGE(m, warmup_steps=0)])
def test_a_removed_policy_does_nothing_any_more(build, images, attach):
    policy = attach(build())
    state = policy.state_dict()
    policy.remove()
    for use in (policy.step, lambda: policy.load_state_dict(state)):
        with pytest.raises(RuntimeError, match="was removed from its model; attach a new one"):
            use()


def test_removing_twice_leaves_the_next_policy_alone(ours):
    model = ours()
    first = Fixed(model, 3.0)
    first.remove()
    second = Fixed(model, 5.0)
    first.remove()
    assert second.blocks[0].neurons[0].slope().item() == 5.0
    with pytest.raises(RuntimeError, match="has a policy already"):
        Fixed(model)


class NoBase:
    base = None

    def __call__(self, z):
        return torch.full_like(z, 4.0)


def test_a_policy_that_could_not_be_attached_leaves_the_model_free(ours):
    model = ours()
    with pytest.raises(ValueError, match="the base of a law must be a positive number, not None"):
        SAGE(model, warmup_steps=0, law=NoBase())
    jelly_nodes = ours(neuron=neuron.LIFNode)
    with pytest.raises(ValueError, match="same_step=True needs nodes"):
        SAGE(jelly_nodes, warmup_steps=0, same_step=True)
    for free in (model, jelly_nodes):
        SAGE(free, warmup_steps=0).remove()


# Bad input


def test_no_blocks_are_refused(ours):
    for attach in (Fixed, Learnable, lambda m, blocks: SAGE(m, warmup_steps=0, blocks=blocks)):
        with pytest.raises(ValueError, match="no blocks to control"):
            attach(ours(), blocks=[])


@pytest.mark.parametrize("spread", [lambda v: v[:1], lambda v: v, lambda v: 1.0])
def test_a_spread_must_give_one_number(ours, spread):
    with pytest.raises(ValueError, match=r"a spread must give a tensor \(\) for the values \(4,\)"):
        SAGE(ours(), warmup_steps=0, spread=spread)


def test_step_before_any_forward_is_refused(ours):
    with pytest.raises(
        RuntimeError, match="step\\(\\) before any forward pass: run the model on images in training mode"
    ):
        SAGE(ours(), warmup_steps=0).step()


def test_a_signal_that_is_not_finite_keeps_the_slope_and_names_the_block():
    script = torch.rand(9, 3, HEADS, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    script[6, 1, 0] = torch.nan
    model = Chain()
    sage = SAGE(model, warmup_steps=0, blocks=model.described(), signal=Scripted(script), law=DeadZoneTanh(dead_zone=0))
    for _ in range(6):
        model(X)
        sage.step()
    before = sage.slopes
    model(X)
    with pytest.warns(UserWarning, match="the signal of node 1 is not finite; its slope stays"):
        sage.step()
    assert (sage.slopes == before).tolist() == [False, True, False]
    assert alphas(sage) == sage.slopes.tolist()
    for _ in range(2):
        model(X)
        sage.step()
    assert sage.slopes[1] != before[1]  # and goes on with the next finite reading


def test_one_block_warns_in_words_and_an_error_made_of_it_leaves_the_model_free(ours):
    model = ours(depth=1)
    with pytest.warns(UserWarning, match=r"one attention block only.*Statistics\(center=False\)"):
        SAGE(model, warmup_steps=0).remove()
    with pytest.raises(UserWarning, match="one attention block"):
        SAGE(model, warmup_steps=0)
    SAGE(model, warmup_steps=0, statistics=Statistics(center=False)).remove()


@pytest.mark.parametrize(
    ("attach", "cure"),
    [
        (lambda model: SAGE(model, warmup_steps=0, law=Given(4.0, 0.0)), "one positive slope per block"),
        (lambda model: SAGE(model, warmup_steps=0, law=Given(4.0)), "one positive slope per block"),
        (lambda model: SAGE(model, warmup_steps=0, law=DeadZoneTanh(low=0.0)), "slopes must be positive"),
        (lambda model: SAGE(model, warmup_steps=-1), "warmup_steps must be >= 0"),
        (lambda model: SAGE(model, warmup_steps=0, every=0), "every >= 1"),
        (lambda model: SAGE(model, warmup_steps=0, spread="range"), "spread must be one of std"),
        (lambda model: Fixed(model, slope=0.0), "a slope must be positive"),
        (lambda model: Learnable(model, slope=-1.0), "a slope must be positive"),
        (lambda model: Learnable(model, per="head"), "per must be 'network'"),
    ],
)
def test_bad_settings_are_refused_and_the_model_stays_free(ours, attach, cure):
    model = ours()
    before = footprint(model)
    with pytest.raises(ValueError, match=cure):
        attach(model)
    assert footprint(model) == before
    Fixed(model).remove()


def test_a_model_captured_in_a_cuda_graph_is_refused(ours, attach):
    model = ours()
    captured = model.blocks[1]

    def make_graphed_callables(module):  # puts a function of its own in the place of `forward`, as torch.cuda's does
        def make_graphed_forward(forward):
            def new_fwd(*inputs):
                return forward(*inputs)

            return new_fwd

        module.forward = make_graphed_forward(module.forward)

    make_graphed_callables(captured)
    with pytest.raises(RuntimeError, match=r"captured in a CUDA graph.*attach the policy first"):
        attach(model)
    del captured.forward
    attach(model).remove()


# Learnable


def test_slopes_per_time_step_refuse_another_number_of_steps(ours, images):
    model = ours()
    with (
        Learnable(model, per="time", time_steps=3),
        pytest.raises(ValueError, match=r"3 slopes, .* do not fit 2 steps"),
    ):
        model(images)


@pytest.mark.parametrize(("per", "shapes"), [("network", [()]), ("block", [()] * 2), ("layer", [()] * 19),
                                             ("time", [(2,)])])  # fmt: skip
def test_learnable_slopes_of_our_nodes_are_trained_and_stay_positive(ours, images, per, shapes):
    model = ours()
    policy = Learnable(model, per=per)
    parameters = list(policy.parameters())
    assert [tuple(p.shape) for p in parameters] == shapes
    _descend_and_check(model, policy, images)


@pytest.mark.parametrize(("per", "count"), [("network", 1), ("block", 2), ("layer", 15)])
def test_learnable_slopes_of_spikingjellys_nodes_are_trained_and_stay_positive(jelly, images, per, count):
    model = jelly()
    policy = Learnable(model, per=per)
    assert len(list(policy.parameters())) == count
    _descend_and_check(model, policy, images)


def _descend_and_check(model, policy, images):
    before = footprint(model)
    parameters = list(policy.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e3)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, images).backward()
        functional.reset_net(model)
        assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in parameters)
        optimizer.step()
    assert (policy.slopes != 4.0).all()
    assert all((p.exp() > 0).all() for p in parameters)
    assert footprint(model)[2] == before[2]
    policy.remove()
    loss_of(model, images).backward()
    assert all(node.surrogate_function.alpha == 4.0 for node in nodes_of(model))


def test_both_kinds_of_node_have_the_same_gradient_of_the_slope(ours, images):
    found = []
    for options in ({}, {"neuron": neuron.LIFNode}):
        model = ours(**options).double()
        policy = Learnable(model, per="layer")
        loss_of(model, images.double()).backward()
        found.append([p.grad.item() for p in policy.parameters()])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert all(found[0])


def test_the_gradient_of_the_slope_is_the_defined_one():
    """One node, one step: the loss is the sum of the spikes, so its gradient is sum(x s (1 - s)) * slope."""
    node = LIFNode(decay_input=True, step_mode="m")
    currents = torch.linspace(-1, 4, 11, dtype=torch.float64).reshape(1, 11).requires_grad_()
    model = nn.Sequential(node)
    block = Block([node], read=lambda block: None, name="only")
    policy = Learnable(model, blocks=[block], slope=3.0)
    model(currents).sum().backward()
    (parameter,) = policy.parameters()
    distances = [current / 2 - 1 for current in currents[0].tolist()]
    smooth = [1 / (1 + math.exp(-3.0 * x)) for x in distances]
    wanted = math.fsum(x * s * (1 - s) for x, s in zip(distances, smooth, strict=True)) * 3.0
    assert parameter.grad.item() == pytest.approx(wanted, rel=1e-6)
    assert policy.slopes.tolist() == pytest.approx([3.0])


def test_learnable_states_are_restored_in_place_and_of_the_same_kind_only(ours, images):
    policy = Learnable(ours(), per="block")
    with torch.no_grad():
        next(policy.parameters()).fill_(0.5)
    other = Learnable(ours(), per="block")
    kept = list(other.parameters())
    stored = io.BytesIO()
    torch.save(policy.state_dict(), stored)
    stored.seek(0)
    other.load_state_dict(torch.load(stored, weights_only=True))
    assert all(a is b for a, b in zip(kept, other.parameters(), strict=True))
    assert other.slopes.tolist() == policy.slopes.tolist() == pytest.approx([math.exp(0.5), 4.0])
    with pytest.raises(ValueError, match="per='block'"):
        Learnable(ours(), per="layer").load_state_dict(policy.state_dict())


@pytest.mark.parametrize(
    ("function", "per", "cure"),
    [
        (surrogate.LeakyKReLU(), "network", "use one of Sigmoid"),
        (surrogate.Sigmoid(), "time", "sage_snn.neurons.LIFNode"),
    ],
)
def test_what_cannot_be_learnt_is_refused_and_the_model_stays_free(function, per, cure):
    model = Chain(make=lambda **k: neuron.LIFNode(surrogate_function=copy.deepcopy(function), **k))
    for node in model.nodes:
        node.surrogate_function.alpha = 4.0
    before = footprint(model)
    with pytest.raises(ValueError, match=cure):
        Learnable(model, per=per, blocks=model.described(), time_steps=2)
    assert footprint(model) == before
    Fixed(model, blocks=model.described()).remove()


def test_a_state_of_other_settings_is_refused_and_changes_nothing(ours, images):
    model, other = ours(), ours()
    with SAGE(model, warmup_steps=0) as sage, SAGE(other, warmup_steps=0, law=DeadZoneTanh(gain=-0.5)) as another:
        model(images)
        sage.step()
        with pytest.raises(ValueError, match="other settings"):
            another.load_state_dict(sage.state_dict())
        assert another.slopes.tolist() == [4.0, 4.0]
        assert another.dispersion.isnan().all()


def test_a_law_that_leaves_the_positive_numbers_is_refused_when_attached(ours):
    with pytest.raises(ValueError, match="one positive slope per block"):
        SAGE(ours(), warmup_steps=0, law=lambda z: 4 + 2 * z)


def test_describe_names_what_is_fused_and_why_the_rest_is_not(ours):
    model = ours()
    model.blocks[0].mlp.first.norm.register_forward_hook(lambda *_: None)
    with SAGE(model, warmup_steps=0) as sage:
        text = sage.describe()
        assert "16 of 17 pairs of BatchNorm and neuron fused" in text
        assert "1 not fused: the BatchNorm has hooks" in text
        assert f"kernels {native.status()}" in text


class Tilted:
    """A law of one's own that is no dataclass."""

    def __init__(self, gain):
        self.gain = gain

    def __call__(self, z):
        return 4 + self.gain * z.tanh()


def test_a_state_of_another_law_of_one_s_own_is_refused(ours):
    with pytest.raises(ValueError, match=r"law: Tilted\(gain=0\.2\) there, Tilted\(gain=0\.9\) here"):
        SAGE(ours(), warmup_steps=0, law=Tilted(0.9)).load_state_dict(
            SAGE(ours(), warmup_steps=0, law=Tilted(0.2)).state_dict()
        )
