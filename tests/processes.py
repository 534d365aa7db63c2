"""Two processes that talk over gloo, for tests: each calls the same function, and the results come back."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2


def in_two(function, folder, *arguments):
    """function(rank, *arguments) in two processes of one group that meet in `folder`; what they return, by rank. The
    function must stand at the top of its module, and what it returns must be something that torch.save takes."""
    mp.spawn(_call, (function, str(folder), arguments), nprocs=WORLD)
    return [torch.load(f"{folder}/result{rank}", weights_only=True) for rank in range(WORLD)]


def _call(rank, function, folder, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    torch.save(function(rank, *arguments), f"{folder}/result{rank}")
    dist.barrier()
    # Models hold on to the group and its threads, and an interpreter that ends under them aborts (pytorch#179291).
    dist.destroy_process_group()
    os._exit(0)
