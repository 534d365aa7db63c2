"""What runs of 3D detection predict on frames of their validation sets: the paper's figure, and frames to view from all
sides.

stringpe figure runs/d3/runs/absolute/seed0 runs/d3/runs/cayley/seed0 --out figure.png
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .. import viewer
from ..data.boxes3d import BoxedFrames, load_boxes3d
from ..data.queries import prompt_tokens
from ..devices import find_device
from ..geometry.draw_boxes import BLUE, GREEN, outline_boxes3d, write_sheet
from ..io import checkpoint as checkpoints
from ..metrics.average_precision3d import ScoredBoxes, paired_iou
from ..models.owl3d import assign, best_boxes
from ..recipes.overrides import override
from .detection3d import Detection3D, find_boxes
from .load import load_run, open_run
from .predict import suppress

_WIDTH, _COLUMNS = 1600, 4  # pixels, roughly, and columns that the pictures of a figure may take side by side


def draw_figure(
    runs: Mapping[str, str | Path],
    out: str | Path,
    *,
    frames: Sequence[int] = (),
    rows: int = 4,
    threshold: float = 0.0,
    changes: Sequence[str] = (),
) -> Path:
    """Draw what runs of detection3d (folders, by the names of their columns) predict on the same validation frames.

    frames: numbers of frames; by default `rows` of them, taken from the groups in turn. threshold: 0 draws the
    prediction that is matched to each object, of which the mean IoU is taken; above 0, every prediction with at least
    that score. changes: overrides of the runs' recipes, for data that has moved. The name of a run is followed by the
    mean IoU over the frames shown. A single run has its frames side by side; several runs have a column each.
    """
    if not runs:
        raise ValueError("a figure needs at least one run of detection3d")
    val_set = _load_frames(next(iter(runs.values())), changes)
    shown = torch.tensor(list(frames) or spread_frames(val_set, rows))
    if int(shown.max()) >= len(val_set) or int(shown.min()) < 0:
        raise ValueError(f"the validation set has frames 0 to {len(val_set) - 1}, got {shown.tolist()}")
    columns, names = [], []
    abreast = min(len(runs) if len(runs) > 1 else len(shown), _COLUMNS)
    scale = min(max(_WIDTH // (abreast * val_set.rgb.shape[-1]), 1), 4)
    for name, folder in runs.items():
        own = _load_frames(folder, changes)
        if len(own) != len(val_set) or not torch.equal(own.rgb[shown], val_set.rgb[shown]):
            raise ValueError(
                f"{folder} has other validation frames than {next(iter(runs.values()))}: draw them apart, or say with "
                f"--overrides on which data both are to be shown"
            )
        boxes_by_frame, iou = predict_frames(folder, shown, threshold, changes)
        columns.append(
            [_picture(val_set, int(i), boxes, scale) for i, boxes in zip(shown, boxes_by_frame, strict=True)]
        )
        names.append(f"{name}: {100 * iou:.1f} %")
    groups = [val_set.groups[int(val_set.group[i])] for i in shown] if len(val_set.groups) > 1 else []
    if len(runs) == 1:  # its frames stand side by side
        return write_sheet(columns, columns=groups or [""] * len(shown), path=out, rows=names, abreast=_COLUMNS)
    pictures = [list(row) for row in zip(*columns, strict=True)]
    return write_sheet(pictures, columns=names, path=out, rows=groups, abreast=_COLUMNS)


def _load_frames(folder: str | Path, changes: Sequence[str]) -> BoxedFrames:
    """The validation frames of a run of detection3d."""
    recipe = override(checkpoints.read_model(Path(folder))[0], changes)
    if recipe.task != "detection3d":
        raise ValueError(f"{folder} holds a run of the task {recipe.task!r}: figures are drawn of runs of detection3d")
    return load_boxes3d(recipe.data, "val", recipe.model.depth != "none")


@torch.no_grad()
def predict_frames(
    folder: str | Path, index: Tensor, threshold: float, changes: Sequence[str] = ()
) -> tuple[list[Tensor], float]:
    """Boxes to draw in the validation frames of `index`, a list of (k, 12), and the mean IoU of all objects in them."""
    model, recipe, parts = load_run(folder, "detection3d")
    assert parts.tokenizer is not None
    recipe = override(recipe, changes)
    val_set = load_boxes3d(recipe.data, "val", recipe.model.depth != "none")
    device = find_device()
    model = model.to(device)
    queries = prompt_tokens(parts.tokenizer, val_set.names, recipe.text.context).to(device)
    batch = val_set.batch(index, device)
    predictions = find_boxes(model, recipe, batch, queries)
    label = batch["label"].masked_fill(batch["ignore"], -1)
    matched = assign(predictions, label, batch["box"])
    boxes = [predictions.boxes[b, row[row >= 0]] for b, row in enumerate(matched)]
    truths = torch.cat([batch["box"][b, row >= 0] for b, row in enumerate(matched)])
    iou = float(paired_iou(torch.cat(boxes), truths).sum() / (label >= 0).sum().clamp(min=1))
    if threshold:
        boxes = [best.box[best.score >= threshold] for best in best_boxes(predictions)]
    return boxes, iou


def spread_frames(val_set: BoxedFrames, rows: int) -> list[int]:
    """Numbers of `rows` frames, taken from the groups of the set in turn."""
    groups = [(val_set.group == g).nonzero()[:, 0].tolist() for g in range(len(val_set.groups))]
    turns = [group[i] for i in range(max(map(len, groups))) for group in groups if i < len(group)]
    return turns[:rows]


def _picture(val_set: BoxedFrames, i: int, boxes: Tensor, scale: int) -> Tensor:
    truth = val_set.box[i][val_set.label[i] >= 0]
    return outline_boxes3d(val_set.rgb[i], val_set.intrinsics[i], [(truth, GREEN), (boxes, BLUE)], scale=scale)


def name_runs(texts: Sequence[str]) -> dict[str, Path]:
    """The folders of runs by the names of their columns, which must differ."""
    columns: dict[str, Path] = {}
    for name, folder in map(name_run, texts):
        if name in columns:
            raise ValueError(f"{columns[name]} and {folder} would both be the column {name!r}: name them, NAME=FOLDER")
        columns[name] = folder
    return columns


def name_run(text: str) -> tuple[str, Path]:
    """The name of a run's column, and the run's folder: from NAME=FOLDER, or from a folder alone, whose column is named
    after the run's encoding and depth."""
    name, equals, folder = text.partition("=")
    if equals and not Path(text).exists():
        return name, Path(folder)
    recipe = checkpoints.read_model(Path(text))[0]
    return f"{recipe.model.encoding}, {'RGB' if recipe.model.depth == 'none' else 'RGB-D'}", Path(text)


