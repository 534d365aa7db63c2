"""Boxes in the image plane, (…, 4) floats: as corners (x0, y0, x1, y1) or as centre and size (cx, cy, w, h).

Overlaps take corners and broadcast over leading shapes: `iou(a[:, None], b[None])` is the table of all pairs.
"""

import torch
from torch import Tensor


def to_corners(box: Tensor) -> Tensor:
    """(cx, cy, w, h) to (x0, y0, x1, y1)."""
    centre, half = box[..., :2], box[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def to_centre(box: Tensor) -> Tensor:
    """(x0, y0, x1, y1) to (cx, cy, w, h)."""
    low, high = box[..., :2], box[..., 2:]
    return torch.cat([(low + high) / 2, high - low], dim=-1)


def area(box: Tensor) -> Tensor:
    """Areas (…) of corners (…, 4); 0 where the corners are in the wrong order."""
    return _surface(box[..., 2:] - box[..., :2])


def _surface(extent: Tensor) -> Tensor:
    """Width times height, (…, 2) to (…); 0 where one is negative. Not `prod`: its derivative looks for zeros, for which
    the host waits for a GPU."""
    width, height = extent.clamp(min=0).unbind(-1)
    return width * height


def clip(box: Tensor, width: Tensor | float, height: Tensor | float) -> Tensor:
    """Corners (…, 4) clipped to an image. width and height: numbers, or tensors (…)."""
    width, height = (torch.as_tensor(side, dtype=box.dtype, device=box.device) for side in (width, height))
    x, y = box[..., 0::2], box[..., 1::2]
    zero = torch.zeros((), dtype=box.dtype, device=box.device)
    x, y = x.clamp(zero, width[..., None]), y.clamp(zero, height[..., None])
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], dim=-1)


def intersection(a: Tensor, b: Tensor) -> Tensor:
    """Area of a ∩ b for corners (…, 4): (…)."""
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    return _surface(high - low)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of corners (…, 4), in [0, 1]; 0 where both are empty."""
    shared = intersection(a, b)
    return shared / (area(a) + area(b) - shared).clamp(min=_tiny(a))


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Generalised IoU of corners (…, 4), in (−1, 1]: IoU minus the share of the hull that neither box covers, so that
    disjoint boxes still have a gradient towards each other."""
    shared = intersection(a, b)
    union = area(a) + area(b) - shared
    low, high = torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])
    hull = _surface(high - low)
    tiny = _tiny(a)
    return shared / union.clamp(min=tiny) - (hull - union) / hull.clamp(min=tiny)


def nms(box: Tensor, score: Tensor, threshold: float, label: Tensor | None = None) -> Tensor:
    """Non-maximum suppression: indices of the boxes (n, 4) to keep, best first. A box is dropped if its IoU with a
    better one that is kept, of the same label (n,) if there are labels, exceeds `threshold`; 1
    keeps all."""
    order = score.argsort(descending=True, stable=True)
    if threshold >= 1:
        return order
    overlaps = (iou(box[order][:, None], box[order][None]) > threshold).triu(1)
    if label is not None:
        overlaps &= label[order][:, None] == label[order][None]
    overlaps = overlaps.cpu()
    dropped = torch.zeros(len(order), dtype=torch.bool)
    for i in range(len(order)):
        if not dropped[i]:
            dropped |= overlaps[i]
    return order[~dropped.to(order.device)]


def _tiny(box: Tensor) -> float:
    return torch.finfo(box.dtype).tiny
