"""The training loop, to be read from top to bottom."""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from safetensors.torch import save
from torch import Tensor, nn

from ..compat import scales_gradients
from ..conversion import balance_thresholds
from ..data import Batch, Loader, ahead, erased, mix, test_transform, train_transform
from ..data.randomness import digest
from ..recipes.fields import blaming
from ..recipes.recipe import Recipe
from ..runs.applied import facts
from ..runs.checkpoint import load_checkpoint, save_checkpoint
from ..runs.evaluation import evaluate, firing_rates
from ..runs.folder import RunError, RunFolder, refusing_to_lose, write_atomically
from ..runs.run import data_of
from ..runs.silence import silent_from
from ..runs.weights import load_first_weights
from .builders import build_optimizer, build_schedule
from .curves import Curves, curves_of
from .devices import applied_precision, by_the_first, peak_memory_mb, refusing_to_wait
from .display import Display
from .extras import extras, first_images
from .failure import NonFiniteError, explain, require_finite
from .generators import seed_generators
from .look import Look, Step
from .observer import Observer
from .recorder import Recorder
from .stage import Stage
from .state import restore, state_of
from .stopping import StopRequest, stopping_politely
from .threads import Threads


class InterruptedRunError(RunError):
    """The run was asked to stop; its checkpoint is written."""


