"""Data-parallel training as written for torchrun: it does not depend on flow."""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--pause", type=float, default=0)
    options.add_argument("--checkpoint", required=True)
    options.add_argument("--out", required=True)
    args = options.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    print("rank %d of %d starts at step %d" % (rank, world, first), flush=True)
    for step in range(first, args.steps):
        data = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(16, 8, generator=data)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.checkpoint + ".tmp")
            os.replace(args.checkpoint + ".tmp", args.checkpoint)
            print("step %d loss %.4f" % (step, loss.item()), flush=True)
        time.sleep(args.pause)
    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
