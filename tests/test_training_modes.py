"""SAGE under accumulation, checkpointing, evaluation, autocast, compilation and export."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sage_snn import SAGE, Block, DeadZoneTanh, HeadEntropy, LIFNode, Statistics
from sage_snn.kernels import bits
from sage_snn.signals import head_entropy


class Counting:
    """Entropy that counts how often it is read, and of how many rows."""

    def __init__(self):
        self.rows = []
        self.seen = []

    def __call__(self, q, k, scale):
        times, batch, _, tokens, _ = q.shape
        self.rows.append(times * batch * tokens)
        self.seen.append((q, k))
        return HeadEntropy()(q, k, scale)


def test_micro_batches_add_up_to_the_batch(ours, settle):
    batch = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    model = settle(ours(), batch)
    sage = SAGE(model, warmup_steps=0)
    model(batch).sum().backward()
    sage.step()
    whole = torch.stack(sage.head_entropy)
    for part in batch.split([1, 2, 2, 3]):
        model(part).sum().backward()
    sage.step()
    assert torch.allclose(torch.stack(sage.head_entropy), whole, rtol=0, atol=1e-6)
    assert sage.dispersion.min() > 1e-4


class Checkpointed(nn.Module):
    def __init__(self, block, reentrant):
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


def checkpointed(model, reentrant):
    if reentrant is not None:
        model.blocks = nn.ModuleList(Checkpointed(block, reentrant) for block in model.blocks)
    return model


def steps_of(model, signal, batches, **options):
    sage = SAGE(model, warmup_steps=0, signal=signal, law=DeadZoneTanh(dead_zone=0.0), **options)
    read = []
    for batch in batches:
        model(batch).square().sum().backward()
        sage.step()
        read.append(torch.cat([*sage.head_entropy, sage.slopes]))
    return torch.stack(read), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
@pytest.mark.parametrize("every", [1, 2])
def test_a_replay_counts_once_and_as_the_pass_it_replays(ours, reentrant, every):
    batches = torch.randn(4, 2, 3, 16, 16, generator=torch.Generator().manual_seed(4)).unbind()
    plain, replayed = Counting(), Counting()
    expected, wanted_grads = steps_of(ours(), plain, batches, every=every)
    found, grads = steps_of(checkpointed(ours(), reentrant), replayed, batches, every=every)
    assert replayed.rows == plain.rows
    assert len(plain.rows) == 2 * len(batches) // every
    assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted_grads, strict=True))


def test_a_pass_without_gradients_before_the_replay_changes_nothing(ours, images):
    model, signal = checkpointed(ours(), False), Counting()
    sage = SAGE(model, warmup_steps=0, signal=signal)
    loss = model(images).sum()
    with torch.no_grad():
        model(images)
    loss.backward()
    sage.step()
    assert len(signal.rows) == 2


def test_checkpointing_the_whole_model_keeps_nothing_of_it(ours, images, monkeypatch):
    kept, pack = [], bits._packed
    monkeypatch.setattr(bits, "_packed", lambda tensor: kept.append(tensor) or pack(tensor))
    images.requires_grad_()
    loss = checkpoint(ours(), images, use_reentrant=False).square().sum()
    assert not kept
    (expected,) = torch.autograd.grad(ours()(images).square().sum(), images)
    assert kept
    (found,) = torch.autograd.grad(loss, images)
    assert torch.equal(found, expected)


def test_step_between_a_pass_and_its_replay_is_warned_of(ours, images):
    model = checkpointed(ours(), False)
    sage = SAGE(model, warmup_steps=0)
    loss = model(images).sum()
    sage.step()
    loss.backward()
    model(images).sum().backward()
    with pytest.warns(UserWarning, match=r"block blocks\.\d.* call step\(\) after backward"):
        sage.step()


def test_nothing_is_read_in_eval_or_without_gradients(build, images):
    model, signal = build(), Counting()
    sage = SAGE(model, warmup_steps=0, signal=signal)
    model.eval()(images)
    with torch.no_grad():
        model.train()(images)
    with torch.inference_mode():
        model(images)
    assert not signal.rows
    with pytest.raises(RuntimeError, match="before any forward"):
        sage.step()


def test_an_evaluation_between_pass_and_step_changes_nothing(ours, images):
    model, signal = ours(), Counting()
    sage = SAGE(model, warmup_steps=0, signal=signal)
    model(images).sum().backward()
    with torch.no_grad():
        model.eval()(images)
    sage.step()
    assert len(signal.rows) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_reads_exact_entropies_and_keeps_membranes_exact(ours, images, dtype):
    model, signal = ours(), Counting()
    membranes = []
    for block in model.blocks:
        node = block.mlp.first.lif
        node.carry_state = True  # so that there is something to look at
        node.register_forward_hook(lambda node, *_: membranes.append(node.v.dtype))
    sage = SAGE(model, warmup_steps=0, signal=signal)
    with torch.autocast("cpu", dtype=dtype):
        loss = model(images).float().square().sum()
    loss.backward()
    sage.step()
    assert membranes == [torch.float32] * 2
    for (q, k), values in zip(signal.seen, sage.head_entropy, strict=True):
        assert q.dtype == dtype
        assert torch.allclose(values, head_entropy(q.double(), k.double()), rtol=0, atol=3e-7)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert sage.dispersion.min() > 0


class Small(nn.Module):
    """Two blocks of two nodes each: (T, B, N, C) -> (B, C)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.nodes = nn.ModuleList(LIFNode(step_mode="m", carry_state=False) for _ in range(4))

    def forward(self, x):
        for i in (0, 2):
            q, k = (self.nodes[j](6 * self.dense[j](x)) for j in (i, i + 1))
            x = x + q * k + q
        return x.mean((0, 2))

    def described(self):
        pairs = (self.nodes[:2], self.nodes[2:])
        return [Block(list(pair), query=pair[0], key=pair[1], heads=2, name=str(i)) for i, pair in enumerate(pairs)]


