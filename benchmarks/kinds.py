"""The kinds of input that `fuzz.py` mutates: real files and commands, and what is done with each."""

import contextlib
import hashlib
import io
import os
import pickle
import random
import sys
from collections.abc import Callable
from pathlib import Path

from mutations import WORDS, Evil, mutated
from samples import EVENTS, damaged, leads_out, write_idx, write_recordings

TINY = {
    "epochs": 1,
    "warmup_epochs": 0,
    "max_steps_per_epoch": 1,
    "train_images": 100,
    "test_images": 20,
    "batch_size": 8,
    "model.depth": 2,
    "model.dim": 16,
    "model.heads": 2,
    "model.time_steps": 1,
    "threads": 1,
}
STUDY = (
    "recipe: digits\naxes: {policy.kind: [fixed, sage], seed: [1, 2]}\nvariants: [{label: a, settings: {lr: 0.1}}]\n"
)

# Words of commands and their options; demo, bench, `study run` and `study report` are left out, which take minutes.
COMMANDS = ("recipes", "eval", "check", "export", "report", "train", "predict", "inspect", "push", "doctor")
OPTIONS = (
    *(
        "digits",
        "--diff",
        "--out",
        "--to",
        "onnx",
        "--set",
        "lr=1",
        "--json",
        "--policy",
        "--seed",
        "nowhere",
        "--help",
    ),
    *(
        "study",
        "status",
        "list",
        "table1-small",
        "shipped:digits",
        "hub:no/where",
        "a.png",
        "--weights",
        "best",
        "int8",
    ),
    *("--weights-as", "--data-dir", "--top", "3", "--to-folder", "--private", "--compile", "sm_90", "--resume"),
)
TYPED = (
    *("recipes", "recipes digits", "recipes --diff digits cifar10", "study list", "study status table1-small"),
    *("train digits --policy sage --seed 1", "eval shipped:digits --weights last --json", "check digits --set lr=1"),
    *("predict shipped:digits a.png --top 3", "inspect shipped:digits --json", "export shipped:digits --to onnx"),
    *("push shipped:digits no/where", "push shipped:digits --to-folder out", "doctor", "doctor --compile gfx0"),
)
BAD = (
    *(
        ["--set", "epochs=no"],
        ["--set", "nowhere=1"],
        ["--set", "model.depth=-1"],
        ["--policy", "best"],
        ["--seed", "x"],
    ),
    *(["--init-from", "nowhere"], ["--set", "data=cifar10", "--data-dir", "nowhere"], ["--time-steps", "0"]),
)

Action = Callable[[], object]


