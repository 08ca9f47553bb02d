"""Row statistics of the attention map that spiking attention never forms, without keeping the map.

q: (T, B, H, N, K), k: (T, B, H, M, K) with T time steps, B batch, H heads, N queries, M keys, K head width; scores
S = scale * Q K^T.
On a CPU spikes go to the C++ kernel, which counts coincidences as bits; where M is another number than N (keys of a
coarser map) the twin computes. On GPUs the Triton kernel takes any values and numbers of keys. For anything else, the
entropy of whole maps, and as twin of both, the map of T*B*H*N*M entries is made in slices and reduced at once.
"""

import math
from collections.abc import Iterator, Sequence
from ctypes import c_double, c_int64
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..compat import precise
from .calls import ONES, function, pointer, register_everywhere
from .path import path

SLICE = 2**19  # entries: 2 MB of float32; ten such blocks, and what malloc keeps of them, stay below 64 MB
DEVICE_SLICE = 2**24  # 64 MB: launches count there, and a batch of maps takes a few slices, not hundreds


def require_pair(q: Tensor, k: Tensor) -> None:
    """Refuse a query and a key that do not belong together; only their numbers of tokens may differ."""
    if q.ndim != 5 or k.ndim != 5 or (*q.shape[:3], q.shape[4]) != (*k.shape[:3], k.shape[4]):
        shapes = f"{tuple(q.shape)} and {tuple(k.shape)}"
        raise ValueError(f"query and key must both have the shape (T, B, H, N, K), not {shapes}; only N may differ")


def _scores(q: Tensor, k: Tensor, factor: float) -> Iterator[Tensor]:
    """Slices of factor * Q K^T of shape (b, H, n, M); several slices may share their images, never their rows."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32  # Choice: decision 9
    q, k = q.flatten(0, 1), k.flatten(0, 1)
    (_, heads, tokens, width), count = q.shape, k.shape[2]
    longest, entries = max(tokens, count), SLICE if q.device.type == "cpu" else DEVICE_SLICE
    images = max(1, entries // max(1, heads * longest * max(longest, width)))  # q and k are converted by slices too
    rows = min(tokens, max(1, entries // max(1, heads * count)))
    for first in range(0, len(q), images):
        keys = k[first : first + images].to(dtype).transpose(-1, -2).mul(factor)
        for row in range(0, tokens, rows):
            yield q[first : first + images, :, row : row + rows].to(dtype) @ keys


def _entropy_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """log Z and mean score of each row, in float64, so that entropy = log Z - mean score. Overwrites x."""
    top = x.amax(-1, keepdim=True)
    weights = torch.exp(x.sub_(top))
    exact = precise(x.device)
    z = weights.sum(-1, dtype=exact)
    u = x.mul_(weights).sum(-1, dtype=exact)
    top = top.squeeze(-1).to(exact)
    return top + z.log(), top + u / z


def entropy_twin(q: Tensor, k: Tensor, scale: float, temperature: float, whole_map: bool = False) -> Tensor:
    """Normalised entropy per head (H,), float64, in plain torch and for any values of q and k."""
    require_pair(q, k)
    (times, batch, heads, tokens, _), keys = q.shape, k.shape[3]
    if (tokens * keys if whole_map else keys) == 1:
        return q.new_zeros(heads, dtype=precise(q.device))
    total = q.new_zeros(heads, dtype=precise(q.device))
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
    rows, cells = (1, tokens * keys) if whole_map else (tokens, keys)
    # Rounding alone leads out of [0, 1].
    return (total / (times * batch * rows * math.log(cells))).clamp(0, 1)


def gini_twin(q: Tensor, k: Tensor, scale: float, temperature: float) -> Tensor:
    """Gini impurity per head (H,), float64, in plain torch and for any values of q and k."""
    require_pair(q, k)
    times, batch, heads, tokens, _ = q.shape
    total = q.new_zeros(heads, dtype=precise(q.device))
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        for x in _scores(q, k, scale / temperature):
            weights = x.sub_(x.amax(-1, keepdim=True)).exp_()
            z = weights.sum(-1, dtype=total.dtype)
            total += (1 - weights.square_().sum(-1, dtype=total.dtype) / z.square()).sum((0, 2))
    return total / (times * batch * tokens)


def row_entropy_twin(q: Tensor, k: Tensor, scale: float, temperature: float) -> Tensor:
    """Normalised entropy of each query row (T, B, H, N), float64, in plain torch and for any values of q and k."""
    require_pair(q, k)
    (*_, tokens, _), keys = q.shape, k.shape[3]
    found = q.new_zeros(q.shape[:4], dtype=precise(q.device))
    if keys == 1:
        return found
    flat, image, row = found.flatten(0, 1), 0, 0
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        for x in _scores(q, k, scale / temperature):
            log_z, mean = _entropy_rows(x)
            images, _, rows = log_z.shape
            flat[image : image + images, :, row : row + rows] = log_z - mean
            image, row = (image + images, 0) if row + rows == tokens else (image, row + rows)
    return (found / math.log(keys)).clamp_(0, 1)


def _counted(
    q: Tensor, k: Tensor, factors: Sequence[float], rows: Tensor | None = None
) -> tuple[Tensor, Tensor] | None:
    """Entropy and Gini impurity (S, H) by the C++ kernel, or None if it cannot take q and k: then the twin must.

    `rows` (T, B, H, N) gets the entropy of each row with the first factor, natural and not normalised.
    """
    times, batch, heads, tokens, width = q.shape
    takes = path(q) == path(k) == "C++" and q.dtype in ONES and k.dtype in ONES and q.shape == k.shape
    if not (takes and q.numel() and tokens > 1 and all(map(math.isfinite, factors))):
        return None
    entropies, impurities = (torch.empty(len(factors), heads, dtype=torch.float64) for _ in range(2))
    spikes = (
        (t.data_ptr(), (c_int64 * 5)(*t.stride()), t.element_size(), ONES[t.dtype]) for t in (q.detach(), k.detach())
    )
    refused = function("sage_attention")(
        *(part for parts in spikes for part in parts),
        *((c_int64 * 5)(times, batch, heads, tokens, width), (c_double * len(factors))(*factors), len(factors)),
        *(entropies.data_ptr(), impurities.data_ptr(), pointer(rows), torch.get_num_threads()),
    )
    if refused:
        return None
    count = times * batch * tokens
    # Rounding alone leads out of [0, 1].
    return entropies.div_(count).div_(math.log(tokens)).clamp_(0, 1), impurities.div_(count).clamp_(0, 1)


def _triton(q: Tensor, k: Tensor, factors: Sequence[float]) -> ModuleType | None:
    """The Triton kernels, or None if they cannot take q and k."""
    if not (path(q) == path(k) == "Triton" and all(map(math.isfinite, factors))):
        return None
    require_pair(q, k)
    from .gpu import attention  # not before a device asks for it: Triton need not be there

    return attention if attention.takes(q, k) else None


def _statistics(q: Tensor, k: Tensor, factors: Sequence[float]) -> tuple[Tensor, Tensor] | None:
    """Entropy and Gini impurity (S, H) by a kernel, or None: then the twin must."""
    kernels = _triton(q, k, factors)
    return _counted(q, k, factors) if kernels is None else kernels.statistics(q, k, factors)


def entropy(q: Tensor, k: Tensor, scale: float, temperature: float, whole_map: bool) -> Tensor:
    """Normalised entropy per head (H,), float64: over the keys of each query row, or over the whole map."""
    return torch.ops.sage_snn.entropy(q, k, scale, temperature, whole_map)


def row_entropy(q: Tensor, k: Tensor, scale: float, temperature: float) -> Tensor:
    """Normalised entropy over the keys of each query row, (T, B, H, N) float64: `entropy` is its mean per head."""
    return torch.ops.sage_snn.row_entropy(q, k, scale, temperature)


def gini(q: Tensor, k: Tensor, scale: float, temperature: float) -> Tensor:
    """Gini impurity 1 - sum p^2 per head (H,), float64, averaged over query rows."""
    return torch.ops.sage_snn.gini(q, k, scale, temperature)


def attention_statistics(q: Tensor, k: Tensor, scale: float, temperatures: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Entropy over keys and Gini impurity, each (S, H) float64, of S temperatures from one pass over the spikes."""
    return torch.ops.sage_snn.attention_statistics(q, k, scale, temperatures)


