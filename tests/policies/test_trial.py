"""What policies that try slopes share: steps of one length on halves of a batch, which leave no trace."""

import copy
import random
from collections import namedtuple
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional
from torch import nn
from torch.utils.checkpoint import checkpoint

from sage_snn import DGS, Aligned, Fixed, LIFNode
from sage_snn.control import Tap, find_blocks, nodes_of
from sage_snn.policies.trial import halves, stepped
from sage_snn.signals import HeadEntropy

LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
BATCH = IMAGES, LABELS


def loss_of(model):
    def loss(batch):
        logits = model(batch[0])
        return F.cross_entropy(logits.mean(0) if logits.ndim == 3 else logits, batch[1])

    return loss


ATTACH = {
    "aligned": lambda model, loss: Aligned(model, loss, every=1),
    "dgs": lambda model, loss: DGS(model, loss, every=1, batches=1),
}


@pytest.fixture(params=ATTACH.values(), ids=ATTACH.keys())
def attach(request):
    return request.param


class Drawing(nn.Module):
    """Drops values, draws from every generator there is, counts its calls and keeps a buffer that it looks at."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.own = torch.Generator().manual_seed(2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        noise = random.random() + np.random.rand() + float(torch.rand((), generator=self.own))
        self.seen = self.seen + x.detach().mean()  # a buffer that is replaced, not written
        return F.dropout(x + noise * self.seen, 0.3, self.training)


def everything(model):
    """All that a trial could have changed."""
    nodes = [node for node in model.modules() if hasattr(node, "_memories")]
    return {
        **{name: value.clone() for name, value in model.state_dict().items()},
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "generators": [torch.get_rng_state(), *(np.random.get_state()[1:3]), hash(random.getstate())],
        "own": [(m.own.get_state(), m.calls) for m in model.modules() if isinstance(m, Drawing)],
        "membranes": [dict(node._memories) for node in nodes],
        "mode": [m.training for m in model.modules()],
    }


def same(one, other):
    if isinstance(one, torch.Tensor | np.ndarray):
        return type(one) is type(other) and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("carried", [False, True], ids=["at rest", "membranes carried over"])
def test_a_trial_changes_nothing_but_the_slopes(build, attach, carried):
    model = build()
    model.head = nn.Sequential(Drawing(), model.head)
    loss, tries = loss_of(model), []
    policy = attach(model, lambda batch: (tries.append(1), loss(batch))[1])
    for _ in range(2):  # DGS searches from its second period on
        loss(BATCH).backward()
        if not carried:
            functional.reset_net(model)
        before, buffers = everything(model), dict(model.named_buffers())
        policy.step(BATCH)
        assert same(everything(model), before)
        assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
        functional.reset_net(model)
    assert before["own"][0][1] == 2
    assert len(tries) >= 6


def test_what_another_reads_of_the_network_is_that_of_training_alone(ours, attach):
    model = ours()
    tap = Tap(find_blocks(model)[0].source, HeadEntropy(0.25), torch.device("cpu"))
    policy, loss = attach(model, loss_of(model)), loss_of(model)
    for _ in range(2):
        loss(BATCH)
        sums = tap.sums.clone()
        policy.step(BATCH)
        assert torch.equal(tap.sums, sums)
    loss(BATCH)
    assert not torch.equal(tap.sums, sums)  # it still reads


def test_a_loss_that_fails_leaves_the_network_as_it_was(ours, attach):
    model, calls = ours(), []

    def failing(batch):
        calls.append(1)
        if len(calls) == 4:  # in the second measurement, when slopes and weights are others
            raise ArithmeticError("broken")
        return loss_of(model)(batch)

    policy = attach(model, failing)
    if isinstance(policy, DGS):  # which searches from its second period on
        policy.step(BATCH)
    before = everything(model)
    with pytest.raises(ArithmeticError, match="broken"):
        policy.step(BATCH)
    assert same(everything(model), before)
    assert {float(node.slope()) for node in nodes_of(model.blocks)} == {4.0}
    policy.remove()
    Fixed(model).remove()


def recorded(model, seen):
    """A loss that notes with which weights, images and slopes it was asked, and whether for gradients."""

    def loss(batch):
        slopes = [float(node.slope()) for node in nodes_of(model) if node.slope is not None]
        weights = torch.cat([p.detach().flatten().double() for p in model.parameters()])
        seen.append((torch.is_grad_enabled(), weights, batch, slopes))
        return loss_of(model)(batch)

    return loss


@pytest.mark.parametrize("length", [0.01, 0.3])
def test_all_trial_steps_have_the_stated_length_and_start_from_the_weights(ours, length):
    model, seen = ours(), []
    start = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    policy = Aligned(model, recorded(model, seen), every=1, length=length)
    policy.step(BATCH)
    assert [wants_gradient for wants_gradient, *_ in seen] == [True, False, True, False]
    for wants_gradient, weights, _, _ in seen:
        expected = 0.0 if wants_gradient else length * float(start.norm())
        assert float((weights - start).norm()) == pytest.approx(expected, rel=1e-4)
    assert not torch.equal(seen[1][1], seen[3][1])


def test_gradients_and_losses_are_of_different_images_and_the_losses_of_all_candidates_of_the_same(ours):
    model, seen = ours(), []
    Aligned(model, recorded(model, seen), every=1).step(BATCH)
    images = [batch[0] for _, _, batch, _ in seen]
    assert torch.equal(images[0], IMAGES[[0, 1, 6, 7]])
    assert torch.equal(images[1], IMAGES[2:6])
    assert torch.equal(images[0], images[2])
    assert torch.equal(images[1], images[3])


def test_two_batches_are_taken_as_they_are(ours):
    model, seen = ours(), []
    other = IMAGES.flip(0)[:3], LABELS[:3]
    Aligned(model, recorded(model, seen), every=1).step(BATCH, other)
    assert [batch for _, _, batch, _ in seen] == [BATCH, other, BATCH, other]


def test_both_sides_see_the_same_random_numbers(ours):
    model = ours()
    model.head = nn.Sequential(Drawing(), model.head)
    policy = Aligned(model, loss_of(model), every=1, reach=0.0)
    policy.step(BATCH)
    first, opposite = policy.losses.tolist()
    assert first == opposite
    assert policy.slopes.tolist() == [4.0, 4.0]


# The inert twin


def trained(model, attach, steps=6):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss, data = loss_of(model), torch.Generator().manual_seed(3)
    policy = attach(model, loss)
    for _ in range(steps):
        batch = torch.randn(8, 3, 16, 16, generator=data), LABELS
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()
        functional.reset_net(model)
        if policy is not None:
            policy.step(batch)
    return model.state_dict()


INERT = {
    "reach 0": lambda model, loss: Aligned(model, loss, every=2, reach=0.0),
    "rate 0": lambda model, loss: Aligned(model, loss, every=2, rate=0.0),
    "no candidates": lambda model, loss: DGS(model, loss, every=2, batches=2, pairs=0),
}


@pytest.mark.parametrize("inert", INERT.values(), ids=INERT.keys())
def test_a_policy_that_moves_nothing_changes_no_bit(build, inert):
    plain, twin = (trained(build(), attach) for attach in (lambda model, loss: None, inert))
    assert all(torch.equal(twin[name], value) for name, value in plain.items())


def test_one_that_moves_changes_the_training(ours):
    plain, moved = (trained(ours(), attach, steps=3) for attach in (INERT["rate 0"], ATTACH["aligned"]))
    assert any(not torch.equal(moved[name], value) for name, value in plain.items())


# Halves


Pair = namedtuple("Pair", "images labels")


@pytest.mark.parametrize("kind", [tuple, list, lambda pair: Pair(*pair), lambda pair: {"x": pair[0], "y": pair[1]}])
def test_a_batch_is_halved_whatever_holds_its_tensors(kind):
    batch = kind([torch.arange(9), torch.arange(18).reshape(9, 2)])
    outer, inner = halves(batch)
    assert type(outer) is type(inner) is type(batch)
    (a, b), (c, d) = (list(half.values() if isinstance(half, dict) else half) for half in (outer, inner))
    assert a.tolist() == [0, 1, 7, 8]
    assert c.tolist() == [2, 3, 4, 5, 6]
    assert torch.equal(b[:, 0], 2 * a)
    assert torch.equal(d[:, 1], 2 * c + 1)


@pytest.mark.parametrize("size", [4, 5, 6, 7, 128])
def test_images_that_were_mixed_with_each_other_stay_together(size):
    outer, inner = (set(half.tolist()) for half in halves(torch.arange(size)))
    assert outer | inner == set(range(size))
    assert not outer & inner
    assert all({size - 1 - i for i in half} == half for half in (outer, inner))


def test_what_has_no_images_is_kept_whole():
    outer, inner = halves({"x": torch.arange(4), "epoch": 3, "scale": torch.tensor(2.0)})
    assert outer["epoch"] == inner["epoch"] == 3
    assert outer["scale"] == inner["scale"] == 2.0


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ((torch.zeros(2, 8, 3), torch.zeros(8)), r"first axes of \[2, 8\] cannot be halved \(unlike\)"),
        (torch.zeros(3, 2), r"first axes of \[3\] cannot be halved \(too few\).*at least 4 images"),
        ("images", r"no tensors in it.*step\(batch, other\)"),
    ],
)
def test_a_batch_that_cannot_be_halved_is_refused(ours, batch, told):
    policy = Aligned(ours(), loss_of(None), every=1)
    with pytest.raises(ValueError, match=told):
        policy.step(batch)


# Steps


def test_a_step_is_against_the_gradient_and_taken_back():
    weights = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]  # norm 5
    gradients = [torch.tensor([0.0, 3.0]), torch.tensor([[-4.0]])]  # norm 5
    kept = copy.deepcopy(weights)
    with stepped(weights, gradients, 0.1):
        assert weights[0].tolist() == pytest.approx([3.0, -0.3])
        assert weights[1].item() == pytest.approx(4.4)
    assert all(torch.equal(now, before) for now, before in zip(weights, kept, strict=True))
    with stepped(weights, [torch.zeros(2), torch.zeros(1, 1)], 0.1):
        assert all(torch.equal(now, before) for now, before in zip(weights, kept, strict=True))


# What is refused


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda model: Aligned(model, "loss"), TypeError, "loss must be a function of a batch, such as lambda"),
        (lambda model: Aligned(model, loss_of(model), slope=0.0), ValueError, "must hold the slope 0"),
        (lambda model: Aligned(model, loss_of(model), length=0.0), ValueError, "slope and length must be positive"),
        (lambda model: Aligned(model, loss_of(model), every=0), ValueError, "every must be at least 1"),
        (lambda model: Aligned(model, loss_of(model), reach=-1), ValueError, "reach and rate must not be negative"),
        (lambda model: Aligned(model, loss_of(model), low=5.0), ValueError, "must hold the slope 4 between them"),
        (
            lambda model: DGS(model, loss_of(model), every=5, batches=6),
            ValueError,
            "6 batches does not fit into every=5",
        ),
        (lambda model: DGS(model, loss_of(model), every=5, batches=1, pairs=-1), ValueError, "must not be negative"),
        (lambda model: DGS(model, loss_of(model), every=5, batches=1, floor=9.0), ValueError, "not above the slope"),
    ],
)
def test_impossible_settings_are_refused_and_leave_the_model_free(ours, make, error, told):
    model = ours()
    with pytest.raises(error, match=told):
        make(model)
    Fixed(model).remove()


def test_a_step_without_a_batch_names_the_cure(ours, attach):
    policy = attach(ours(), loss_of(None))
    with pytest.raises(ValueError, match=r"call step\(batch\), with what loss\(batch\) takes"):
        policy.step()


def test_a_loss_that_is_no_scalar_names_the_cure(ours):
    model = ours()
    for loss, told in ((lambda batch: model(batch[0]), r"not a tensor \(4, 10\)"), (lambda batch: 1.0, "not float")):
        with (
            Aligned(model, loss, every=1) as policy,
            pytest.raises(TypeError, match=f"scalar tensor, {told}; take the mean"),
        ):
            policy.step(BATCH)


def test_nodes_that_would_compile_anew_for_every_slope_are_refused(jelly):
    model = torch.compile(jelly(), backend="eager")
    with pytest.raises(ValueError, match=r"build it with spiking_neuron=sage_snn\.LIFNode, or train it uncompiled"):
        Aligned(model, loss_of(model))
    Fixed(model).remove()


def test_remove_gives_the_model_back_and_a_removed_policy_makes_no_trial(build, attach):
    model = build()
    before = [(node.surrogate_function, getattr(node, "slope", None)) for node in nodes_of(model)]
    with attach(model, loss_of(model)) as policy:
        policy.step(BATCH)
        policy.step(BATCH)
    assert [(node.surrogate_function, getattr(node, "slope", None)) for node in nodes_of(model)] == before
    with pytest.raises(RuntimeError, match="was removed from its model"):
        policy.step(BATCH)


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_activation_checkpointing_trials_find_the_same_or_are_refused(ours, reentrant):
    plain, checkpointed = ours().double(), ours().double()
    for block in checkpointed.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=reentrant)
    batch = IMAGES.double(), LABELS
    expected, policy = (Aligned(model, loss_of(model), every=1) for model in (plain, checkpointed))
    expected.step(batch)
    if reentrant:
        with pytest.raises(RuntimeError, match="you can either set use_reentrant=False"):
            policy.step(batch)
        assert all(map(torch.equal, plain.parameters(), checkpointed.parameters()))
    else:
        policy.step(batch)
        assert torch.allclose(policy.losses, expected.losses, rtol=0, atol=1e-9)


class Small(nn.Module):
    """T=2 steps of a linear layer and a node of ours."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.node = LIFNode(step_mode="m", carry_state=False)

    def forward(self, x):
        return self.head(self.node(self.inner(2 * x).expand(2, -1, -1)).mean(0))


@pytest.mark.slow
def test_a_compiled_model_is_tried_without_compiling_anew():
    torch.compiler.reset()
    found = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True)):
        model = wrap(Small().double())
        policy = Aligned(model, loss_of(model), every=1)
        data = torch.Generator().manual_seed(1)
        for i in range(4):
            batch = torch.randn(8, 6, dtype=torch.float64, generator=data), LABELS
            with torch.compiler.set_stance("fail_on_recompile" if i > 1 else "default"):
                policy.step(batch)
        found.append(policy.slopes)
        policy.remove()
    assert torch.allclose(*found, rtol=0, atol=1e-9)
    assert found[0].tolist() != [4.0]
