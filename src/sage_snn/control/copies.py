"""The network itself, without what is wrapped around it, and copies of it."""

import copy
from typing import Any

from torch import Tensor, nn

from ..compat import WRAPPERS, memories

INSIDES = set(WRAPPERS.values())


def is_wrapper(module: nn.Module) -> bool:
    """Is this only something around another module, such as torch.compile makes?"""
    return _inside(module) is not None


def is_compiled(model: nn.Module | None) -> bool:
    """Is this, or a part of it, what torch.compile gives? A model that is compiled later does not show it."""
    return model is not None and any(type(module).__name__ == "OptimizedModule" for module in model.modules())


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside DDP, torch.compile and their like."""
    while (inside := _inside(model)) is not None:
        model = getattr(model, inside)
    return model


def copied(model: nn.Module, *beside: Any) -> tuple[Any, ...]:
    """Deep copies of a network, and of what refers to its modules, without the graph that membranes may hang on."""
    memo = {id(state): state.detach().clone() for state in _states(model) if not state.is_leaf}
    return copy.deepcopy((model, *beside), memo)


def carries_foreign_state(node: nn.Module) -> bool:
    """Does the node keep its membrane between passes in a way that ours do not know?"""
    return bool(memories(node)) and not hasattr(node, "starts")


def _inside(module: nn.Module) -> str | None:
    return next((WRAPPERS[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in WRAPPERS), None)


def _states(model: nn.Module) -> list[Tensor]:
    """What nodes carry over: SpikingJelly keeps it apart, some store it as an attribute."""
    kept = [value for m in model.modules() for value in (*memories(m).values(), *vars(m).values())]
    return [value for value in kept if isinstance(value, Tensor)]
