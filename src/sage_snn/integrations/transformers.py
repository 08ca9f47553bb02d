"""A policy as a callback of the Hugging Face Trainer."""

import importlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils.import_utils import is_torchaudio_available

from ..policies import Policy
from .attachment import Attachment

FILE = "policy.pt"


def _hide_broken_torchaudio() -> None:
    """One that cannot be imported counts as not installed."""
    # SpikingJelly has it installed, it refuses a torch of another CUDA version, and the Trainer imports what it sees.
    try:
        importlib.import_module("torchaudio")
    except Exception:  # it raises whatever it likes
        sys.modules["torchaudio"] = None  # pyright: ignore[reportArgumentType]
        getattr(is_torchaudio_available, "cache_clear", lambda: None)()


_hide_broken_torchaudio()


class PolicyCallback(Attachment, TrainerCallback):
    """Attaches `build(model)` for the training, steps it after each optimizer step, saves and restores its state.

    `PolicyCallback(lambda model: SAGE(model, warmup_steps=100))`; a policy that is attached already is taken too, as a
    Learnable one must be whose parameters the optimizer is to have. `part` names the attribute that holds the network,
    `resume_from` the folder of the checkpoint if training goes on from one that is not in the output folder.

    Args:
        build: a policy, or a function of the model that gives one.
        part: name of the attribute that holds the network.
        resume_from: folder of the checkpoint to go on from.
    """

    def __init__(
        self,
        build: Callable[[nn.Module], Policy] | Policy,
        part: str | None = None,
        resume_from: str | Path | None = None,
    ) -> None:
        super().__init__(build)
        self.part, self.resume_from = part, resume_from

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach, and go on from the checkpoint's state if there is one."""
        if not isinstance(self.build, Policy):
            self._detach()  # what a training that failed has left
        model = kwargs["model"]
        self._attach(getattr(model, self.part) if self.part else model)
        if state.global_step:
            self._resume(args, state)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """One policy step per optimizer step, after it: micro-batches of an accumulated gradient are averaged."""
        if self.policy is not None:
            self.policy.step()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Put the slopes beside the loss, for the history and for the callbacks that come after this one."""
        if "loss" in kwargs.get("logs", {}):
            slopes = {name: slope.item() for name, slope in self._slopes().items()}
            kwargs["logs"].update(slopes)
            state.log_history[-1].update(slopes)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the policy's state into the checkpoint that was just saved."""
        folder = _checkpoint(args, state)
        if self.policy is None or not args.should_save:
            return
        if not folder.is_dir():
            warnings.warn(
                f"the policy's state was not saved, as {folder} does not exist: a hyperparameter search keeps its "
                "checkpoints elsewhere; save policy.state_dict() yourself",
                stacklevel=2,
            )
            return
        draft = folder / f"{FILE}.draft"
        torch.save(self.policy.state_dict(), draft)
        os.replace(draft, folder / FILE)  # whole or not at all

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the model back."""
        self._detach()

    def _resume(self, args: TrainingArguments, state: TrainerState) -> None:
        candidates = (self.resume_from, args.resume_from_checkpoint, _checkpoint(args, state))
        folders = [Path(folder) for folder in candidates if folder]
        file = next((folder / FILE for folder in folders if _is_origin(folder, state)), None)
        if file is not None and file.is_file():
            self._restore(torch.load(file, map_location="cpu", weights_only=True))
        self._warn_if_new(
            state.global_step,
            f"resume from a checkpoint that has a {FILE}, as this callback writes it, and pass the folder of that "
            f"checkpoint as resume_from= if it is not {folders[-1]}",
        )


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the Trainer keeps the checkpoint of this step."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"


def _is_origin(folder: Path, state: TrainerState) -> bool:
    """Whether the Trainer resumed from this checkpoint: it does not tell where from, only what it read there."""
    file = folder / "trainer_state.json"
    # As text: a NaN among the numbers differs from itself.
    return file.is_file() and str(TrainerState.load_from_json(str(file)).log_history) == str(state.log_history)
