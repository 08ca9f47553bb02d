import shutil
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import SequentialSampler

from sage_snn import SAGE, DeadZoneTanh, Learnable
from sage_snn.integrations.transformers import PolicyCallback
from sage_snn.models import spikformer

from transformers import Trainer, TrainerCallback, TrainingArguments  # isort: skip  (its Trainer wants ours first)

STEPS = 6
LAW = DeadZoneTanh(dead_zone=0.0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = spikformer(depth=2, dim=16, heads=2, time_steps=2, image_size=8, patch_size=2)

    def forward(self, images, labels):
        logits = self.network(images)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class InOrder(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


class Recorder(TrainerCallback):
    """Runs after the policy's callback and sees what it did."""

    def __init__(self, policy):
        self.policy, self.slopes, self.logs = policy, [], []

    def on_step_end(self, *args, **kwargs):
        self.slopes.append(self.policy.policy.slopes)

    def on_log(self, *args, logs, **kwargs):
        self.logs.append(dict(logs))


def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(24, 3, 8, 8, generator=generator)
    return [{"images": image, "labels": torch.tensor(i % 10)} for i, image in enumerate(images)]


def trainer(folder, callbacks, model=None, steps=STEPS, micro_batches=1, optimizer=None, **options):
    model = model or Classifier()
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    plain = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "per_device_train_batch_size": 4 // micro_batches}
    args = TrainingArguments(
        str(folder),
        max_steps=steps,
        gradient_accumulation_steps=micro_batches,
        **quiet,
        **plain,
        **{"save_strategy": "no", "logging_steps": 1} | options,
    )
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return InOrder(model, args, train_dataset=data(), callbacks=callbacks, optimizers=(optimizer, None))


def sage(**options):
    policy = PolicyCallback(lambda m: SAGE(m, warmup_steps=1, law=LAW), part="network", **options)
    return policy, Recorder(policy)


def by_hand(micro_batches=1):
    model = Classifier()
    policy = SAGE(model.network, warmup_steps=1, law=LAW)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = (torch.stack([row[key] for row in data()]) for key in ("images", "labels"))
    size, slopes = 4 // micro_batches, []
    for batch, (x, y) in enumerate(zip(images.split(size), labels.split(size), strict=True), 1):
        (model(x, y)["loss"] / micro_batches).backward()
        if batch % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
            policy.step()
            slopes.append(policy.slopes)
    return slopes


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_callback_does_what_the_two_lines_do(tmp_path, micro_batches):
    policy, seen = sage()
    trainer(tmp_path, [policy, seen], micro_batches=micro_batches).train()
    expected = by_hand(micro_batches)
    assert len(expected) == STEPS
    assert same(seen.slopes, expected)
    assert any((slopes != 4).any() for slopes in expected)


def test_a_resumed_training_goes_on_with_the_same_slopes(tmp_path):
    first, _ = sage()
    trainer(tmp_path, [first], steps=3, save_strategy="steps", save_steps=3).train()
    second, rest = sage()
    trainer(tmp_path, [second, rest]).train(resume_from_checkpoint=True)
    assert same(rest.slopes, by_hand()[3:])


def test_every_checkpoint_has_a_state_that_loads_as_weights(tmp_path):
    policy, _ = sage()
    trainer(tmp_path, [policy], save_strategy="steps", save_steps=2).train()
    for step in (2, 4, 6):
        assert torch.load(tmp_path / f"checkpoint-{step}" / "policy.pt", weights_only=True)["steps"] == step
    assert not list(tmp_path.rglob("*.draft"))


def test_a_save_that_fails_leaves_the_last_state(tmp_path, monkeypatch):
    policy, _ = sage()
    trainer(tmp_path, [policy], steps=2, save_strategy="steps", save_steps=2).train()
    file = tmp_path / "checkpoint-2" / "policy.pt"
    before, save = file.read_bytes(), torch.save

    def fails(content, path, *args, **kwargs):
        save(content, path, *args, **kwargs)
        if "policy.pt" in str(path):
            raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fails)
    again, _ = sage()
    with pytest.raises(OSError, match="disk full"):
        trainer(tmp_path, [again], steps=2, save_strategy="steps", save_steps=2).train()
    again.policy.remove()
    assert file.read_bytes() == before


def test_a_checkpoint_without_the_policy_is_warned_of(tmp_path):
    trainer(tmp_path, [], steps=3, save_strategy="steps", save_steps=3).train()
    policy, _ = sage()
    with pytest.warns(UserWarning, match=r"goes on at step 3, but no state of the policy .*policy\.pt"):
        trainer(tmp_path, [policy]).train(resume_from_checkpoint=True)


def test_a_checkpoint_elsewhere_is_taken_from_where_resume_from_says(tmp_path):
    first, _ = sage()
    trainer(tmp_path / "old", [first], steps=3, save_strategy="steps", save_steps=3).train()
    folder = str(shutil.move(tmp_path / "old" / "checkpoint-3", tmp_path / "moved"))
    second, rest = sage(resume_from=folder)
    trainer(tmp_path / "new", [second, rest]).train(resume_from_checkpoint=folder)
    assert same(rest.slopes, by_hand()[3:])


def test_a_checkpoint_of_another_training_is_not_taken(tmp_path):
    for name, rate in (("one", 0.1), ("two", 0.2)):
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        options = {"steps": 3, "save_strategy": "steps", "save_steps": 3, "optimizer": optimizer}
        trainer(tmp_path / name, [sage()[0]], model, **options).train()
    policy, _ = sage()
    with pytest.warns(UserWarning, match="no state of the policy came with it"):
        trainer(tmp_path / "two", [policy]).train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-3"))


def test_slopes_are_logged_beside_the_loss(tmp_path):
    policy, seen = sage()
    fit = trainer(tmp_path, [policy, seen])
    fit.train()
    histories = [[row for row in rows if "loss" in row] for rows in (fit.state.log_history, seen.logs)]
    for rows in histories:
        logged = [torch.tensor([row["slope/0"], row["slope/1"]], dtype=torch.float64) for row in rows]
        assert same(logged, seen.slopes)


def test_an_attached_policy_is_taken_and_its_parameters_learn(tmp_path):
    model = Classifier()
    learnable = Learnable(model.network)
    groups = [{"params": model.parameters()}, {"params": learnable.parameters(), "weight_decay": 0.0}]
    policy = PolicyCallback(learnable)
    seen = Recorder(policy)
    trainer(tmp_path, [policy, seen], model, optimizer=torch.optim.SGD(groups, lr=0.1)).train()
    assert len(seen.slopes) == STEPS
    assert seen.slopes[-1][0] != pytest.approx(4.0, abs=1e-6)


def test_the_model_is_given_back_after_the_training(tmp_path):
    model, (policy, _) = Classifier(), sage()
    trainer(tmp_path, [policy], model).train()
    assert policy.policy is None
    SAGE(model.network, warmup_steps=0).remove()


class FailsOnce(Classifier):
    calls = 0

    def forward(self, images, labels):
        self.calls += 1
        if self.calls == 2:
            raise ZeroDivisionError
        return super().forward(images, labels)


def test_a_training_after_one_that_failed_starts_anew(tmp_path):
    policy, seen = sage()
    fit = trainer(tmp_path, [policy, seen], FailsOnce())
    with pytest.raises(ZeroDivisionError):
        fit.train()
    seen.slopes.clear()
    fit.train()
    assert len(seen.slopes) == STEPS
    assert policy.policy is None


def test_a_folder_that_does_not_exist_is_warned_of(tmp_path):
    policy, _ = sage()
    fit = trainer(tmp_path, [policy])
    policy.on_train_begin(fit.args, fit.state, fit.control, model=fit.model)
    with pytest.warns(UserWarning, match="was not saved.*hyperparameter search"):
        policy.on_save(fit.args, fit.state, fit.control)
    policy.on_train_end(fit.args, fit.state, fit.control)


@pytest.mark.slow
def test_a_torchaudio_that_cannot_be_imported_does_not_take_the_trainer_with_it(tmp_path):
    (tmp_path / "torchaudio.py").write_text("raise RuntimeError('of another CUDA version')")
    code = "import sage_snn.integrations.transformers\nfrom transformers import Trainer\nprint(Trainer.__name__)"
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "Trainer"


def test_importing_the_package_imports_neither_transformers_nor_accelerate():
    code = "from sage_snn import *\nimport sage_snn.integrations, sys\n"
    code += "print({'transformers', 'accelerate', 'lightning'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "set()"
