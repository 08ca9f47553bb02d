"""Who reads a docstring learns every argument: checked on the source, without importing it."""

import re
from pathlib import Path

import griffe
import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = griffe.load("sage_snn", search_paths=[SOURCE], resolve_aliases=True)
ROOMS = ("", "models", "losses", "conversion", "deploy", "integrations.lightning", "integrations.transformers")


def public(room):
    """Classes and functions of a room: those in its `__all__`, or else those that it defines."""
    module = PACKAGE[room] if room else PACKAGE
    names = module.exports or [name for name, thing in module.members.items() if not (name[0] == "_" or thing.is_alias)]
    for name in map(str, names):
        thing = module[name]
        if thing.is_module:  # a file that is called like what it defines
            thing = thing.members.get(name, thing)
        thing = thing.final_target if thing.is_alias else thing
        if thing.is_class or thing.is_function:  # models.spikformer is hidden by its file; Spikformer speaks for it
            yield thing


THINGS = {thing.path: thing for room in ROOMS for thing in public(room)}


@pytest.mark.parametrize("path", sorted(THINGS))
def test_a_docstring_tells_every_argument_and_no_other(path):
    thing = THINGS[path]
    text = thing.docstring.value
    told = re.findall(r"^    ([\w*]+): \S", text.partition("Args:\n")[2], re.MULTILINE)
    arguments = [parameter.name.lstrip("*") for parameter in thing.parameters if parameter.name != "self"]
    assert {name.lstrip("*") for name in told} <= set(arguments)
    assert [name for name in arguments if name not in [t.lstrip("*") for t in told] and f"`{name}`" not in text] == []


def test_the_public_names_were_found():
    assert {"sage_snn.policies.sage.SAGE", "sage_snn.deploy.export.export", "sage_snn.losses.TET"} <= THINGS.keys()
    assert len(THINGS) > 50
