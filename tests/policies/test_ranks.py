"""Two processes on different data: the same slopes everywhere, and the readings of the joint batch."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from sage_snn import SAGE, DeadZoneTanh, Learnable

pytestmark = pytest.mark.slow
STEPS, RANKS = 6, 2


def loss_of(model, batch):
    return model(batch).square().mean()


def train_with_sage(model, batches):
    sage = SAGE(model, warmup_steps=1, law=DeadZoneTanh(dead_zone=0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    slopes = []
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        sage.step()
        slopes.append(sage.slopes)
    sage.remove()
    return torch.stack(slopes), sage.state_dict()["blocks"]


def read_once(model, batch):
    with SAGE(model, warmup_steps=0) as sage:
        loss_of(model, batch).backward()
        sage.step()
        return torch.stack(sage.head_entropy)


def slope_gradient(model, batches):
    with Learnable(model, per="block") as policy:
        for batch in batches:  # accumulated: what was averaged before must stay so
            loss_of(model, batch).backward()
        return torch.stack([p.grad for p in policy.parameters()])


def work(rank, folder, model, batches):
    """What one process does with its half of each batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    model = copy.deepcopy(model)  # what a process is sent shares its memory with the sender
    mine = [batch.chunk(RANKS)[rank] for batch in batches]
    found = {"entropy": read_once(model, mine[0]), "gradient": slope_gradient(model, mine[:2])}
    model.zero_grad()
    wrapped = DistributedDataParallel(model.train())  # BatchNorm in training mode from here on
    found["slopes"], found["blocks"] = train_with_sage(wrapped, mine)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def data():
    return torch.randn(STEPS, 8, 3, 16, 16, generator=torch.Generator().manual_seed(4)).unbind()


@pytest.fixture
def model(ours, settle, data):
    return settle(ours(), data[0])


@pytest.fixture
def found(model, data, tmp_path):
    """Results of both ranks."""
    mp.spawn(work, (str(tmp_path), model, data), nprocs=RANKS)
    return [torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)]


def test_two_ranks_agree_with_each_other_and_with_the_joint_batch(found, model, data):
    first, second = found
    assert torch.equal(first["slopes"], second["slopes"])
    assert len(set(first["slopes"].flatten().tolist())) > STEPS
    assert first["blocks"] == ["blocks.0.attention", "blocks.1.attention"]  # a state saved there loads without DDP

    assert torch.equal(first["entropy"], second["entropy"])
    assert torch.allclose(first["entropy"], read_once(model, data[0]), rtol=0, atol=1e-6)

    assert torch.equal(first["gradient"], second["gradient"])
    assert torch.allclose(first["gradient"], slope_gradient(model, data[:2]), rtol=1e-4, atol=0)
    assert first["gradient"].all()


def step_without_a_pass(rank, folder, model, batch):
    """The second process forgets its forward pass."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    model = copy.deepcopy(model)
    sage = SAGE(model, warmup_steps=0)
    if rank == 0:
        model(batch)
    try:
        sage.step()
    except RuntimeError as error:
        (folder / f"{rank}.txt").write_text(str(error))
    dist.barrier()  # nobody waits for the other in a collective call of the policy
    dist.destroy_process_group()


def test_a_rank_that_read_nothing_stops_all_of_them(ours, images, tmp_path):
    mp.spawn(step_without_a_pass, args=(tmp_path, ours(), images), nprocs=RANKS)
    told = [(tmp_path / f"{rank}.txt").read_text() for rank in range(RANKS)]
    assert "another rank called step() without a forward pass" in told[0]
    assert "step() before any forward pass" in told[1]
