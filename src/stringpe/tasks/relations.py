"""Naming the label of the nearest neighbour of every point in a set, in a metric that is tilted against the axes.

A set has 16 points in [0, 8)³, each with one of 8 labels. The answer for a point is the label of the nearest other
point, by the distance whose metric is diag(1, 0.35, 0.35) in a fixed random frame. Only relative positions matter, and
an encoding whose frequencies lie along the axes cannot express the metric: the task was chosen for what it can decide.

The model is a small transformer without biases or gains. Several seeds are trained in one step, `loop.seeds` of them:
every matrix has a leading dimension for the seed, and the encodings of all seeds act as one with more heads.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..baselines import SinCos
from ..basis import Identity
from ..catalogue import create
from ..data.order import Batch, Place
from ..encoding import Encoding
from ..folding import fold_projection, form_all
from ..frequencies import random_frames
from ..linear_attention import linear_mix, relu_features
from ..recipes.schema import Model, Recipe
from ..rotate import rotate_pair
from ..seeds import derive, generator
from .base import Parts, Sample, Task, sum_batches, with_one_layer

POINTS, LABELS, AXES = 16, 8, 3
SIDE = 8.0
"""Points lie in a cube of this side."""
METRIC = (1.0, 0.35, 0.35)
SHIFT = 32.0
"""How far all coordinates move, on every axis, for the metric `moved`."""
GROWTH = 2
"""How many times as long the cube's side is for the metric `larger`, with as many points per volume."""
_SINCOS_BASES = {"absolute": 100.0, "sincos": 100.0}  # of the sine-cosine embedding that is added to tokens
_SINCOS_SCALE, _LABEL_SCALE = 0.5, 0.5
_ATTENTION = ("softmax", "linear")