_MAX_OVERLAP = 0.5  # IoU: of two predictions of the same name that overlap by more, only the better is shown


def predict_val_frames(run: str | Path, changes: Sequence[str] = (), count: int = 8) -> list[viewer.Frame]:
    """`count` validation frames of a run of detection3d, taken from the groups in turn, each with its true boxes and
    the same number of its best predictions. changes: overrides of the run's recipe, for data that has moved."""
    task, model = open_run(run, changes)
    if not isinstance(task, Detection3D):
        raise ValueError(
            f"--html and --rrd show boxes in 3D, or with --env rollouts; {run} holds a run of {task.recipe.task}"
        )
    val_set = task.val_set
    index = torch.tensor(spread_frames(val_set, count))
    device = find_device()
    batch = val_set.batch(index, device)
    with torch.no_grad():
        predictions = best_boxes(task.predict(model.to(device).eval(), batch))
    return [_frame(val_set, int(i), best) for i, best in zip(index, predictions, strict=True)]


def _frame(val_set: BoxedFrames, i: int, predictions: ScoredBoxes) -> viewer.Frame:
    index = (val_set.label[i] >= 0).nonzero()[:, 0]
    best = suppress(predictions, _MAX_OVERLAP)
    truths = [viewer.Box(val_set.box[i, j], val_set.names[int(val_set.label[i, j])]) for j in index]
    predicted = [
        viewer.Box(box, val_set.names[int(label)], "predicted", float(score))
        for box, label, score in zip(best.box, best.label, best.score, strict=True)
    ]
    group = f"{val_set.groups[int(val_set.group[i])]}: " if len(val_set.groups) > 1 else ""
    many = f"{len(index)} objects, and the {len(index)} best predictions"
    caption = f"{group}{'1 object, and the best prediction' if len(index) == 1 else many}"
    return viewer.Frame(
        val_set.rgb[i], val_set.depth[i].float(), val_set.intrinsics[i], [*truths, *predicted[: len(index)]], caption
    )
