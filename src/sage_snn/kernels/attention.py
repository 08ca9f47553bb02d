"""Row statistics of the attention map that spiking attention never forms, without keeping the map.

q, k: (T, B, H, N, K) with T time steps, B batch, H heads, N tokens, K head width; scores S = scale * Q K^T.
The map has T*B*H*N*N entries, so it is made in slices of at most `SLICE` entries and reduced at once.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

SLICE = 2**19  # 2 MB of float32: ten such blocks, and what malloc keeps of them, stay below 64 MB


def _scores(q: Tensor, k: Tensor, factor: float) -> Iterator[Tensor]:
    """Slices of factor * Q K^T of shape (b, H, n, N); several slices may share their images, never their rows."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k = q.flatten(0, 1), k.flatten(0, 1)
    _, heads, tokens, width = q.shape
    images = max(1, SLICE // max(1, heads * tokens * max(tokens, width)))  # q and k are converted slice by slice too
    rows = min(tokens, max(1, SLICE // max(1, heads * tokens)))
    for first in range(0, len(q), images):
        keys = k[first : first + images].to(dtype).transpose(-1, -2).mul(factor)
        for row in range(0, tokens, rows):
            yield q[first : first + images, :, row : row + rows].to(dtype) @ keys


def _entropy_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """log Z and mean score of each row, in float64, so that entropy = log Z - mean score. Overwrites x."""
    top = x.amax(-1, keepdim=True)
    weights = torch.exp(x.sub_(top))
    z = weights.sum(-1, dtype=torch.float64)
    u = x.mul_(weights).sum(-1, dtype=torch.float64)
    top = top.squeeze(-1).double()
    return top + z.log(), top + u / z


@torch.library.custom_op("sage_snn::entropy", mutates_args=())
def entropy(q: Tensor, k: Tensor, scale: float, temperature: float, whole_map: bool) -> Tensor:
    """Normalised entropy per head (H,), float64: over the keys of each query row, or over the whole map."""
    times, batch, heads, tokens, _ = q.shape
    if tokens == 1:
        return q.new_zeros(heads, dtype=torch.float64)
    total = q.new_zeros(heads, dtype=torch.float64)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        held: list[tuple[Tensor, Tensor]] = []
        for x in _scores(q, k, scale / temperature):
            log_z, mean = _entropy_rows(x)
            if not whole_map:
                total += (log_z - mean).sum((0, 2))
                continue
            held.append((log_z, mean))
            if sum(z.shape[-1] for z, _ in held) == tokens:
                log_z, mean = (torch.cat(t, dim=-1) for t in zip(*held, strict=True))
                held.clear()
                weights = torch.softmax(log_z, dim=-1)
                total += (torch.logsumexp(log_z, dim=-1) - (weights * mean).sum(-1)).sum(0)
    rows, cells = (1, tokens * tokens) if whole_map else (tokens, tokens)
    # Rounding alone leads out of [0, 1].
    return (total / (times * batch * rows * math.log(cells))).clamp(0, 1)


@torch.library.custom_op("sage_snn::gini", mutates_args=())
def gini(q: Tensor, k: Tensor, scale: float, temperature: float) -> Tensor:
    """Gini impurity 1 - sum p^2 per head (H,), float64, averaged over query rows."""
    times, batch, heads, tokens, _ = q.shape
    total = q.new_zeros(heads, dtype=torch.float64)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        for x in _scores(q, k, scale / temperature):
            weights = x.sub_(x.amax(-1, keepdim=True)).exp_()
            z = weights.sum(-1, dtype=torch.float64)
            total += (1 - weights.square_().sum(-1, dtype=torch.float64) / z.square()).sum((0, 2))
    return total / (times * batch * tokens)


@entropy.register_fake  # pyright: ignore[reportUnknownMemberType]
def _(q: Tensor, k: Tensor, scale: float, temperature: float, whole_map: bool) -> Tensor:
    return q.new_empty(q.shape[2], dtype=torch.float64)


@gini.register_fake  # pyright: ignore[reportUnknownMemberType]
def _(q: Tensor, k: Tensor, scale: float, temperature: float) -> Tensor:
    return q.new_empty(q.shape[2], dtype=torch.float64)