class SeedTransformers(nn.Module):
    """One transformer over labelled points per seed, computed together: labels (b, s, n) and coordinates (b, s, n, 3)
    to logits (b, s, n, 8).

    A parameter of seed s starts from a generator of its own, seeded by s and the parameter's name, so that models with
    one seed and different encodings start from the same values in all that they have in common.
    """

    def __init__(self, model: Model, seeds: Sequence[int]):
        super().__init__()
        if model.attention not in _ATTENTION:
            raise ValueError(f"model.attention of relations is {' or '.join(_ATTENTION)}, got {model.attention!r}")
        if model.freeze not in ("", "qk"):
            raise ValueError(f"model.freeze of relations is '' or 'qk', got {model.freeze!r}")
        self.seeds, self.attention = tuple(seeds), model.attention
        self.dim, self.heads, self.head_dim = model.dim, model.heads, model.dim // model.heads
        hidden = int(model.dim * model.mlp_ratio)
        self.label = self._matrix("label", LABELS, model.dim, scale=_LABEL_SCALE)
        self.blocks = nn.ModuleList()
        for i in range(model.layers):
            block = nn.ParameterDict()
            sizes = {"query_key": (2 * model.dim, model.dim), "value": (model.dim, model.dim)}
            sizes |= {"out": (model.dim, model.dim), "up": (hidden, model.dim), "down": (model.dim, hidden)}
            for name, (rows, columns) in sizes.items():
                block[name] = self._matrix(f"blocks.{i}.{name}", rows, columns)
            block["query_key"].requires_grad_(model.freeze != "qk")
            self.blocks.append(block)
        self.head = self._matrix("head", LABELS, model.dim)
        self.embedding = (
            SinCos(model.dim, coord_dim=AXES, base=_SINCOS_BASES[model.encoding])
            if model.encoding in _SINCOS_BASES
            else None
        )
        self.encodings = nn.ModuleList(nn.ModuleList() for _ in self.blocks)
        if model.encoding not in ("none", *_SINCOS_BASES):
            for i, seed in itertools.product(range(model.layers), self.seeds):
                layer = self.encodings[i]
                assert isinstance(layer, nn.ModuleList)
                layer.append(self._encoding(model, f"{seed}/blocks.{i}.encoding"))

    def _matrix(self, name: str, rows: int, columns: int, *, scale: float | None = None) -> nn.Parameter:
        """(seeds, rows, columns), normal, by default with standard deviation 1 / √columns."""
        spread = columns**-0.5 if scale is None else scale
        draws = [torch.randn(rows, columns, generator=generator(seed, "start", name)) for seed in self.seeds]
        return nn.Parameter(spread * torch.stack(draws))

    def _encoding(self, model: Model, name: str) -> Encoding:
        with torch.random.fork_rng([]):
            torch.manual_seed(derive(name))
            options: dict[str, Any] = dict(model.options)
            made = create(model.encoding, head_dim=self.head_dim, num_heads=self.heads, coord_dim=AXES, **options)
        if not isinstance(made, Encoding):
            raise ValueError(f"relations takes encodings of a basis and frequencies; {model.encoding!r} is not one")
        return made

    def forward(self, labels: Tensor, coords: Tensor) -> Tensor:
        b, s, n = labels.shape
        x = torch.bmm(F.one_hot(labels, LABELS).to(self.label.dtype).transpose(0, 1).reshape(s, b * n, -1), self.label)
        if self.embedding is not None:
            x = x + _SINCOS_SCALE * self.embedding(coords).transpose(0, 1).reshape(s, b * n, -1)
        all_coords = coords.transpose(1, 2).flatten(2)  # (b, n, s·3)
        thetas, bases = self._form_encodings()
        for block, theta, basis in zip(self.blocks, thetas, bases, strict=True):
            assert isinstance(block, nn.ParameterDict)
            y = self._normalise(x)
            heads = self._attend(block, y, (b, n), all_coords, theta, basis)
            x = x + torch.bmm(heads, block["out"].mT)
            up = F.relu(torch.bmm(self._normalise(x), block["up"].mT))
            x = x + torch.bmm(up, block["down"].mT)
        return torch.bmm(self._normalise(x), self.head.mT).unflatten(1, (b, n)).transpose(0, 1)

    def _form_encodings(self) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Per layer Θ (s·h, s·3, d/2), in which a seed's heads see that seed's coordinates alone, and P (s·h, d, d),
        None for the identity."""
        layers, s = len(self.blocks), len(self.seeds)
        encodings = [module for module in self.encodings.modules() if isinstance(module, Encoding)]  # layer by layer
        if not encodings:
            return [None] * layers, [None] * layers
        theta = torch.stack(form_all([e.frequencies for e in encodings])).unflatten(
            0, (layers, s)
        )  # (layers, s, h, 3, d/2)
        own_seed = torch.eye(s, dtype=theta.dtype, device=theta.device)[:, None, :, None, None]
        thetas = (theta[:, :, :, None] * own_seed).flatten(3, 4).flatten(1, 2)
        if isinstance(encodings[0].basis, Identity):
            return list(thetas), [None] * layers
        return list(thetas), list(
            torch.stack(form_all([e.basis for e in encodings])).unflatten(0, (layers, s)).flatten(1, 2)
        )

    def _attend(
        self,
        block: nn.ParameterDict,
        y: Tensor,
        size: tuple[int, int],
        coords: Tensor,
        theta: Tensor | None,
        basis: Tensor | None,
    ) -> Tensor:
        """Heads (s, b·n, dim) of normalised tokens y (s, b·n, dim)."""
        weight = block["query_key"]
        if basis is not None and self.attention == "softmax":
            weight, _ = fold_projection(basis.unflatten(0, (len(weight), -1)), weight, None)
        packed = torch.cat([weight, block["value"]], dim=1)  # (s, 3·dim, dim)
        q, k, v = (self._split_heads(t, size) for t in torch.bmm(y, packed.mT).chunk(3, dim=-1))
        if self.attention == "linear":  # rotated after the feature map, so that W does not absorb P
            q, k = relu_features(q), relu_features(k)
            heads = linear_mix(q, k, v, None if theta is None else self._rotate_features(q, k, coords, theta, basis))
        else:
            if theta is not None:
                q, k = rotate_pair(q, k, coords, theta)
            heads = F.scaled_dot_product_attention(q, k, v)
        return heads.unflatten(1, (-1, self.heads)).permute(1, 0, 3, 2, 4).reshape(y.shape)

    def _rotate_features(
        self, q: Tensor, k: Tensor, coords: Tensor, theta: Tensor, basis: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """ReLU features in the basis and rotated, except for the last, which holds the norm."""
        parts = [x[..., :-1] if basis is None else x[..., :-1] @ basis for x in (q, k)]
        rotated = rotate_pair(parts[0], parts[1], coords, theta)
        return torch.cat([rotated[0], q[..., -1:]], -1), torch.cat([rotated[1], k[..., -1:]], -1)

    def _normalise(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.dim,), eps=1e-6)  # as the blocks of a ViT have it

    def _split_heads(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """(s, b·n, dim) to (b, s·h, n, d)."""
        return x.unflatten(2, (self.heads, -1)).unflatten(1, size).permute(1, 0, 3, 2, 4).flatten(1, 2)

    def gradients_by_seed(self) -> list[list[Tensor]]:
        """The gradients of each seed's own parameters, as views."""
        of_encodings = {id(p) for p in self.encodings.parameters()}
        stacked = [p.grad for p in self.parameters() if p.grad is not None and id(p) not in of_encodings]
        gradients = [[grad[i] for grad in stacked] for i in range(len(self.seeds))]
        for layer in self.encodings:
            assert isinstance(layer, nn.ModuleList)
            for i, encoding in enumerate(layer):
                gradients[i] += [p.grad for p in encoding.parameters() if p.grad is not None]
        return gradients


