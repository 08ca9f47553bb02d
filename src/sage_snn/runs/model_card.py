"""What is told of a run's network to people who find it: a model card as the Hugging Face hub shows it."""

import re
from typing import Any

import yaml

from ..recipes.fields import flat
from ..screen import shown
from .energy import AC_PJ, MAC_PJ
from .run import Run, Which

_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#!|~&$@:]|(?<![\w.])[-+])")
_LIBRARY = "sage-snn"


def model_card(run: Run, summary: dict[str, Any], which: Which = "last") -> str:
    """Markdown with the hub's header; every text that comes from the run is escaped."""
    parts = [_title(run), _use(run), _accuracy(run, summary, which), _training(run), _energy(summary), _recipe(run)]
    return f"---\n{_header(run)}---\n\n" + "\n".join(part for part in parts if part)


def escaped(text: object) -> str:
    """A text on one line in which no character means anything to Markdown or HTML."""
    return _MARKUP.sub(r"\\\1", " ".join(shown(text).split()))


def _header(run: Run) -> str:
    tags = ["spiking-neural-network", "surrogate-gradient", f"policy-{run.recipe.policy.kind}"]
    told = {"library_name": _LIBRARY, "pipeline_tag": "image-classification", "tags": tags, "metrics": ["accuracy"]}
    return yaml.safe_dump(told, sort_keys=False)


def _title(run: Run) -> str:
    model = run.recipe.model
    network = getattr(model, "title", model.name)
    return (
        f"# {escaped(run.recipe.name)}\n\n"
        f"{escaped(network)} with T = {model.time_steps}, trained on {escaped(run.recipe.data)} with the policy "
        f"{escaped(run.recipe.policy.kind)} by sage-snn.\n"
    )


def _use(run: Run) -> str:
    shape = run.shape
    size = f"{shape['channels']}, {shape['size']}, {shape['size']}"
    given, sizes = ("events", f"(T, B, {size})") if run.is_events else ("images", f"(B, {size})")
    made = (
        f"Recordings are divided into T = {run.recipe.model.time_steps} frames of equally many events, and events are "
        "counted; `classes` of `recipe.yaml`, under `applied`, are"
        if run.is_events
        else "Images are normalised with `mean` and `std` of `recipe.yaml`, under `applied`; its `classes` are"
    )
    return (
        "## Use\n\n```python\nimport sage_snn\n\n"
        'model = sage_snn.load("hub:OWNER/NAME")  # this repository, or a folder with its files\n'
        f"logits = model({given})  # {sizes} -> (B, {shape['classes']})\n```\n\n"
        f"{made} in the order of the logits. Loading executes nothing: the weights are safetensors, the recipe is "
        "checked data.\n"
    )


def _accuracy(run: Run, summary: dict[str, Any], which: Which) -> str:
    top1 = summary["last_top1"] if which == "last" else summary["best_top1"]
    images = run.folder.applied().get("test_images")
    on = f"the {images} test images" if isinstance(images, int) else "the test images"
    chosen = (
        "The weights are those of the last epoch."
        if which == "last"
        else "The weights are those of the epoch that was best on these same test images, so the figure is flattered."
    )
    extended = "" if not run.recipe.extended_from else " The run was extended after it had ended once."
    return (
        f"## Accuracy\n\nTop-1 on {on}: **{top1:.2f} %**, seed {run.recipe.seed}. {chosen}{extended}\n\n"
        "One seed is one draw: other seeds give other figures, by a point or more on small sets, and a difference "
        "to another model that is not larger than that says nothing.\n"
    )


def _training(run: Run) -> str:
    applied, recipe = run.folder.applied(), run.recipe
    versions = applied.get("versions") or {}
    rows = {
        "data": recipe.data,
        "training images": applied.get("train_images"),
        "epochs": recipe.total_epochs,
        "batch size": recipe.batch_size,
        "parameters": applied.get("parameters"),
        "precision": applied.get("precision"),
        "device": applied.get("device"),
        "processes": applied.get("ranks"),
        "started from": None if recipe.init_from is None else recipe.init_from.replace("\\", "/").rpartition("/")[2],
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()) or None,
        "commit": applied.get("commit"),
    }
    lines = [f"| {name} | {escaped(value)} |" for name, value in rows.items() if value is not None]
    steps = applied.get("augmentations")
    seen = [f"- {escaped(line)}" for line in steps] if isinstance(steps, list) else []
    told = "\n\nWhat was done to the training images:\n\n" + "\n".join(seen) if seen else ""
    return "## Training\n\n| | |\n|---|---|\n" + "\n".join(lines) + told + "\n"


def _energy(summary: dict[str, Any]) -> str:
    activity = summary.get("activity")
    needed = ("images", "sops", "macs", "energy_uj", "ann_energy_uj", "firing_rate")
    if not isinstance(activity, dict) or not all(isinstance(activity.get(name), int | float) for name in needed):
        return ""
    return (
        f"## Energy\n\nPer image, on {activity['images']:.0f} test images: {activity['sops']:,.0f} synaptic "
        f"operations, {activity['macs']:,.0f} MACs, mean firing rate {activity['firing_rate']:.1%}; "
        f"{activity['energy_uj']:.4g} µJ, "
        f"{activity['ann_energy_uj']:.4g} µJ as an ANN of the same layers. An estimate, with {MAC_PJ} pJ per MAC and "
        f"{AC_PJ} pJ per AC (Horowitz, ISSCC 2014), of arithmetic only: no memory access, no hardware was measured.\n"
    )


def _recipe(run: Run) -> str:
    fields = run.recipe.model_dump(mode="json", exclude={"about", "data_dir", "classes_file", "init_from"})
    lines = [f"| {escaped(key)} | {escaped(value)} |" for key, value in flat(fields)]
    head = "## Recipe\n\n`recipe.yaml` trains it again: `sage-snn train recipe.yaml`.\n\n| field | value |\n|---|---|\n"
    return head + "\n".join(lines) + "\n"
