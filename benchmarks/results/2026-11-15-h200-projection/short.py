"""The rotation on three shapes and three ViTs in eager mode, where a whole `stringpe bench` would take too long."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from stringpe.bench import models, op

device = torch.device("cuda")
found: dict[str, list[dict]] = {"op": [], "vit": []}
for shape in (op.Shape(256, 12, 256, 64), op.Shape(8, 16, 16384, 128), op.Shape(16, 12, 256, 64)):
    job = op.Job(shape, torch.bfloat16, device)
    found["op"].append(asdict(job.row("ours", op.ours, job.floor(), backend="triton")))
for row in models.vit_rows(["absolute", "ours, cayley", "ours, circulant"], device, modes=("eager",), seconds=1.5):
    found["vit"].append(asdict(row))
Path(sys.argv[1]).write_text(json.dumps(found, indent=1))
