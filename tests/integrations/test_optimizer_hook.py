import pytest
import torch
import torch.nn.functional as F

from sage_snn import SAGE, DeadZoneTanh, Learnable
from sage_snn.models import spikformer

LAW = DeadZoneTanh(dead_zone=0.0)
POLICIES = {"sage": lambda model: SAGE(model, warmup_steps=1, law=LAW), "learnable": Learnable}


def batches():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 3, 8, 8, generator=generator), torch.arange(4) + i) for i in range(6)]


def start(kind="sage"):
    torch.manual_seed(0)
    model = spikformer(depth=2, dim=16, heads=2, time_steps=2, image_size=8, patch_size=2)
    policy = POLICIES[kind](model)
    return model, policy, torch.optim.AdamW([*model.parameters(), *policy.parameters()], lr=1e-2)


def train(model, policy, optimizer, micro_batches, two_lines):
    slopes = []
    for i, (images, labels) in enumerate(batches(), 1):
        (F.cross_entropy(model(images), labels) / micro_batches).backward()
        if i % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
            if two_lines:
                policy.step()
        slopes.append(policy.slopes)
    return slopes


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_hook_does_what_the_two_lines_do(kind, micro_batches):
    expected_model, policy, optimizer = start(kind)
    expected = train(expected_model, policy, optimizer, micro_batches, two_lines=True)

    model, hooked, optimizer = start(kind)
    optimizer.register_step_post_hook(lambda *_: hooked.step())
    slopes = train(model, hooked, optimizer, micro_batches, two_lines=False)

    assert all(torch.equal(a, b) for a, b in zip(slopes, expected, strict=True))
    pairs = zip(model.parameters(), expected_model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert any((values != 4).any() for values in slopes)


def test_a_step_that_the_scaler_skips_is_not_a_step_of_a_hooked_policy():
    model, sage, optimizer = start()
    optimizer.register_step_post_hook(lambda *_: sage.step())
    scaler = torch.amp.GradScaler("cpu")
    for i, (images, labels) in enumerate(batches()):
        loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss * torch.inf if i == 2 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert sage.state_dict()["steps"] == len(batches()) - 1


def test_the_optimizer_without_the_hook_outlives_the_policy():
    model, sage, optimizer = start()
    hook = optimizer.register_step_post_hook(lambda *_: sage.step())
    images, labels = batches()[0]
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    hook.remove()
    sage.remove()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    assert sage.state_dict()["steps"] == 1
