"""A finished run for others: the files that load it again and a model card, in a folder or on the Hugging Face hub."""

import json
import tempfile
from pathlib import Path, PurePath
from typing import Any

import yaml

from ..data.digest import file_digest
from .folder import RunError, write_atomically
from .model_card import model_card
from .places import FILES, hub_library, repository
from .run import Run, Which

_OWN = ("data_dir", "classes_file", "init_from")  # paths of this machine, of which others need the names at most
_NOT_TOLD = ("machine",)


def write_folder(run: Run, folder: Path, which: Which = "last") -> Path:
    """Weights, recipe, summary and model card in a folder, which may be there already if it is of such files."""
    if not run.folder.has_summary:
        raise RunError(f"{run.unfinished()}; finish it first (--resume): a card tells what a training ended with")
    names = {*FILES, "README.md", ".gitattributes"}
    if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= names):
        raise RunError(f"{folder} holds other files; choose a new folder")
    network = run.network(which)  # reads them all, so that nothing torn is published
    del network
    weights = run.folder.weights if which == "last" else run.folder.best_weights
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "model.safetensors", weights.read_bytes())
        fields, summary = _recipe(run), _summary(run, which, folder / "model.safetensors")
        text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=120)
        write_atomically(folder / "recipe.yaml", text.encode())
        write_atomically(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        write_atomically(folder / "README.md", model_card(run, summary, which).encode())
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
    return folder


def push(run: Run, name: str, which: Which = "last", *, private: bool = False) -> str:
    """Upload the same to a repository of the hub, made if it is not there; its address."""
    hub, (name, revision) = hub_library(), repository(name)
    if revision is not None:
        raise RunError("a revision is made by the hub, not chosen; write OWNER/NAME")
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_folder(run, Path(temporary) / "model", which)
        try:
            made = hub.HfApi().create_repo(name, private=private, exist_ok=True)
            hub.HfApi().upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=f"{run.recipe.name}")
        except Exception as error:  # theirs are of many kinds
            told = (str(error).splitlines() or [type(error).__name__])[0]
            raise RunError(
                f"cannot push to {name} ({told}); `hf auth login` with a token that may write there, or --to-folder"
            ) from None
    return str(made)


def _recipe(run: Run) -> dict[str, Any]:
    """As the run wrote it, without folders of this machine; weights that it started from keep their name."""
    fields = run.recipe.model_dump(mode="json")
    for name in _OWN:
        if fields.get(name) is not None:
            fields[name] = PurePath(fields[name]).name
    fields.pop("data_dir", None)
    applied = {key: value for key, value in run.folder.applied().items() if key not in _NOT_TOLD}
    return fields | {"applied": applied | {"shape": run.shape}}


def _summary(run: Run, which: Which, weights: Path) -> dict[str, Any]:
    path = run.folder.path / "summary.json"
    try:
        told = run.folder.summary() or {}
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({str(error)[:300]}); copy it again") from None
    if not isinstance(told.get(f"{which}_top1"), int | float):
        raise RunError(f"{path} lacks the accuracy {which}_top1; copy it again")
    return told | {"published": which, "weights": {weights.name: file_digest(weights)}}
