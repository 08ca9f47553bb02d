import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from sage_snn import SAGE, Aligned, DeadZoneTanh, Learnable
from sage_snn.integrations.lightning import PolicyCallback
from sage_snn.models import spikformer

BATCHES, EPOCHS = 4, 2
LAW = DeadZoneTanh(dead_zone=0.0)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = spikformer(depth=2, dim=16, heads=2, time_steps=2, image_size=8, patch_size=2)
        self.policy = None

    def training_step(self, batch, index):
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        own = list(self.policy.policy.parameters()) if self.policy else []
        return torch.optim.SGD([*self.parameters(), *own], lr=0.1)


def loader():
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(16, 3, 8, 8, generator=generator), torch.arange(16) % 10
    return DataLoader(TensorDataset(images, labels), batch_size=16 // BATCHES)


def trainer(callbacks, tmp_path, **options):
    quiet = {"logger": False, "enable_model_summary": False, "enable_progress_bar": False, "accelerator": "cpu"}
    return L.Trainer(callbacks=callbacks, default_root_dir=tmp_path, **quiet, **{"max_epochs": EPOCHS} | options)


class Recorder(L.Callback):
    """Runs after the policy's callback and sees what it did."""

    def __init__(self, policy):
        self.policy, self.slopes = policy, []

    def on_train_batch_end(self, *args):
        self.slopes.append(self.policy.policy.slopes.clone())


def by_hand(micro_batches=1):
    model = Classifier()
    sage = SAGE(model.network, warmup_steps=1, law=LAW)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    slopes = []
    for _ in range(EPOCHS):
        for i, (images, labels) in enumerate(loader()):
            (F.cross_entropy(model.network(images), labels) / micro_batches).backward()
            if (i + 1) % micro_batches == 0:
                optimizer.step()
                optimizer.zero_grad()
                sage.step()
            slopes.append(sage.slopes)
    return slopes


# num_workers and GPU hints, and the pytree deprecation, are Lightning's own.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:.*ModelCheckpoint"),
]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_callback_does_what_the_two_lines_do(tmp_path, micro_batches):
    policy = PolicyCallback(lambda m: SAGE(m, warmup_steps=1, law=LAW))
    recorder = Recorder(policy)
    fit = trainer([policy, recorder], tmp_path, accumulate_grad_batches=micro_batches, enable_checkpointing=False)
    fit.fit(Classifier(), loader())
    expected = by_hand(micro_batches)
    assert len(recorder.slopes) == len(expected) == BATCHES * EPOCHS
    assert all(torch.equal(a, b) for a, b in zip(recorder.slopes, expected, strict=True))
    assert any((slopes != 4).any() for slopes in expected)


def test_the_model_is_given_back_after_the_fit(tmp_path):
    model, policy = Classifier(), PolicyCallback(lambda m: SAGE(m, warmup_steps=1, law=LAW), part="network")
    trainer([policy], tmp_path, enable_checkpointing=False).fit(model, loader())
    assert policy.policy is None
    SAGE(model.network, warmup_steps=0).remove()


def test_a_resumed_fit_goes_on_with_the_same_slopes(tmp_path):
    whole = PolicyCallback(lambda m: SAGE(m, warmup_steps=1, law=LAW))
    seen = Recorder(whole)
    trainer([whole, seen], tmp_path, enable_checkpointing=False).fit(Classifier(), loader())

    first = PolicyCallback(lambda m: SAGE(m, warmup_steps=1, law=LAW))
    half = trainer([first], tmp_path, max_epochs=1, enable_checkpointing=False)
    half.fit(Classifier(), loader())
    saved = tmp_path / "half.ckpt"
    half.save_checkpoint(saved)

    second = PolicyCallback(lambda m: SAGE(m, warmup_steps=1, law=LAW))
    rest = Recorder(second)
    trainer([second, rest], tmp_path, enable_checkpointing=False).fit(Classifier(), loader(), ckpt_path=saved)
    assert len(rest.slopes) == BATCHES
    assert all(torch.equal(a, b) for a, b in zip(rest.slopes, seen.slopes[BATCHES:], strict=True))


def test_a_checkpoint_without_the_policy_is_warned_of(tmp_path):
    plain = trainer([], tmp_path, max_epochs=1, enable_checkpointing=False)
    plain.fit(Classifier(), loader())
    saved = tmp_path / "plain.ckpt"
    plain.save_checkpoint(saved)
    policy = PolicyCallback(lambda m: SAGE(m, warmup_steps=1, law=LAW))
    with pytest.warns(UserWarning, match="goes on at step 4, but no state of the policy came with it"):
        trainer([policy], tmp_path, enable_checkpointing=False).fit(Classifier(), loader(), ckpt_path=saved)


class Failing(Classifier):
    def training_step(self, batch, index):
        super().training_step(batch, index)
        raise ZeroDivisionError


def test_the_model_is_given_back_after_a_failure(tmp_path):
    model, policy = Failing(), PolicyCallback(lambda m: SAGE(m, warmup_steps=1, law=LAW))
    with pytest.raises(ZeroDivisionError):
        trainer([policy], tmp_path, enable_checkpointing=False).fit(model, loader())
    SAGE(model.network, warmup_steps=0).remove()


def test_learnable_slopes_reach_the_optimizer(tmp_path):
    model = Classifier()
    model.policy = PolicyCallback(lambda m: Learnable(m))
    recorder = Recorder(model.policy)
    trainer([model.policy, recorder], tmp_path, enable_checkpointing=False).fit(model, loader())
    assert recorder.slopes[-1][0] != pytest.approx(4.0, abs=1e-6)


def test_an_attached_policy_is_taken_and_removed_at_the_end(tmp_path):
    model = Classifier()
    sage = SAGE(model.network, warmup_steps=1, law=LAW)
    trainer([PolicyCallback(sage)], tmp_path, enable_checkpointing=False).fit(model, loader())
    assert sage.state_dict()["steps"] == BATCHES * EPOCHS
    SAGE(model.network, warmup_steps=0).remove()


def test_a_policy_that_tries_slopes_is_given_the_batches(tmp_path):
    model, tried = Classifier(), []

    def loss(batch):
        tried.append(batch[1].tolist())
        return F.cross_entropy(model.network(batch[0]), batch[1])

    callback = PolicyCallback(lambda network: Aligned(network, loss, every=3), part="network")
    trainer([callback], tmp_path, enable_checkpointing=False).fit(model, loader())
    assert tried == 2 * [[8, 1], [9, 0]] + 2 * [[4, 7], [5, 6]]  # the third batch of four, and then the sixth