class Training:
    """One run: everything that a checkpoint holds, and the loop over epochs and steps."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        fabric: Fabric,
        threads: Threads,
        *,
        first: Path | None = None,
        stages: Sequence[Stage] = (),
        download: bool,
        quiet: bool,
    ) -> None:
        self.recipe, self.folder, self.fabric, self.threads = recipe, folder, fabric, threads
        self.first, self.stages = first, stages  # the folder whose weights it starts from, and all stages before it
        torch.set_num_threads(threads.number)
        seed_generators(recipe.seed)
        self.data = data_of(recipe, download=download)
        self._build_loaders()
        self.network, self.loss = recipe.model.build(**self.data.shape), recipe.loss.build()
        state = by_the_first(fabric, lambda: load_checkpoint(folder.checkpoints, set_aside=True))
        if state is None:  # the other ranks are sent the weights of the first
            by_the_first(fabric, self._first_weights)
        self.network.to(fabric.device)
        tried = {"loss": self._trial_loss} if recipe.policy.needs_loss else {}
        self.policy = recipe.policy.build(self.network, self.steps_per_epoch, recipe.seed, **tried)
        optimizer = build_optimizer(recipe, self.network, self.policy)
        self.schedule = build_schedule(recipe, optimizer)
        self.model, self.optimizer = fabric.setup(self.network, optimizer)
        self.recorder = Recorder(folder.signals, self.policy)
        self.observer = Observer(folder.observations, self.network, recipe.observe.temperatures, fabric.device)
        self.epoch = self.step = 0  # the step counts within the epoch
        self.seconds = self.epoch_seconds = self.best = 0.0
        self.look = Look(fabric.device)
        self._start_from(state)
        total, done = recipe.total_epochs * self.steps_per_epoch, self.epoch * self.steps_per_epoch + self.step
        quiet = quiet or not fabric.is_global_zero
        self.display = Display(folder.path.name, total, quiet=quiet, done=done)

    def run(self) -> dict[str, Any]:
        """Train from where the checkpoint stands to the end."""
        applied = facts(self, applied_precision(self.fabric))
        if self.fabric.is_global_zero:
            self.folder.write_recipe(self.recipe, applied)
        metrics: dict[str, Any] = {}
        with self.display, stopping_politely() as stop, curves_of(self) as curves:
            self.display.say(f"{self.folder.path}: {', '.join(applied['in short'])}")
            for remark in self.policy.remarks(self.recipe.total_epochs * self.steps_per_epoch):
                self.display.say(remark)
            while self.epoch < self.recipe.total_epochs:
                with refusing_to_wait(self.fabric.world_size):
                    self._train_epoch(stop)
                    metrics = self._finish_epoch(curves)
            if self.recipe.total_epochs == self.epoch == 0:  # converted, not trained
                metrics = self._finish_epoch(curves)
        return self._finish(metrics or by_the_first(self.fabric, lambda: self.folder.metrics()[-1]))

    def _train_epoch(self, stop: StopRequest) -> None:
        self.schedule.step(self.epoch)
        micro_steps = self.steps_per_epoch * self.recipe.accumulate
        made = self.train_loader.epoch(self.epoch, self.step * self.recipe.accumulate, micro_steps)
        batches = ahead(made, self.fabric.device)
        started = time.monotonic()
        while self.step < self.steps_per_epoch:
            batch, is_seen = self._backward(batches)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.policy.step_after(batch)
            self.recorder.record(self.epoch * self.steps_per_epoch + self.step)
            self.observer.record(self.epoch * self.steps_per_epoch + self.step)
            self.step += 1
            now = time.monotonic()
            self.epoch_seconds, started = self.epoch_seconds + now - started, now
            self.display.step()
            if is_seen:
                self.display.show(self.epoch, self.look.last, self.policy.slopes.tolist())
            if self._all_agree(stop, is_seen):
                self._look(batch[0])
                require_finite(self)
                self._save()
                raise InterruptedRunError(
                    f"stopped after step {self.step} of epoch {self.epoch + 1}; go on with --resume"
                )

    def _backward(self, batches: Iterator[Batch]) -> tuple[tuple[Tensor, Tensor], bool]:
        """Gradients of one optimizer step, of all its micro-batches; the last images and targets; was it looked at?"""
        recipe, step = self.recipe, Step(self.step + 1)
        images = targets = torch.empty(0)
        self.model.train()
        for micro in range(recipe.accumulate):
            batch = next(batches)
            number = (self.epoch * self.steps_per_epoch + self.step) * recipe.accumulate + micro
            seed = int.from_bytes(digest(recipe.seed, number, self.fabric.global_rank)[:4], "little")
            images, targets = mix(
                batch.images, batch.labels, len(self.data.classes), recipe.augmentation, self.epoch, seed
            )
            images = erased(images, batch.indices, recipe.augmentation.erasing, recipe.seed, self.epoch)
            with self._synchronised(micro == recipe.accumulate - 1):
                loss = self._loss_of(self.model, images, targets) / recipe.accumulate
                self.fabric.backward(loss)
            step.losses.append(loss.detach())
            step.indices += batch.indices.tolist()
        if not scales_gradients(self.fabric):  # a scaler expects infinities, and handles them itself
            step.add_gradients(self.network)
        self.look.note(step)
        is_due = self.look.is_due(step.number, self.steps_per_epoch)
        if is_due:
            self._look(images)
        return (images, targets), is_due

    def _look(self, images: Tensor) -> None:
        """Stop if a step since the last look broke, before anything of it is kept; `images` are those of the last."""
        broken = self.look.look()
        if broken is not None:
            raise NonFiniteError(explain(self, broken, images))

    def _loss_of(self, model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        logits = model(images, steps=True) if self.loss.needs_steps else model(images)[None]
        return self.loss(logits.float(), targets)

    def _trial_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """For policies that try slopes: of the network itself, since what is around it expects backward passes."""
        with self.fabric.autocast():
            return self._loss_of(self.network, *batch)

    def _finish_epoch(self, curves: Curves | None) -> dict[str, Any]:
        result = evaluate(self.model, self.test_loader, len(self.data.classes), self.fabric.device)
        require_finite(self, result["loss"])
        trained = self.step > 0
        images = self.steps_per_epoch * self.recipe.batch_size
        metrics = {
            "epoch": self.epoch,
            "train_loss": self._mean_over_ranks(self.look.loss_sum / self.steps_per_epoch) if trained else None,
            **{f"test_{name}": result[name] for name in ("loss", "top1", "top5")},
            "lr": self.optimizer.param_groups[0]["lr"] if trained else None,
            "seconds": self.epoch_seconds,
            "images_per_second": images / self.epoch_seconds if trained else None,
        }
        self.observer.write(self.epoch, is_writer=self.fabric.is_global_zero)
        improved = metrics["test_top1"] > self.best
        self.best = max(self.best, metrics["test_top1"])
        if self.fabric.is_global_zero:
            metrics["firing_rates"] = firing_rates(self.network, self.test_loader)
            with refusing_to_lose(self.folder):
                self.folder.append_metrics(metrics)
                signals = self.recorder.write(self.epoch)
                if improved or self.epoch == 0:
                    write_atomically(self.folder.best_weights, save(self._weights()))
                if curves is not None:
                    curves.add(metrics, signals, self.epoch * self.steps_per_epoch + self.step)
        self.display.epoch(metrics, self.policy.slopes.tolist(), self.recipe.total_epochs)
        self.display.silence(silent_from(metrics.get("firing_rates", {})))
        self.seconds += self.epoch_seconds
        self.epoch, self.step, self.epoch_seconds = self.epoch + 1, 0, 0.0
        self.look.restart()
        self.recorder.load_state_dict([])
        self._save()
        return metrics

    def _finish(self, metrics: dict[str, Any]) -> dict[str, Any]:
        summary = {
            "last_top1": metrics["test_top1"],
            "best_top1": self.best,
            "epochs": min(self.epoch, self.recipe.total_epochs),
            "parameters": sum(p.numel() for p in self.network.parameters()),
            "seconds": self.seconds + sum(stage.summary["seconds"] for stage in self.stages),
            "peak_memory_mb": peak_memory_mb(),
            "silent_from": silent_from(metrics.get("firing_rates", {})),
            "policy": self.recipe.policy.kind,
            "seed": self.recipe.seed,
            "finished": True,
        }
        if self.stages:
            summary["stages"] = [stage.told() for stage in self.stages]
        if self.fabric.is_global_zero:
            summary |= extras(self.network, self.recipe.observe, self.data, self.recipe.batch_size)
            with refusing_to_lose(self.folder):
                write_atomically(self.folder.weights, save(self._weights()))
                summary["weights"] = self.folder.digests()
                self.folder.write_summary(summary)
        self.policy.remove()
        self.observer.remove()
        self.display.say(
            f"finished: top-1 {summary['last_top1']:.2f} % (best epoch {self.best:.2f} %), "
            f"{summary['seconds']:.0f} s of training; everything is in {self.folder.path}"
        )
        return summary

    def _first_weights(self) -> None:
        """Of the stage before, or of a file; with thresholds from data where the recipe says so."""
        recipe = self.recipe
        load_first_weights(self.network, recipe, self.first)
        if recipe.balance is not None:
            told = recipe.balance.model_dump(exclude={"images"})
            with blaming("balance"):
                balance_thresholds(self.network, first_images(self.data, recipe.balance.images), **told)

    def _save(self) -> None:
        """Write a checkpoint; a collective call."""
        state = state_of(self)
        if self.fabric.is_global_zero:
            with refusing_to_lose(self.folder):
                save_checkpoint(self.folder.checkpoints, self.epoch * self.steps_per_epoch + self.step, state)

    def _start_from(self, state: dict[str, Any] | None) -> None:
        """From the beginning, or where a checkpoint stands."""
        if self.fabric.global_rank > 0:  # the weights are drawn alike, what comes after them is not
            seed_generators(self.recipe.seed, self.fabric.global_rank)
        if state is not None:
            restore(self, state)
        if self.fabric.is_global_zero:
            self.folder.cut_after(self.epoch)

    def _build_loaders(self) -> None:
        recipe, ranks = self.recipe, self.fabric.world_size
        share = ranks * recipe.accumulate
        if recipe.batch_size % share:
            raise RunError(f"batch_size {recipe.batch_size} must be a multiple of ranks x accumulate = {share}")
        rank: dict[str, Any] = {"rank": self.fabric.global_rank, "ranks": ranks, "workers": recipe.workers}
        transform = train_transform(recipe.augmentation, self.data)
        options: dict[str, Any] = {"seed": recipe.seed, "shuffle": True, "drop_last": True}
        self.train_loader = Loader(self.data.train, transform, recipe.batch_size // share, **options, **rank)
        self.test_loader = Loader(self.data.test, test_transform(self.data), max(1, recipe.batch_size // ranks), **rank)
        whole = len(self.train_loader) // recipe.accumulate
        if whole == 0:
            raise RunError(f"{len(self.data.train)} training images do not fill one step of {recipe.batch_size}")
        self.steps_per_epoch = min(whole, recipe.max_steps_per_epoch or whole)

    def _weights(self) -> dict[str, Tensor]:
        # Copies: safetensors refuses what nodes share, such as a constant of a group.
        return {name: value.detach().cpu().clone().contiguous() for name, value in self.network.state_dict().items()}

    def _synchronised(self, last: bool) -> Any:
        """Gradients travel between ranks with the last micro-batch only."""
        return nullcontext() if last or self.fabric.world_size == 1 else self.fabric.no_backward_sync(self.model)

    def _all_agree(self, stop: StopRequest, is_seen: bool) -> bool:
        """Ranks must stop at the same step, or the others would wait for ever; they ask each other when they look."""
        alone = self.fabric.world_size == 1
        return stop.asked if alone else is_seen and self._mean_over_ranks(float(stop.asked)) > 0

    def _mean_over_ranks(self, value: float) -> float:
        if self.fabric.world_size == 1:
            return value
        mean: Any = self.fabric.all_reduce(torch.tensor(value, device=self.fabric.device), reduce_op="mean")
        return mean.item()
