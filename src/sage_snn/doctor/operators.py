"""Every operator once, by the path that it takes on a device, beside its twin in plain torch there.

T time steps, B batch, C channels, H heads, N tokens, K head width.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import Path, path, switched_off
from ..kernels.attention import attention_statistics
from ..kernels.bits import mark_spikes, pack_bits, unpack_bits
from ..kernels.events import event_conv, event_map
from ..kernels.lif import lif
from ..kernels.membrane import Membrane
from ..kernels.mix import mix
from ..kernels.norm import batch_norm
from ..kernels.norm_lif import batch_norm_lif
from ..kernels.path import why_twin
from ..kernels.pool import spike_pool

TOLERANCE = 1e-4  # of gradients and statistics, relative to the largest value
FLIPS = 1e-4  # share of spikes that may differ: a membrane within a rounding of its threshold fires or not
T, B, C, H, N, K = 4, 8, 64, 4, 64, 16

Outcome = tuple[Tensor, ...]  # spikes first, or empty; then what is compared by size


@dataclass(frozen=True)
class Diagnosis:
    """One operator on one device."""

    operator: str
    device: str
    path: Path
    reason: str | None  # why it is the twin
    flips: float  # share of spikes that differ from the twin's
    error: float  # the largest difference of anything else, relative to the largest value
    milliseconds: float
    twin_milliseconds: float

    @property
    def is_right(self) -> bool:
        """Does it agree with the twin?"""
        return self.flips <= FLIPS and self.error <= TOLERANCE  # False for NaN


def diagnose(device: torch.device) -> Iterator[Diagnosis]:
    """A diagnosis per operator."""
    for name, prepare in OPERATORS.items():
        if name in ON_CPUS and device.type != "cpu":
            continue
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        run, probe = prepare(draw), torch.empty(1, device=device)
        outcome, seconds = _timed(run, device)
        with switched_off():
            expected, twin_seconds = _timed(run, device)
        yield Diagnosis(
            *(name, str(device), path(probe), why_twin(probe), *_differences(outcome, expected)),
            *(seconds * 1e3, twin_seconds * 1e3),
        )


def _timed(run: Callable[[], Outcome], device: torch.device) -> tuple[Outcome, float]:
    """What it gives, and the seconds of the fastest of three calls after one that may compile."""
    outcome, seconds = run(), list[float]()
    for _ in range(3):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return outcome, min(seconds)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _differences(outcome: Outcome, expected: Outcome) -> tuple[float, float]:
    spikes, *values = outcome
    wanted, *others = expected
    flips = (spikes != wanted).double().mean().item() if spikes.numel() else 0.0
    errors = [_error(value, other) for value, other in zip(values, others, strict=True)]
    return flips, max(errors, default=0.0)


def _error(value: Tensor, expected: Tensor) -> float:
    value, expected = value.detach().cpu().double(), expected.detach().cpu().double()
    largest = expected.abs().max().clamp_min(1e-30)
    return ((value - expected).abs().max() / largest).item()


Draw = Callable[..., Tensor]


def _lif(draw: Draw) -> Callable[[], Outcome]:
    currents, grad = draw(T, B, C, N).requires_grad_(), draw(T, B, C, N)
    rest, slope = torch.zeros(B, C, N, device=grad.device), torch.tensor(4.0, device=grad.device)

    def run() -> Outcome:
        spikes, last = lif(currents, rest, slope, Membrane())
        return spikes, last, *torch.autograd.grad(spikes, [currents], grad)

    return run


def _norm_lif(draw: Draw) -> Callable[[], Outcome]:
    x, grad, norm = _last(draw(T * B, C, N)).requires_grad_(), draw(T * B, C, N), torch.nn.BatchNorm1d(C)
    norm.to(grad.device)
    slope = torch.tensor(4.0, device=grad.device)

    def run() -> Outcome:
        spikes = batch_norm_lif(norm, x, slope, Membrane(), T)
        return spikes, *torch.autograd.grad(spikes, [x, *norm.parameters()], grad)

    return run


def _norm(draw: Draw) -> Callable[[], Outcome]:
    x, grad, norm = _last(draw(T * B, C, N)).requires_grad_(), draw(T * B, C, N), torch.nn.BatchNorm1d(C)
    norm.to(grad.device)

    def run() -> Outcome:
        normal = batch_norm(norm, x)
        return torch.empty(0), normal, *torch.autograd.grad(normal, [x, *norm.parameters()], grad)

    return run


def _attention(draw: Draw) -> Callable[[], Outcome]:
    q, k = ((draw(T, B, H, N, K) > 1).float() for _ in range(2))
    return lambda: (torch.empty(0), *attention_statistics(q, k, 0.125, [0.5, 1.0]))


def _bits(draw: Draw) -> Callable[[], Outcome]:
    spikes = (draw(T, B, C, N) > 1).float()

    def run() -> Outcome:
        mark_spikes(spikes)  # on a device nobody looks at the values
        packed = pack_bits(spikes)
        assert packed is not None, "zeros and ones can be packed"
        return (unpack_bits(packed, tuple(spikes.shape)),)

    return run


def _pool(draw: Draw) -> Callable[[], Outcome]:
    x = (draw(B, C, 16, 16) > 1).float().contiguous(memory_format=torch.channels_last).requires_grad_()
    grad = draw(B, C, 8, 8)

    def run() -> Outcome:
        pooled = spike_pool(x)
        return pooled, *torch.autograd.grad(pooled, [x], grad)

    return run


def _event_conv(draw: Draw) -> Callable[[], Outcome]:
    x = _last((draw(B, C, 16, 16) > 1.3).float()).requires_grad_()
    weight, grad = draw(C, C, 3, 3).requires_grad_(), _last(draw(B, C, 16, 16))

    def run() -> Outcome:
        currents = event_conv(x, weight)
        return torch.empty(0), currents, *torch.autograd.grad(currents, [x, weight], grad)

    return run


def _event_map(draw: Draw) -> Callable[[], Outcome]:
    x, weight, grad = (draw(B, N, C) > 1.3).float().requires_grad_(), draw(C, C).requires_grad_(), draw(B, N, C)

    def run() -> Outcome:
        currents = event_map(x, weight)
        return torch.empty(0), currents, *torch.autograd.grad(currents, [x, weight], grad)

    return run


def _mix(draw: Draw) -> Callable[[], Outcome]:
    q, k, v = ((draw(T, B, N, H * K) > 1.3).float().transpose(2, 3).requires_grad_() for _ in range(3))
    grad = draw(T, B, N, H * K).transpose(2, 3)

    def run() -> Outcome:
        mixed = mix(q, k, v, H, 0.125)
        return mixed, *torch.autograd.grad(mixed, [q, k, v], grad)

    return run


def _last(x: Tensor) -> Tensor:
    """Channels last in memory, as our networks have them."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


OPERATORS: dict[str, Callable[[Draw], Callable[[], Outcome]]] = {
    "LIF": _lif,
    "BatchNorm and LIF": _norm_lif,
    "BatchNorm": _norm,
    "attention statistic": _attention,
    "spikes as bits": _bits,
    "pooling": _pool,
    "event-driven convolution": _event_conv,
    "event-driven map": _event_map,
    "products of attention": _mix,
}
ON_CPUS = ("event-driven convolution", "event-driven map", "products of attention")
