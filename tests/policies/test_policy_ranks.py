"""Policies beside SAGE in two processes on different data: the same values everywhere, those of the joint batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sage_snn import ASGL, DS_ATGO, MPD_AGL, SAGE, GainMatched, Learnable, LearnableConstants, Scheduled, find_layers
from sage_snn.layers import NormLIF, StatelessLIF

pytestmark = pytest.mark.slow
STEPS, RANKS, T = 4, 2, 2
POLICIES = {
    "ASGL": lambda model: ASGL(model, p=0.3),
    "DS_ATGO": DS_ATGO,
    "GainMatched": GainMatched,
    "Learnable per time step": lambda model: Learnable(model, per="time"),
    "LearnableConstants": LearnableConstants,
    "MPD_AGL": MPD_AGL,
    "Scheduled": lambda model: Scheduled(model, steps=STEPS),
    "firing": lambda model: SAGE(model, warmup_steps=0, groups=find_layers(model), source="firing"),
    "gradient": lambda model: SAGE(model, warmup_steps=0, groups=find_layers(model), source="gradient"),
    "membrane": lambda model: SAGE(model, warmup_steps=0, groups=find_layers(model), source="membrane"),
}


class Pair(nn.Module):
    """Two layers of three channels, BatchNorm in eval mode: (T, B, 3, 2, 2) -> the same."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.time_steps = T
        self.units = nn.Sequential(
            *(NormLIF(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3).eval(), StatelessLIF(step_mode="m")) for _ in range(2))
        )
        self.double()

    def forward(self, x):
        return self.units(3 * x)


def batches():
    return torch.randn(STEPS, T, 8, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).unbind()


def train(name, data, wrap=lambda model: model):
    """What the policy has after the first step and after the last, and the weights."""
    model, found = Pair(), []
    policy = POLICIES[name](model)
    wrapped = wrap(model)
    optimizer = torch.optim.SGD([*model.parameters(), *policy.parameters()], lr=0.1)
    for batch in data:
        optimizer.zero_grad()
        (wrapped(batch) - 0.3).square().sum().backward()
        optimizer.step()
        policy.step()
        constants = [p.detach().clone() for n, p in model.state_dict().items() if "threshold" in n]
        found.append([policy.slopes, *constants, *getattr(policy, "readings", [])])
    return found[0], found[-1], list(model.state_dict().values())


def work(rank, folder):
    """What one process does with its half of each batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    mine = [batch.chunk(RANKS, dim=1)[rank] for batch in batches()]
    torch.save({name: train(name, mine, DistributedDataParallel) for name in POLICIES}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of both ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", POLICIES)
def test_two_ranks_agree_with_each_other(name, found):
    for mine, theirs in zip(found[0][name], found[1][name], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("name", ["DS_ATGO", "GainMatched", "firing", "membrane"])
def test_the_first_step_reads_the_joint_batch(name, found):
    alone, _, _ = train(name, batches()[:1])
    for mine, theirs in zip(found[0][name][0], alone, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)
    assert not torch.allclose(alone[-1], torch.full_like(alone[-1], 4.0), atol=1e-4)
