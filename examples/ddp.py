"""SAGE under DistributedDataParallel: every rank has the same slopes. Two processes on this machine, or torchrun."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from sage_snn import SAGE
from sage_snn.models import spikformer


def work(rank: int, ranks: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = spikformer(depth=2, dim=32, heads=4, time_steps=2, image_size=16)
    sage = SAGE(model, warmup_steps=2)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)  # every rank sees its own data
    for _ in range(6):
        loss = F.cross_entropy(wrapped(torch.randn(8, 3, 16, 16)), torch.randint(0, 10, (8,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sage.step()  # a collective call: all ranks make it
    gathered = [torch.empty_like(sage.slopes) for _ in range(ranks)]
    dist.all_gather(gathered, sage.slopes)
    assert all(torch.equal(slopes, gathered[0]) for slopes in gathered)
    if rank == 0:
        print(f"{ranks} ranks, the same slopes on each: {sage.slopes.tolist()}")
    dist.destroy_process_group()


def main() -> None:
    if "RANK" in os.environ:  # torchrun --nproc-per-node 2 examples/ddp.py
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, args=(2, f"file://{folder}/meeting"), nprocs=2)


if __name__ == "__main__":
    main()
