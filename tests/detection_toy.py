"""Pictures of rectangles with a COCO file, and the recipe that detection tests share."""

import io
import json
import tarfile

import torch
from PIL import Image, ImageDraw

from stringpe.recipes.schema import Augment, Data, Loop, Model, Optim, Recipe, Text

COLOURS = {"red ball": (220, 30, 30), "green_box": (30, 180, 40), "blue pen": (40, 60, 220)}


def pictures(folder, split, count, seed, *, lvis=False, corrupt=()):
    """A tar of pictures with one to three flat rectangles each, of which the class is the colour, and its COCO file."""
    dice = torch.Generator().manual_seed(seed)
    data = {"images": [], "annotations": [], "categories": []}
    data["categories"] = [{"id": 10 * i + 4, "name": n} for i, n in enumerate(COLOURS)]
    with tarfile.open(folder / f"{split}.tar", "w") as tar:
        for i in range(count):
            width, height = ((64, 40), (40, 64), (56, 56))[i % 3]
            image = Image.new("RGB", (width, height), (200, 200, 200))
            info = {"id": 100 + i, "file_name": f"{i:04d}.png", "width": width, "height": height}
            if lvis:
                info |= {"neg_category_ids": [4], "not_exhaustive_category_ids": [14]}
            data["images"].append(info)
            for _ in range(i % 4):
                kind = int(torch.randint(3, (1,), generator=dice))
                w, h = (int(v) for v in torch.randint(10, 24, (2,), generator=dice))
                x, y = (int(torch.randint(0, s - v, (1,), generator=dice)) for s, v in ((width, w), (height, h)))
                ImageDraw.Draw(image).rectangle([x, y, x + w - 1, y + h - 1], fill=list(COLOURS.values())[kind])
                one = {"id": len(data["annotations"]), "image_id": 100 + i, "category_id": 10 * kind + 4}
                data["annotations"].append(one | {"bbox": [x, y, w, h], "area": w * h, "iscrowd": 0})
            file = io.BytesIO()
            image.save(file, "png")
            content = file.getvalue()[: 40 if i in corrupt else None]
            entry = tarfile.TarInfo(f"{i:04d}.png")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    (folder / f"{split}.json").write_text(json.dumps(data))


def toy_recipe(folder):
    """Detection of rectangles in 64 px, with the pictures written to the folder."""
    pictures(folder, "train", 24, 0)
    pictures(folder, "val", 9, 1)
    return Recipe(
        name="rectangles",
        task="detection2d",
        model=Model(dim=32, layers=1, heads=2, patch_size=8, encoding="rope"),
        text=Text(dim=16, layers=1, heads=2, width=24, vocab=300, context=24),
        data=Data(source="coco", image_size=64, train=str(folder / "train.tar"), val=str(folder / "val.tar")),
        augment=Augment(crop=0.6, flip=True, colour=0.1, mosaic="0.4 0.3 0.3"),
        optim=Optim(lr=2e-3, warmup_steps=2),
        loop=Loop(batch_size=4, steps=3, log_every=1, eval_batch=4),
    )
