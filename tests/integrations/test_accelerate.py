import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from sage_snn import SAGE, DeadZoneTanh, Learnable
from sage_snn.models import spikformer

LAW = DeadZoneTanh(dead_zone=0.0)


def attach(kind, model):
    return SAGE(model, warmup_steps=1, law=LAW) if kind == "sage" else Learnable(model)


class Training:
    """The lines of docs/adopt.md around one model."""

    def __init__(self, kind="sage", micro_batches=1):
        torch.manual_seed(0)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_batches)
        model = spikformer(depth=2, dim=16, heads=2, time_steps=2, image_size=8, patch_size=2)
        self.policy = attach(kind, model)
        optimizer = torch.optim.AdamW([*model.parameters(), *self.policy.parameters()], lr=1e-2)
        optimizer.register_step_post_hook(lambda *_: self.policy.step())
        images = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        loader = DataLoader(TensorDataset(images, torch.arange(32) % 10), batch_size=4)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.accelerator.register_for_checkpointing(self.policy)

    def epoch(self):
        slopes = []
        for images, labels in self.loader:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(F.cross_entropy(self.model(images), labels))
                self.optimizer.step()
                self.optimizer.zero_grad()
            slopes.append(self.policy.slopes)
        return slopes


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", ["sage", "learnable"])
def test_a_loaded_state_goes_on_to_the_same_bits(tmp_path, kind):
    first = Training(kind)
    first.epoch()
    first.accelerator.save_state(str(tmp_path))
    rest = first.epoch()

    second = Training(kind)
    second.accelerator.load_state(str(tmp_path))
    assert same(second.epoch(), rest)
    assert same(second.model.parameters(), first.model.parameters())
    assert any((slopes != 4).any() for slopes in rest)


def test_the_saved_state_also_loads_as_weights(tmp_path):
    training = Training()
    training.epoch()
    training.accelerator.save_state(str(tmp_path))
    state = torch.load(tmp_path / "custom_checkpoint_0.pkl", weights_only=True)
    assert torch.equal(state["slopes"], training.policy.slopes)


def test_accumulated_micro_batches_are_one_step_of_the_policy():
    training = Training(micro_batches=2)
    slopes = training.epoch()
    assert training.policy.state_dict()["steps"] == len(slopes) // 2
    assert same(slopes[1::2][:-1], slopes[2::2])  # a slope is new after every second micro-batch only
    assert len({tuple(values.tolist()) for values in slopes[1::2]}) > 2