def _entropy(q: Tensor, k: Tensor, scale: float, temperature: float, whole_map: bool) -> Tensor:
    found = None if whole_map else _statistics(q, k, [scale / temperature])
    return entropy_twin(q, k, scale, temperature, whole_map) if found is None else found[0][0]


def _row_entropy(q: Tensor, k: Tensor, scale: float, temperature: float) -> Tensor:
    factor = scale / temperature
    if (kernels := _triton(q, k, [factor])) is not None:
        return kernels.row_entropy(q, k, factor)
    rows = torch.empty(q.shape[:4], dtype=torch.float64) if path(q) == "C++" else None
    if rows is None or _counted(q, k, [factor], rows) is None:
        return row_entropy_twin(q, k, scale, temperature)
    return rows.div_(math.log(q.shape[3])).clamp_(0, 1)


def _gini(q: Tensor, k: Tensor, scale: float, temperature: float) -> Tensor:
    found = _statistics(q, k, [scale / temperature])
    return gini_twin(q, k, scale, temperature) if found is None else found[1][0]


def _attention_statistics(q: Tensor, k: Tensor, scale: float, temperatures: Sequence[float]) -> tuple[Tensor, Tensor]:
    found = _statistics(q, k, [scale / temperature for temperature in temperatures])
    if found is not None:
        return found
    return (
        torch.stack([entropy_twin(q, k, scale, temperature) for temperature in temperatures]),
        torch.stack([gini_twin(q, k, scale, temperature) for temperature in temperatures]),
    )


def _fake_heads(q: Tensor, *_: Any) -> Tensor:
    return q.new_empty(q.shape[2], dtype=precise(q.device))


def _fake_rows(q: Tensor, *_: Any) -> Tensor:
    return q.new_empty(q.shape[:4], dtype=precise(q.device))


def _fake_statistics(q: Tensor, k: Tensor, scale: float, temperatures: Sequence[float]) -> tuple[Tensor, Tensor]:
    shape, exact = (len(temperatures), q.shape[2]), precise(q.device)
    return q.new_empty(shape, dtype=exact), q.new_empty(shape, dtype=exact)


_INPUTS = "Tensor q, Tensor k, float scale"
register_everywhere(f"entropy({_INPUTS}, float temperature, bool whole_map) -> Tensor", _entropy, _fake_heads)
register_everywhere(f"row_entropy({_INPUTS}, float temperature) -> Tensor", _row_entropy, _fake_rows)
register_everywhere(f"gini({_INPUTS}, float temperature) -> Tensor", _gini, _fake_heads)
register_everywhere(
    f"attention_statistics({_INPUTS}, float[] temperatures) -> (Tensor, Tensor)",
    _attention_statistics,
    _fake_statistics,
)
