import io
import json
import tarfile

import pytest
import torch
from PIL import Image

from stringpe.data.order import Place
from stringpe.recipes.schema import Augment, Data, Loop, Model, Optim, Recipe, Text
from stringpe.training.launch import train


def encoded(shade, size=(20, 16), kind="webp"):
    file = io.BytesIO()
    Image.new("RGB", size, (shade, 255 - shade, 7)).save(file, kind, **({"lossless": True} if kind == "webp" else {}))
    return file.getvalue()


def noise(seed, size=(20, 16)):
    """A PNG of random pixels: no two parts of it are alike."""
    flat = torch.randint(256, (size[0] * size[1] * 3,), generator=torch.Generator().manual_seed(seed))
    file = io.BytesIO()
    Image.frombytes("RGB", size, bytes(flat.tolist())).save(file, "png")
    return file.getvalue()


@pytest.fixture
def shard(tmp_path):
    """Writes a tar of `count` images, one shade each; the ones in `corrupt` are cut short."""

    def write(name="train.tar", count=12, corrupt=(), labels="cls", first=0):
        path = tmp_path / name
        with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as tar:
            for i in range(first, first + count):
                picture = encoded(10 * (i % 25))
                text = str(i % 3) if labels == "cls" else json.dumps({"label": i % 3})
                content = {"webp": picture[:30] if i in corrupt else picture, labels: text.encode()}
                for kind, data in content.items():
                    entry = tarfile.TarInfo(f"{i:06d}.{kind}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
        return path

    return write


@pytest.fixture(scope="session")
def recipe3d(tmp_path_factory):
    """Detection in 3D on a few frames of the world."""
    return Recipe(
        name="toy3d",
        task="detection3d",
        model=Model(dim=32, layers=1, heads=2, patch_size=8, encoding="cayley", depth="lift+channel"),
        text=Text(dim=16, layers=1, heads=2, width=16, vocab=400, context=16),
        data=Data(
            source="scenes",
            image_size=32,
            train_size=12,
            val_size=10,
            queries=5,
            cache=str(tmp_path_factory.mktemp("frames")),
        ),
        augment=Augment(flip=True),
        optim=Optim(lr=3e-3),
        loop=Loop(batch_size=4, steps=4, eval_batch=4, save_every=4, log_every=2),
    )


@pytest.fixture(scope="session")
def run3d(recipe3d, tmp_path_factory):
    """Its run: folder and summary."""
    out = tmp_path_factory.mktemp("run") / "cayley"
    return out, train(recipe3d, out, quiet=True)


def train_in_order(batches, orders, module):
    """The first batches of training in these orders, in place of the seed's own. module: where `Order` is looked up."""

    class Given:
        def __init__(self, size, batch, seed):
            self.batch = batch

        def __call__(self, step, rank=0, world=1):
            return orders[step]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{module}.Order", Given)
        found = batches.train(0, Place())
        return [next(found) for _ in orders]
