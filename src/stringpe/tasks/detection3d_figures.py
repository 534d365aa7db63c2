"""What runs of detection in 3D find in frames of their validation sets: the paper's figure, and frames to look at from
all sides.

stringpe figure runs/d3/runs/absolute/seed0 runs/d3/runs/cayley/seed0 --out figure.png
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .. import viewer
from ..data.boxes3d import BoxedFrames, load_boxes3d
from ..data.queries import prompt_tokens
from ..geometry.draw_boxes3d import BLUE, GREEN, draw, sheet
from ..io import checkpoint as checkpoints
from ..metrics.average_precision3d import ScoredBoxes, paired_iou
from ..models.owl3d import assign, best_boxes
from ..recipes.overrides import override
from .detection3d import Detection3D, find_boxes
from .load import load_run, open_run
from .predict import suppress

_WIDE, _ABREAST = 1600, 4  # pixels and columns that a figure's pictures may take side by side, about


def draw_figure(
    runs: Mapping[str, str | Path],
    out: str | Path,
    *,
    frames: Sequence[int] = (),
    rows: int = 4,
    threshold: float = 0.0,
    changes: Sequence[str] = (),
) -> Path:
    """Draw what runs of detection3d (folders, by the name of their column) predict on the same validation frames.

    frames: numbers of frames; without, `rows` of them, in turn from every family. threshold: 0 draws the prediction
    that the matching gives every object, which is what the mean IoU is of; above 0, everything found with at least that
    score. changes: overrides of the runs' recipes, for data that has moved. Beside a column's name stands the mean IoU
    of the frames shown.
    """
    if not runs:
        raise ValueError("a figure needs at least one run of detection3d")
    first = override(checkpoints.read_model(Path(next(iter(runs.values()))))[0], changes)
    kept = load_boxes3d(first.data, "val", first.model.depth != "none")
    shown = torch.tensor(list(frames) or spread_frames(kept, rows))
    if int(shown.max()) >= len(kept) or int(shown.min()) < 0:
        raise ValueError(f"the validation set has frames 0 to {len(kept) - 1}, got {shown.tolist()}")
    columns, names = [], []
    scale = min(max(_WIDE // (min(len(runs), _ABREAST) * kept.rgb.shape[-1]), 1), 4)
    for name, folder in runs.items():
        found, iou = predict_frames(folder, shown, threshold, changes)
        columns.append([_picture(kept, int(i), boxes, scale) for i, boxes in zip(shown, found, strict=True)])
        names.append(f"{name}: {100 * iou:.1f} %")
    pictures = [list(row) for row in zip(*columns, strict=True)]
    left = [kept.groups[int(kept.group[i])] for i in shown] if len(kept.groups) > 1 else ()
    return sheet(pictures, columns=names, path=out, rows=left, abreast=_ABREAST)


@torch.no_grad()
def predict_frames(
    folder: str | Path, index: Tensor, threshold: float, changes: Sequence[str] = ()
) -> tuple[list[Tensor], float]:
    """Boxes to draw in some validation frames, a list of (k, 12), and the mean IoU of all objects of these frames."""
    model, recipe, parts = load_run(folder, "detection3d")
    assert parts.tokenizer is not None
    recipe = override(recipe, changes)
    kept = load_boxes3d(recipe.data, "val", recipe.model.depth != "none")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    queries = prompt_tokens(parts.tokenizer, kept.names, recipe.text.context).to(device)
    batch = kept.batch(index, device)
    found = find_boxes(model, recipe, batch, queries)
    label = batch["label"].masked_fill(batch["ignore"], -1)
    matched = assign(found, label, batch["box"])
    boxes = [found.boxes[b, row[row >= 0]] for b, row in enumerate(matched)]
    wanted = torch.cat([batch["box"][b, row >= 0] for b, row in enumerate(matched)])
    iou = float(paired_iou(torch.cat(boxes), wanted).sum() / (label >= 0).sum().clamp(min=1))
    if threshold:
        boxes = [one.box[one.score >= threshold] for one in best_boxes(found)]
    return boxes, iou


def spread_frames(kept: BoxedFrames, rows: int) -> list[int]:
    """Numbers of `rows` frames, in turn from every group of the set."""
    groups = [(kept.group == g).nonzero()[:, 0].tolist() for g in range(len(kept.groups))]
    turns = [group[i] for i in range(max(map(len, groups))) for group in groups if i < len(group)]
    return turns[:rows]


def _picture(kept: BoxedFrames, i: int, boxes: Tensor, scale: int) -> Tensor:
    truth = kept.box[i][kept.label[i] >= 0]
    return draw(kept.rgb[i], kept.intrinsics[i], [(truth, GREEN), (boxes, BLUE)], scale=scale)


def name_run(text: str) -> tuple[str, Path]:
    """The column of a run, from NAME=FOLDER, or from a folder, whose encoding and depth make its name."""
    name, equals, folder = text.partition("=")
    if equals and not Path(text).exists():
        return name, Path(folder)
    recipe = checkpoints.read_model(Path(text))[0]
    return f"{recipe.model.encoding}, {'RGB' if recipe.model.depth == 'none' else 'RGB-D'}", Path(text)


_OVERLAP = 0.5  # of two predictions of one name that overlap by more, only the better is shown


def predict_val_frames(run: str | Path, changes: Sequence[str] = (), count: int = 8) -> list[viewer.Frame]:
    """`count` validation frames of a run of detection3d, in turn from every family, with the true boxes and as many of
    the best predictions. changes: overrides of the run's recipe, for data that has moved."""
    task, model = open_run(run, changes)
    if not isinstance(task, Detection3D):
        raise ValueError(
            f"--html and --rrd show boxes in 3D, or with --env rollouts; {run} holds a run of {task.recipe.task}"
        )
    kept = task.val_set
    index = torch.tensor(spread_frames(kept, count))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = kept.batch(index, device)
    with torch.no_grad():
        found = best_boxes(task.predict(model.to(device).eval(), batch))
    return [_frame(kept, int(i), best) for i, best in zip(index, found, strict=True)]


def _frame(kept: BoxedFrames, i: int, found: ScoredBoxes) -> viewer.Frame:
    there = (kept.label[i] >= 0).nonzero()[:, 0]
    best = suppress(found, _OVERLAP)
    truths = [viewer.Box(kept.box[i, j], kept.names[int(kept.label[i, j])]) for j in there]
    guesses = [
        viewer.Box(box, kept.names[int(label)], "predicted", float(score))
        for box, label, score in zip(best.box, best.label, best.score, strict=True)
    ]
    group = f"{kept.groups[int(kept.group[i])]}: " if len(kept.groups) > 1 else ""
    objects = "1 object" if len(there) == 1 else f"{len(there)} objects"
    caption = f"{group}{objects}, and as many of the best predictions"
    return viewer.Frame(
        kept.rgb[i], kept.depth[i].float(), kept.intrinsics[i], [*truths, *guesses[: len(there)]], caption
    )