@pytest.mark.slow
def test_twenty_slopes_are_one_compiled_graph_with_the_gradients_of_eager():
    torch.compiler.reset()
    batches = torch.randn(20, 2, 3, 5, 8, generator=torch.Generator().manual_seed(4)).unbind()
    eager, captured = Small(), Small()
    policies = [
        SAGE(model, warmup_steps=0, blocks=model.described(), law=DeadZoneTanh(dead_zone=0.0))
        for model in (eager, captured)
    ]
    compiled = torch.compile(captured, backend="aot_eager", fullgraph=True)
    slopes = set()
    for i, batch in enumerate(batches):
        with torch.compiler.set_stance("fail_on_recompile" if i else "default"):
            losses = [network(batch).square().sum() for network in (eager, compiled)]
        for model, loss, sage in zip((eager, captured), losses, policies, strict=True):
            model.zero_grad()
            loss.backward()
            sage.step()
        assert torch.equal(policies[0].slopes, policies[1].slopes)
        for a, b in zip(eager.parameters(), captured.parameters(), strict=True):
            assert torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-7)
        slopes.add(tuple(policies[0].slopes.tolist()))
    assert len(slopes) == 20


@pytest.mark.slow
def test_a_policy_attached_to_the_compiled_model_reads_through_its_wrapper():
    torch.compiler.reset()
    model = torch.compile(Small(), backend="aot_eager", fullgraph=True)
    sage = SAGE(model, warmup_steps=0, blocks=model._orig_mod.described())
    for batch in (torch.randn(2, 3, 5, 8), torch.randn(2, 2, 5, 8)):  # the last batch of an epoch is smaller
        model(batch).sum().backward()
        sage.step()
    assert sage.head_entropy[0].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("same_step", [False, True])
def test_a_compiled_backward_uses_the_slope_that_it_should_when_step_comes_before_it(same_step):
    torch.compiler.reset()
    batch, found = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(4)), []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True)):
        model = Small()
        law = DeadZoneTanh(base=5.0, low=5.0, high=5.0)  # every node ends at its own base
        with SAGE(model, warmup_steps=0, blocks=model.described(), same_step=same_step, law=law) as sage:
            sage._nodes.write(torch.full((4,), 2.0, dtype=torch.float64))
            loss = wrap(model)(batch).square().sum()
            sage.step()
            loss.backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(*found, strict=True))


@pytest.mark.slow
def test_the_exported_graph_has_no_trace_of_sage(ours, images):
    model = ours(depth=1, dim=16, heads=2).eval()
    plain = torch.export.export(copy.deepcopy(model), (images,))
    with SAGE(model, warmup_steps=0, law=lambda z: z + 4.25, statistics=Statistics(center=False)) as sage:
        model.train()(images)
        sage.step()
        attached = torch.export.export(model.eval(), (images,))
    assert str(attached.graph) == str(plain.graph)
    assert list(attached.constants) == list(plain.constants)
    assert "sage" not in str(attached.graph)