class Fuzzer:
    """The real files that are mutated, and what is done with each kind of them.

    A kind writes the input of a case and gives what is to be done with it, so that it can be looked at in between.
    """

    def __init__(self, folder: Path) -> None:
        import numpy as np
        import torch
        from PIL import Image

        from sage_snn.recipes import load_recipe
        from sage_snn.recipes.fields import flat
        from sage_snn.training import train

        self.folder, self.run = folder, folder / "run"
        if not (self.run / "summary.json").is_file():
            train("digits", self.run, settings=TINY, quiet=True, resume=self.run.exists())
        images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
        np.savez(folder / "arrays.npz", images=images, labels=np.arange(20) % 4)
        Image.fromarray(images[0]).save(folder / "picture.png")
        torch.save({"weights": torch.zeros(3)}, folder / "weights.pth")
        write_idx(folder / "idx")
        write_recordings(folder / "events")
        self.keys = list(dict(flat(load_recipe("digits").all_fields())))
        # The dear ones, networks that are built and whole commands, have smaller shares.
        self.kinds: dict[Callable[[Path, random.Random], Action], int] = {
            self.recipe: 160,
            self.study: 160,
            self.weights: 150,
            self.arrays: 150,
            self.idx: 60,
            self.events: 60,
            self.setting: 120,
            self.checkpoint: 70,
            self.picture: 100,
            self.run_file: 20,
            self.command: 8,
            self.network: 2,
        }

    def case(self, number: int, scratch: Path) -> Action:
        """Write the input of case `number` into an empty folder; what is to be done with it."""
        draw, kind = self._drawn(number)
        return kind(scratch, draw)

    def kind(self, number: int) -> str:
        """What is mutated in case `number`."""
        return self._drawn(number)[1].__name__

    def _drawn(self, number: int) -> tuple[random.Random, Callable[[Path, random.Random], Action]]:
        draw = random.Random(number)
        return draw, draw.choices(list(self.kinds), list(self.kinds.values()))[0]

    def recipe(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.recipes import load_recipe, shipped_recipes
        from sage_snn.recipes.recipe import SHIPPED

        text = (SHIPPED / f"{draw.choice(shipped_recipes())}.yaml").read_bytes()
        (scratch / "mine.yaml").write_bytes(mutated(text, draw))
        return lambda: load_recipe(scratch / "mine.yaml").identity()

    def setting(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.recipes import load_recipe, parse_settings

        typed = [f"{draw.choice(self.keys)}={draw.choice(WORDS)}" for _ in range(draw.randrange(1, 4))]
        (scratch / "typed").write_text(repr(typed))
        return lambda: load_recipe("digits", parse_settings(typed)).identity()

    def study(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.studies.status import status, status_table
        from sage_snn.studies.study import load_study

        def shown() -> None:
            study = load_study(scratch / "study.yaml")
            if study.count() < 100:
                status_table(study, status(study, scratch), scratch)

        (scratch / "study.yaml").write_bytes(mutated(STUDY.encode(), draw))
        return shown

    def run_file(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.studies.results import load_runs, table

        def shown() -> None:
            runs = load_runs([damaged])
            table(runs)
            runs[0].signals()

        damaged = self._damaged_run(scratch, draw)
        return shown

    def network(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.runs import open_run

        def built() -> None:
            opened = open_run(damaged)
            opened.network()
            opened.unfinished()
            _ = opened.policy_state

        damaged = self._damaged_run(scratch, draw)
        return built

    def _damaged_run(self, scratch: Path, draw: random.Random) -> Path:
        return damaged(self.run, scratch / "run", draw)

    def checkpoint(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.runs.checkpoint import load_checkpoint

        content = next(iter((self.run / "checkpoints").iterdir())).read_bytes()
        content = pickle.dumps({"version": 2, "state": Evil()}) if draw.random() < 0.1 else content
        content = mutated(content, draw)
        (scratch / f"step-000000001-{hashlib.sha256(content).hexdigest()[:16]}.pt").write_bytes(content)
        return lambda: load_checkpoint(scratch)

    def weights(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.runs.weights import read_weights

        source = draw.choice([self.run / "model.safetensors", self.folder / "weights.pth"])
        (scratch / source.name).write_bytes(mutated(source.read_bytes(), draw))
        return lambda: read_weights(scratch / source.name)

    def arrays(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.data import load_data

        (scratch / "arrays.npz").write_bytes(mutated((self.folder / "arrays.npz").read_bytes(), draw))
        return lambda: load_data("arrays", scratch / "arrays.npz")

    def idx(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn.data import load_data

        folder = damaged(self.folder / "idx", scratch / "idx", draw)
        return lambda: load_data("fashion-mnist", folder)

    def events(self, scratch: Path, draw: random.Random) -> Action:
        """As they unpack, or as they were made ready; and lists with paths of what is the user's."""
        from sage_snn.data import load_data

        def read() -> None:
            with contextlib.redirect_stderr(io.StringIO()):
                data = load_data(name, folder, time_steps=2)
            for held in (data.train, data.test):
                for index in range(len(held)):
                    held.item(index)

        name, state = draw.choice(EVENTS), draw.choice(("unpacked", "ready"))
        folder = damaged(self.folder / "events" / name / state, scratch / "events", draw)
        if name == "dvs128-gesture" and state == "unpacked" and draw.random() < 0.3:
            leads_out(folder / "DvsGesture", scratch, draw)
        return read

    def picture(self, scratch: Path, draw: random.Random) -> Action:
        import torch

        from sage_snn.data import Images

        (scratch / "a.png").write_bytes(mutated((self.folder / "picture.png").read_bytes(), draw))
        return lambda: Images([scratch / "a.png"], torch.tensor([0])).picture(0)

    def command(self, scratch: Path, draw: random.Random) -> Action:
        from sage_snn import cli

        def called() -> None:
            sys.argv, said = ["sage-snn", *typed], io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                try:
                    cli.main()
                except SystemExit as stop:
                    stop.said, stop.typed = said.getvalue(), typed
                    raise

        os.environ["HF_HUB_OFFLINE"] = "1"  # nothing leaves the machine
        inside = [word for word in WORDS if "/" not in word]  # what is written stays in the folder of the case
        words = [*COMMANDS, *OPTIONS, *OPTIONS, *inside]
        typed = [draw.choice(words) for _ in range(draw.randrange(1, 6))]
        if draw.random() < 0.7:  # a whole command, of which some words are others
            typed = draw.choice(TYPED).split()
            for _ in range(draw.randrange(3)):
                at = draw.randrange(len(typed) + 1)
                typed[at : at + draw.randrange(2)] = [draw.choice(words)] * draw.randrange(2)
        if "train" in typed:  # which must not succeed: whatever is before it, one of these is wrong
            typed += draw.choice(BAD)
        if "a.png" in typed:
            (scratch / "a.png").write_bytes(mutated((self.folder / "picture.png").read_bytes(), draw))
        (scratch / "typed").write_text(repr(typed))
        return called
