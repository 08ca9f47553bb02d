"""Two processes on different data try slopes together: the same slopes everywhere, those of the joint batches."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from sage_snn import DGS, Aligned

pytestmark = pytest.mark.slow
RANKS = 2
LABELS = torch.tensor([0, 1, 2, 3] * 2)
POLICIES = {
    "aligned": lambda model, loss: Aligned(model, loss, every=1, length=0.1),
    "dgs": lambda model, loss: DGS(model, loss, every=1, batches=1, length=0.1),
}


def loss_of(model):
    return lambda batch: F.cross_entropy(model(batch[0]), batch[1])


def tried(model, policy, pairs):
    """Slopes after trials whose gradients and losses come from two batches."""
    slopes = []
    for one, other in pairs:
        policy.step(one, other)
        slopes.append(policy.slopes)
    policy.remove()
    return torch.stack(slopes)


def trained(model, attach, batches):
    """Slopes and last weights of a training in DDP, whose wrapped model the loss calls."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = loss_of(model)
    policy, slopes = attach(model, loss), []
    for batch in batches:
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()
        policy.step(batch)
        slopes.append(policy.slopes)
    policy.remove()
    return torch.stack(slopes), torch.cat([p.detach().flatten() for p in model.parameters()])


def work(rank, folder, model, batches):
    """What one process does with its half of each batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    mine = [(images.chunk(RANKS)[rank], LABELS.chunk(RANKS)[rank]) for images in batches]
    found = {}
    for name, attach in POLICIES.items():
        network = copy.deepcopy(model)  # what a process is sent shares its memory with the sender
        found[name] = tried(network, attach(network, loss_of(network)), zip(mine, mine[::-1], strict=True))
        wrapped = DistributedDataParallel(network.train())
        found[f"{name} in DDP"], found[f"weights of {name}"] = trained(wrapped, attach, mine)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_agree_with_each_other_and_with_the_joint_batch(ours, settle, tmp_path):
    batches = torch.randn(4, 8, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).unbind()
    model = settle(ours().double(), batches[0])
    mp.spawn(work, (str(tmp_path), model, batches), nprocs=RANKS)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    assert all(torch.equal(first[name], second[name]) for name in first)
    joint = [(images, LABELS) for images in batches]
    for name, attach in POLICIES.items():
        alone = copy.deepcopy(model)
        expected = tried(alone, attach(alone, loss_of(alone)), zip(joint, joint[::-1], strict=True))
        assert torch.allclose(first[name], expected, rtol=0, atol=1e-9)
        assert len(set(first[f"{name} in DDP"].flatten().tolist())) > 1
