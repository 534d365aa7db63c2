"""A plain ViT in a plain loop on Tiny-ImageNet-100, to compare ours with: torch alone, and nothing of ours but --ours.

    python benchmarks/plain_vit.py tiny-imagenet-100-train.tar.gz tiny-imagenet-100-val.tar.gz --steps 180
    python benchmarks/plain_vit.py … --ours absolute                 # our ViT in the same loop
    python benchmarks/plain_vit.py … --ours absolute --zero-head     # with its classifier at zero, as it was

Learned positions, layers × dim, patches of 8, AdamW at 1.5e-3 with weight decay 0.05, clipping at 1, a warm-up and a
cosine; images are mirrored and moved by up to 8 pixels into their reflection, and mixed in pairs with --mixup. Prints
the mean loss of every 30 steps, and top-1 at the end.
"""

import argparse
import io
import math
import tarfile

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from stringpe import ViT

SIDE, PATCH, CLASSES = 64, 8, 100


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Plain(nn.Module):
    """A ViT as anyone would write it, from torch's own start."""

    def __init__(self, dim: int, layers: int, heads: int):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, PATCH, PATCH)
        self.table = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).mT + self.table
        return self.head(self.norm(self.blocks(x)).mean(1))


def read(path: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 64, 64) uint8 and labels (n,) of a tar with N.webp beside N.cls."""
    images, labels = {}, {}
    with tarfile.open(path) as tar:
        for member in tar:
            name, _, kind = member.name.rpartition(".")
            content = tar.extractfile(member).read()  # type: ignore[union-attr]
            if kind == "cls":
                labels[name] = int(content)
            else:
                with Image.open(io.BytesIO(content)) as image:
                    raw = bytearray(image.convert("RGB").tobytes())
                images[name] = torch.frombuffer(raw, dtype=torch.uint8).view(SIDE, SIDE, 3).permute(2, 0, 1)
    names = sorted(images)
    return torch.stack([images[name] for name in names]), torch.tensor([labels[name] for name in names])


def augment(image: Tensor) -> Tensor:
    """uint8 to about [−1.7, 2], mirrored and moved."""
    b, device = len(image), image.device
    wide = F.pad(image.float(), (8, 8, 8, 8), mode="reflect")
    corner, along = torch.randint(0, 17, (b, 2), device=device), torch.arange(SIDE, device=device)
    rows, columns = corner[:, :1] + along, corner[:, 1:] + along
    x = wide[torch.arange(b, device=device)[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    x = torch.where((torch.rand(b, device=device) < 0.5)[:, None, None, None], x.flip(-1), x)
    return (x / 255 - 0.45) / 0.27


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("train")
    words.add_argument("val")
    words.add_argument("--ours", metavar="ENCODING", help="our ViT with this encoding, in place of the plain one")
    words.add_argument("--zero-head", action="store_true", help="start the classifier at zero")
    words.add_argument("--dim", type=int, default=128)
    words.add_argument("--layers", type=int, default=3)
    words.add_argument("--heads", type=int, default=2)
    words.add_argument("--batch", type=int, default=256)
    words.add_argument("--steps", type=int, default=180)
    words.add_argument("--warmup", type=int, default=50)
    words.add_argument("--mixup", type=float, default=0.0)
    words.add_argument("--seed", type=int, default=0)
    how = words.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, labels = (t.to(device) for t in read(how.train))
    torch.manual_seed(how.seed)
    model: nn.Module = Plain(how.dim, how.layers, how.heads)
    if how.ours:
        sizes = {"dim": how.dim, "layers": how.layers, "num_heads": how.heads, "patch_size": PATCH}
        model = ViT(encoding=how.ours, image_size=SIDE, num_classes=CLASSES, **sizes)
    if how.zero_head:
        nn.init.zeros_(model.head.weight)  # type: ignore[arg-type,union-attr]
    model.to(device)
    matrices = [p for p in model.parameters() if p.ndim in (2, 4)]
    others = [p for p in model.parameters() if p.ndim not in (2, 4)]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimiser, rate = torch.optim.AdamW(groups, lr=1.5e-3), 1.5e-3
    torch.manual_seed(how.seed + 1)  # the same images in the same order for every model
    sums = 0.0
    for step in range(how.steps):
        factor = 0.5 * (1 + math.cos(math.pi * step / how.steps)) * min(1.0, (step + 1) / how.warmup)
        for group in optimiser.param_groups:
            group["lr"] = rate * factor
        chosen = torch.randint(len(images), (how.batch,), device=device)
        x, y = augment(images[chosen]), F.one_hot(labels[chosen], CLASSES).float()
        if how.mixup:
            share = float(torch.distributions.Beta(how.mixup, how.mixup).sample())
            x, y = x.lerp(x.roll(1, 0), 1 - share), y.lerp(y.roll(1, 0), 1 - share)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        sums += float(loss.detach())
        if (step + 1) % 30 == 0:
            print(f"steps {step - 28} to {step + 1}: loss {sums / 30:.3f}", flush=True)
            sums = 0.0
    model.eval()
    images, labels = (t.to(device) for t in read(how.val))
    with torch.no_grad():
        parts = [model((part / 255 - 0.45) / 0.27).argmax(-1) for part in images.split(500)]
    print(f"top-1 {100 * (torch.cat(parts) == labels).double().mean():.2f} %")


if __name__ == "__main__":
    main()
