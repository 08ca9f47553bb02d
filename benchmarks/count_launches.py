"""Launches and bytes of a training step of Spikformer-4-384 with SAGE on the Triton path, counted without a GPU.

    python benchmarks/count_launches.py               # float32
    python benchmarks/count_launches.py --half        # under autocast, in bfloat16, which is as wide as float16

CPU tensors go through Triton's interpreter, and a dispatch mode sees what torch would launch. A launch moves every
tensor it is given and every one it makes once; what it finds in a cache, or reads again, is not known here. Bytes are
told of our operators and of torch's normalisation, whose tensors grow with the batch (but for short sums): those of a
small batch are scaled to 128 images.
"""

import argparse
import inspect
import os
import pkgutil
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

os.environ |= {"SAGE_SNN_KERNELS": "interpret", "TRITON_INTERPRET": "1"}  # before Triton is imported

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor

from sage_snn import SAGE
from sage_snn.kernels import gpu
from sage_snn.models import spikformer

BATCH = 128
SILENT = {  # what launches nothing, beside views
    *("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view"),
    *("promote_types", "_record_function_enter_new", "_record_function_exit"),
}
WAITING = ("_local_scalar_dense", "is_nonzero", "equal")
NEURONS = ("lif", "norm", "batch_norm")  # in the name of what counts as a neuron or a normalisation


def moved(values: Iterable[Any]) -> int:
    """Bytes of all tensors among the values, each once; an expanded one has fewer than it shows."""
    tensors = {(t.data_ptr(), t.numel()): t for t in tree_leaves(list(values)) if isinstance(t, Tensor)}
    return sum(min(t.numel() * t.element_size(), t.untyped_storage().nbytes()) for t in tensors.values())


class Counting(TorchDispatchMode):
    """Launches and bytes by operator: of torch, or of ours with all that is launched inside them."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.bytes, self.waits = Counter[str](), Counter[str](), Counter[str]()
        self.calls, self.owners = Counter[str](), list[str]()

    def add(self, name: str, values: Iterable[Any]) -> None:
        self.launches[name] += 1
        self.bytes[name] += moved(values)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name, is_ours = func.overloadpacket.__name__, func.namespace == "sage_snn"
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if name in WAITING:
            self.waits[self.owner(name)] += 1
        elif not (is_ours or is_view or name in SILENT):
            self.add(self.owner(name), [args, kwargs, made])
        return made

    def owner(self, name: str) -> str:
        return self.owners[0] if self.owners else name

    @contextmanager
    def inside(self, name: str) -> Generator[None]:
        """What is launched in here is launched by `name`."""
        self.calls[name] += not self.owners
        self.owners.append(name)
        try:
            with nullcontext() if _get_current_dispatch_mode() else self:  # a mode is off while it handles an operator
                yield
        finally:
            self.owners.pop()

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            with self.inside(name):
                return function(*arguments, **options)

        return counted


@contextmanager
def watched(counting: Counting) -> Generator[None]:
    """Inside, our operators on the Triton path, and every kernel that the interpreter runs, are counted."""
    for found in pkgutil.iter_modules(gpu.__path__):
        module = import_module(f"{gpu.__name__}.{found.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            is_operator = hasattr(torch.ops.sage_snn, name) or name in ("statistics", "pack", "unpack")
            if is_operator and function.__module__ == module.__name__:
                setattr(module, name, counting.wrapped(f"sage_snn::{name}", function))
    interpret = GridExecutor.__call__

    def launch(self: Any, *arguments: Any, **options: Any) -> None:
        counting.add(counting.owner(self.fn.__name__), [arguments, options])
        with _disable_current_modes():
            interpret(self, *arguments, **options)

    GridExecutor.__call__ = launch
    try:
        with counting:
            yield
    finally:
        GridExecutor.__call__ = interpret


def step_of(batch: int, half: bool) -> tuple[SAGE, Callable[[Callable[[], object]], None]]:
    """A policy, and a training step that calls it by a function it is given."""
    torch.manual_seed(0)
    model = spikformer()
    sage = SAGE(model, warmup_steps=1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():  # the optimizer makes its state in its first step, which is not counted
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

    def step(policy: Callable[[], object]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        policy()

    return sage, step


def table(counting: Counting, batch: int) -> str:
    """A line per operator, ours first, the most launches first."""
    lines = [f"| operator | calls | launches | GB at batch {BATCH} |", "|---|---|---|---|"]
    gigabytes = {name: bytes * BATCH / batch / 1e9 for name, bytes in counting.bytes.items()}
    ours = [name for name in counting.launches if "sage_snn::" in name]
    rest = [name for name in counting.launches if name not in ours]
    neurons = [name for name in counting.launches if any(part in name for part in NEURONS)]
    for names in (ours, rest):
        for name in sorted(names, key=lambda name: -counting.launches[name]):
            calls = counting.calls[name] or counting.launches[name]
            told = f"{gigabytes[name]:.2f}" if name in ours or name in neurons else ""
            lines.append(f"| `{name}` | {calls} | {counting.launches[name]} | {told} |")
    launched = [sum(counting.launches[name] for name in names) for names in (ours, rest)]
    moved_by_neurons = sum(gigabytes[name] for name in neurons)
    lines += ["", f"launches: {launched[0]} of our operators, {launched[1]} of torch's"]
    lines += [
        f"neurons and BatchNorm: {moved_by_neurons:.1f} GB",
        f"waits for the device: {dict(counting.waits) or 'none'}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1, help="images of the step that is counted")
    parser.add_argument("--half", action="store_true", help="under autocast")
    arguments = parser.parse_args()
    sage, step = step_of(arguments.batch, arguments.half)
    counting = Counting()
    with watched(counting):
        step(counting.wrapped("SAGE.step", sage.step))
    print(table(counting, arguments.batch))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