class Relations(Task):
    """Labels of nearest neighbours. top1: as trained; moved: with all coordinates moved by 32 units on every axis;
    larger: in sets of 128 points in a cube of twice the side, a quarter as many sets."""

    capturable = True

    metric_name = "neighbours named"
    meanings = Task.meanings | {
        "moved": "the same as top1, with all coordinates moved by 32 units on every axis",
        "larger": "the same as top1, in sets of 128 points in place of 16, in a cube of twice the side",
    }
    stacks_seeds = True
    common = (
        *("name", "task", "seed", "model.dim", "model.layers", "model.heads", "model.mlp_ratio", "model.attention"),
        *("model.encoding", "model.encoding_options"),
        *(key for key in Task.common if key.startswith(("optim.", "loop."))),
    )
    reads = ("model.freeze", "loop.seeds")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        frame = _frame(recipe.data.seed)
        self.axes = frame * torch.tensor(METRIC).sqrt()  # coords @ axes makes the distance an ordinary one
        self.seeds = _seeds(recipe)

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        SeedTransformers(with_one_layer(recipe).model, [recipe.seed])

    @property
    def examples(self) -> int:
        return max(self.recipe.data.train_size, 1)  # points are new in every step

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        return SeedTransformers(recipe.model, _seeds(recipe))

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        size = self.recipe.loop.batch_size
        axes = self.axes.to(place.device)
        for step in itertools.count(start):
            sets = [draw_points(size, generator(seed, "points", step)) for seed in self.seeds]
            share = {
                name: torch.stack(parts, 1).chunk(place.world)[place.rank].to(place.device, non_blocking=True)
                for name, parts in zip(("labels", "coords"), zip(*sets, strict=True), strict=True)
            }
            yield share | {"answer": nearest_label(share["labels"], share["coords"], axes)}

    def gradients_by_seed(self, model: nn.Module) -> list[list[Tensor]]:
        assert isinstance(model, SeedTransformers)
        return model.gradients_by_seed()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sum over seeds of their mean losses: the gradient of each seed is that of training it alone."""
        logits = model(batch["labels"], batch["coords"])
        return F.cross_entropy(logits.flatten(0, 2), batch["answer"].flatten()) * len(self.seeds)

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        """The metrics of every seed, as "seed3/top1", and their means over seeds; every process evaluates all sets."""
        sets = self.recipe.data.val_size
        by_seed = self._score(model, place, sets) | self._score(model, place, -(-sets // 4), GROWTH)
        means = {name: math.fsum(values) / len(values) for name, values in by_seed.items()}
        means["count"] = float(sets * POINTS)
        if len(self.seeds) == 1:
            return means
        of_seeds = {f"seed{s}/{name}": values[i] for name, values in by_seed.items() for i, s in enumerate(self.seeds)}
        return means | of_seeds

    def _score(self, model: nn.Module, place: Place, sets: int, growth: int = 1) -> dict[str, list[float]]:
        """Metrics of each seed on `sets` test sets. growth: of the cube's side; above 1, only `larger` is measured."""
        points = "test points" if growth == 1 else "larger test points"
        labels, coords = draw_points(sets, generator(self.recipe.data.seed, points), growth)
        answers = nearest_label(labels, coords, self.axes)
        batch = max(self.recipe.loop.eval_batch // growth**AXES, 1)
        parts = zip(*(t.split(batch) for t in (labels, coords, answers)), strict=True)
        sums = sum_batches(self._score_batch(model, place, *part, larger=growth > 1) for part in parts)
        return {name: (value / answers.numel()).tolist() for name, value in sums.items()}

    def _score_batch(
        self, model: nn.Module, place: Place, labels: Tensor, coords: Tensor, answers: Tensor, *, larger: bool
    ) -> dict[str, Tensor]:
        """Sums (seeds,) of every metric over the points of some test sets, which all seeds share."""
        seeds = len(self.seeds)
        label, where, answer = (
            t[:, None].expand(-1, seeds, *t.shape[1:]).to(place.device) for t in (labels, coords, answers)
        )
        logits = model(label, where)
        right = logits.argmax(-1) == answer
        found = {"larger": right}
        if not larger:
            loss = F.cross_entropy(logits.movedim(-1, 1).double(), answer, reduction="none")
            found = {"top1": right, "moved": model(label, where + SHIFT).argmax(-1) == answer, "loss": loss}
        return {name: value.double().sum((0, 2)) for name, value in found.items()}

    def samples(self, count: int) -> list[Sample]:
        return []


def draw_points(count: int, dice: torch.Generator, growth: int = 1) -> tuple[Tensor, Tensor]:
    """Labels (count, 16) and coordinates (count, 16, 3) of random sets. growth: of the cube's side, with as many points
    per volume: 128 with a growth of 2."""
    points = POINTS * growth**AXES
    labels = torch.randint(LABELS, (count, points), generator=dice)
    return labels, growth * SIDE * torch.rand(count, points, AXES, generator=dice)


def nearest_label(labels: Tensor, coords: Tensor, axes: Tensor) -> Tensor:
    """The label of the nearest other point, by the distance between coords @ axes: labels (…, n), coords (…, n, c) and
    axes (c, c) to (…, n)."""
    places = coords @ axes
    itself = torch.eye(coords.shape[-2], dtype=torch.bool, device=coords.device)
    distance = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")  # products would lose digits
    return labels.gather(-1, distance.masked_fill(itself, math.inf).argmin(-1))


def _seeds(recipe: Recipe) -> range:
    return range(recipe.seed, recipe.seed + recipe.loop.seeds)


def _frame(seed: int) -> Tensor:
    """The fixed random frame (3, 3) of the metric."""
    with torch.random.fork_rng([]):
        torch.manual_seed(derive(seed, "frame"))
        return random_frames(1, AXES)[0]
