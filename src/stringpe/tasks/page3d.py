"""What a run of detection in 3D finds in frames of its validation set, beside the truth, to look at from all sides."""

from collections.abc import Sequence
from pathlib import Path

import torch

from .. import viewer
from ..data.boxes3d import BoxSet
from ..metrics.average_precision3d import ScoredBoxes
from ..models.owl3d import detections
from .build import open_run
from .detection3d import Detection3D
from .figure3d import spread_frames
from .predict3d import suppress

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
        found = detections(task.predict(model.to(device).eval(), batch))
    return [_frame(kept, int(i), best) for i, best in zip(index, found, strict=True)]


def _frame(kept: BoxSet, i: int, found: ScoredBoxes) -> viewer.Frame:
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
