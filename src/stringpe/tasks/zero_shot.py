"""Classification by a model that was not trained for it: the class is the name whose text is nearest to the image.

stringpe eval runs/flickr8k-cayley --zero-shot photos/            # one folder of pictures per class, named after it

model, recipe, parts = load_run("runs/flickr8k-cayley")
images = image_set("folder", "photos/")
zero_shot(model, parts.tokenizer, images, ["beach", "child", "dog"], size=recipe.data.image_size)
"""

from collections.abc import Sequence

import torch

from ..data.images import stretch_image
from ..data.labelled import ImageSet
from ..data.queries import PHOTO_TEMPLATES
from ..data.transforms import to_unit
from ..io.pictures import BadSample
from ..models.contrastive import Contrastive, class_embeddings
from ..models.tokenizer import Tokenizer


@torch.no_grad()
def zero_shot(
    model: Contrastive,
    tokenizer: Tokenizer,
    images: ImageSet,
    names: Sequence[str],
    *,
    size: int,
    templates: Sequence[str] = PHOTO_TEMPLATES,
    batch: int = 64,
) -> dict[str, float]:
    """Shares "top1" and "top5" of images whose label, an index into `names`, is among the nearest names, over "count"
    images; "corrupt" ones could not be read. size: of the images that the model was trained on, in pixels."""
    device = model.scale.device
    classes = class_embeddings(model, tokenizer, names, templates)  # (classes, width)
    hits, count, corrupt = torch.zeros(2), 0, 0
    for first in range(0, len(images), batch):
        pixels, labels = [], []
        for i in range(first, min(first + batch, len(images))):
            if not 0 <= images.label(i) < len(names):
                raise ValueError(f"{images.name(i)} is of class {images.label(i)}, but there are {len(names)} names")
            try:
                pixels.append(stretch_image(images.decode(i), size))
                labels.append(images.label(i))
            except BadSample:
                corrupt += 1
        if pixels:
            found = model.embed_image(to_unit(torch.stack(pixels).to(device))) @ classes.mT
            best = found.topk(min(5, len(names)), dim=1).indices.cpu()
            right = best == torch.tensor(labels)[:, None]
            hits += torch.stack([right[:, 0].sum(), right.any(1).sum()])
            count += len(labels)
    top1, top5 = (hits / max(count, 1)).tolist()
    return {"top1": top1, "top5": top5, "count": count, "corrupt": corrupt}
