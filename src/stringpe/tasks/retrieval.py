"""Finding the caption of an image and the image of a caption, with two towers and a contrastive loss (section 4.1 of
the paper); and zero-shot classification, in which these towers name what an image shows without training for it."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data.captioned_batches import CaptionedBatches
from ..data.images import stretch_image
from ..data.labelled_images import ImageSet
from ..data.loader import shares
from ..data.order import Batch, Place
from ..data.queries import PHOTO_TEMPLATES
from ..data.transforms import to_unit
from ..io.pictures import BadSample
from ..metrics.recall import RANKS, recall
from ..models.contrastive import Contrastive, Embeddings, class_embeddings, start_bias
from ..models.contrastive_loss import PAIR_LOSSES, clip_loss, clip_loss_within_groups, siglip_loss
from ..models.tokenizer import Tokenizer
from ..recipes.schema import Recipe
from .base import Parts, Sample, Task, TextTask, broadcast
from .build import build_towers, set_initial_weights
from .warm_start import name_tokenizer


class Retrieval(TextTask):
    """Contrastive learning on captioned images; recall@1, 5 and 10 in both directions, whose mean is the number for
    tables.

    The loss compares all pairs of the global batch, whatever the number of processes. `loop.accumulate` is refused: it
    would compare only the pairs within parts of the batch, which is a different loss.
    """

    metric = "mean_recall"
    metric_name = "mean recall"
    meanings: ClassVar = {
        "mean_recall": "the mean of recall at 1, 5 and 10, from images to texts and from texts to images",
        **{f"i2t@{k}": f"the share of images with one of their captions among the {k} nearest" for k in RANKS},
        **{f"t2i@{k}": f"the share of captions whose image is among the {k} nearest" for k in RANKS},
        "views": "the share of captions that score best with their own image among the images of the same room",
        "count": Task.meanings["count"],
    }
    losses = PAIR_LOSSES
    reads = (*TextTask.reads, "loss.kind", "loss.pair_bias", "loss.chunk", "loss.within")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.depth = recipe.model.depth != "none"
        self.feed = CaptionedBatches(name_tokenizer(recipe), self.depth)
        if recipe.loss.within and self.feed.val.group < 2:
            raise ValueError(
                f"loss.within={recipe.loss.within:g} compares images that belong together, and every image of this set "
                f"stands alone: set it to 0"
            )

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        super().check_task(recipe)
        start_bias(recipe.loss.pair_bias, recipe.loop.batch_size)
        if recipe.loop.accumulate != 1:
            raise ValueError(
                f"a contrastive batch is compared as a whole, and loop.accumulate={recipe.loop.accumulate} would "
                f"compare parts of it: set it to 1 and use more processes, a lower loop.batch_size or loss.chunk"
            )

    @property
    def examples(self) -> int:
        return self.feed.examples

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        assert parts.tokenizer is not None
        bias = start_bias(recipe.loss.pair_bias, recipe.loop.batch_size)
        model = build_towers(recipe, parts.tokenizer, bias)
        set_initial_weights(model, recipe)
        return model

    @cached_property
    def parts(self) -> Parts:
        return Parts(self.feed.tokenizer)

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        return self.feed.train(start, place)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        embeddings: Embeddings = model(batch["image"], batch["tokens"], batch.get("depth"))
        distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        group = dist.group.WORLD if distributed else None
        function = siglip_loss if self.recipe.loss.kind == "siglip" else clip_loss
        loss = function(*embeddings, chunk=self.recipe.loss.chunk, group=group)
        share = self.recipe.loss.within
        if not share:
            return loss
        image, text, scale, _ = embeddings
        return loss + share * clip_loss_within_groups(image, text, scale, self.feed.val.group)

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        """Recall needs the whole gallery, so the embeddings of all processes are gathered, and process 0 ranks them."""
        image, text, owner = self._embed_all(model, place)
        metrics: dict[str, float] = {}
        if place.rank == 0:
            found = {name: float(share) for name, share in recall(image, text, owner).items()}
            metrics = {"mean_recall": found.pop("mean"), **found}
            if self.feed.val.group > 1:
                metrics["views"] = share_distinguished(image, text, owner, self.feed.val.group)
            metrics["count"] = float(len(image))
        return broadcast(metrics, place)

    def samples(self, count: int) -> list[Sample]:
        val = self.feed.val
        images = val.image[:count].permute(0, 2, 3, 1)
        return [Sample(image, texts[0]) for image, texts in zip(images, val.captions, strict=False)]

    def counters(self) -> dict[str, float]:
        counts = {"corrupt": self.feed.corrupt, "truncated": self.feed.tokenizer.truncated}
        return {name: float(count) for name, count in counts.items() if count}

    def _embed_all(self, model: nn.Module, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        """All images (n, width), all captions (m, width), and the number of the image that each caption belongs to
        (m,)."""
        val, texts = self.feed.val, self.feed.val_texts
        most = int(texts.count.max())  # captions of an image
        parts: list[list[Tensor]] = [[], [], [], []]
        for index, weight in shares(len(val), self.recipe.loop.eval_batch, place):
            tokens, owner = texts.of(index, most)  # (b · most, context), (b · most,)
            batch = self.feed.val_images(index, place)
            embeddings: Embeddings = model(batch["image"], tokens.to(place.device), batch.get("depth"))
            real = weight.bool()
            number = torch.where(real, index, -1)
            owner = torch.where(real.repeat_interleave(most), owner, -1)
            for part, value in zip(parts, (embeddings.image, embeddings.text, number, owner), strict=True):
                part.append(value.to(place.device))
        image, text, number, owner = (place.gather_rows(torch.cat(part)) for part in parts)
        order = number.argsort()[int((number < 0).sum()) :]  # without padding, in the order of the set
        return image[order], text[owner >= 0], owner[owner >= 0]


def share_distinguished(image: Tensor, text: Tensor, owner: Tensor, group: int) -> float:
    """The share of captions that score best with their own image among the `group` images that belong together."""
    first = owner // group * group
    rivals = first[:, None] + torch.arange(group, device=owner.device)  # (m, group)
    scores = (image.float()[rivals] * text.float()[:, None]).sum(-1)
    own_image = scores.gather(1, (owner - first)[:, None])
    return float(((scores >= own_image).sum(1) == 1).double().mean())


@torch.no_grad()
def zero_shot(
    model: Contrastive,
    tokenizer: Tokenizer,
    images: ImageSet,
    names: Sequence[str],
    *,
    size: int,
    batch: int = 64,
) -> dict[str, float]:
    """Classify images by the nearest of the embedded names. "top1" and "top5" are the shares of images whose label, an
    index into `names`, is the nearest name or among the nearest five; "count" is the number of images, without the
    "corrupt" ones, which could not be read. size: side of the images that the model was trained on, in pixels."""
    device = model.scale.device
    classes = class_embeddings(model, tokenizer, names, PHOTO_TEMPLATES)  # (classes, width)
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
            scores = model.embed_image(to_unit(torch.stack(pixels).to(device))) @ classes.mT
            best = scores.topk(min(5, len(names)), dim=1).indices.cpu()
            right = best == torch.tensor(labels)[:, None]
            hits += torch.stack([right[:, 0].sum(), right.any(1).sum()])
            count += len(labels)
    top1, top5 = (hits / max(count, 1)).tolist()
    return {"top1": top1, "top5": top5, "count": count, "corrupt": corrupt}
