"""What a vision transformer does with depth: lift patches to 3D, and see surface normals (section 4.4 of the paper).

A lifted patch has one of two sets of coordinates. In the frame of its own camera (`DepthLift`) it is row, column and
depth. In the frame of the world (`WorldLift`) it is the point where the patch lies, the same for every calibrated
camera that sees it: attention between patches, of one view or of two, is then a function of their metric displacement.
Where the cameras stand enters through the points alone, and a shift of the whole world changes no score.
"""

import warnings

import torch
from torch import Tensor, nn

from ..checks import check_tensor
from ..coords import Calibration, backproject, lift_depth, patch_points, pool_depth, valid_depth

FAR = 100.0
"""Metres. If half of a depth map lies beyond, it is in millimetres."""

FRAMES = ("camera", "world")
"""Where coordinates live: each camera in its own (row, column and perhaps depth), or all cameras in one, in metres."""

CHANNEL_CENTRE, CHANNEL_SPREAD = 2.5, 1.5
"""Metres: see `DepthChannel`."""

PER_METRE = 10.0
"""Where the scale of world coordinates starts: 10 cm count as one patch."""


def check_depth(depth: Tensor, shape: tuple[int, int, int]) -> None:
    """Refuse depth that is not (b, H, W) metres, one value per pixel of the image."""
    check_tensor("depth", depth)
    if tuple(depth.shape) != tuple(shape):
        raise ValueError(
            f"depth must be {tuple(shape)}, one value per pixel of the image in metres, got {tuple(depth.shape)}: "
            f"resize it to the image, by the nearest pixel"
        )
    check_metres(depth)


@torch.no_grad()
def looks_like_millimetres(depth: Tensor) -> bool:
    """Whether the median of the valid depth lies beyond `FAR`. Waits for the device."""
    capturing = depth.is_cuda and torch.cuda.is_current_stream_capturing()
    if depth.is_meta or capturing:
        return False
    valid = depth[valid_depth(depth)]
    return bool(len(valid)) and bool(valid.median() > FAR)


def warn_of_millimetres(model: nn.Module, depth: Tensor) -> None:
    """Warn if depth looks like millimetres: once per model, since the check makes the host wait for a GPU, and never
    while compiling."""
    if torch.compiler.is_compiling() or getattr(model, "_depth_judged", False):
        return
    model._depth_judged = True  # type: ignore[assignment]
    if looks_like_millimetres(depth):
        warnings.warn(
            f"half of this depth lies beyond {FAR:g} m, which looks like millimetres: depth is in metres, so divide it "
            f"by 1000",
            UserWarning,
            stacklevel=4,
        )


class DepthChannel(nn.Module):
    """Depth (b, H, W) in metres as an image channel (b, 1, H, W): (depth − centre) / spread, which indoors is about as
    large as a colour. Holes count as 0 m.

    In plain metres the channel would be large and of one sign, so that each step of an optimiser moved all tokens in a
    common direction: `stringpe train scenes` reached 27.0 % in place of 29.4 % (Cayley-STRING, seed 100).

    scale: centre and spread. They belong to a model's weights, so that weights which were trained with other units are
    not loaded without a word.
    """

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.scale[0], self.scale[1] = CHANNEL_CENTRE, CHANNEL_SPREAD

    def forward(self, depth: Tensor) -> Tensor:
        centre, spread = self.scale.to(depth.dtype)
        return ((torch.where(valid_depth(depth), depth, 0) - centre) / spread)[:, None]


class DepthLift(nn.Module):
    """The learnable linear layer of section 4.4: z = scale · mean valid depth of the patch + offset, third coordinate.

    With scale 0 the patches lie in a plane and the model is its 2D self; the scale still has gradient, since the
    encoding's z frequencies are not zero. Without depth, z is 0 for every patch.
    """

    def __init__(self, patch_size: int | tuple[int, int], units: str, *, scale: float = 2.0):
        super().__init__()
        self.patch_size, self.units, self.start = patch_size, units, scale
        self.scale, self.offset = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.start)
        nn.init.zeros_(self.offset)

    def forward(self, depth: Tensor) -> Tensor:
        """(b, H, W) metres to (b, n, 3)."""
        check_metres(depth)
        # In float32 whatever the model's dtype: coordinates are not for half precision.
        return lift_depth(
            depth.float(), self.patch_size, scale=self.scale.float(), offset=self.offset.float(), units=self.units
        )

    def heights(self, depth: Tensor) -> Tensor:
        """z alone: (b, H, W) metres to (b, n)."""
        check_metres(depth)
        return self.affine(pool_depth(depth.float(), self.patch_size).flatten(1))

    def affine(self, metres: Tensor) -> Tensor:
        """scale · metres + offset, in float32."""
        check_metres(metres)
        return metres.float() * self.scale.float() + self.offset.float()

    def flat(self, plane: Tensor) -> Tensor:
        """Patches without depth: (…, n, 2) to (…, n, 3) with z = 0. The zero is a product with scale and offset, so
        that they have a gradient (of zero) in every step, as distributed training needs."""
        tied = 0 * (self.scale.float() + self.offset.float())
        return torch.cat([plane, tied.to(plane.dtype).expand(*plane.shape[:-1], 1)], dim=-1)

    def extra_repr(self) -> str:
        return f"patch_size={self.patch_size}, units={self.units!r}"


class WorldLift(nn.Module):
    """r = per_metre · the point of a patch in the world: depth (b, H, W) or (b, v, H, W) in metres to (b, v n, 3).

    per_metre is learned: it brings metres to the units of the encoding's frequencies. There is no offset: no score
    between patches would depend on it. Tokens without a position stand at the origin of the world, for a robot its
    base.
    """

    def __init__(self, patch_size: int | tuple[int, int], *, per_metre: float = PER_METRE):
        super().__init__()
        self.patch_size, self.start = patch_size, per_metre
        self.per_metre = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.per_metre, self.start)

    def forward(self, depth: Tensor, calibration: Calibration) -> Tensor:
        return self.measure(world_points(depth, calibration, self.patch_size))

    def measure(self, points: Tensor) -> Tensor:
        """Points in metres as coordinates."""
        return points * self.per_metre.float()

    def extra_repr(self) -> str:
        return f"patch_size={self.patch_size}"


def world_points(depth: Tensor, calibration: Calibration, patch_size: int | tuple[int, int]) -> Tensor:
    """The patches' points (b, v n, 3) in metres, camera after camera, in float32 whatever the dtype of depth."""
    check_metres(depth)
    if not isinstance(calibration, tuple) or len(calibration) != 2:
        raise TypeError(f"calibration must be a coords.Calibration, got {type(calibration).__name__}")
    for what, matrix in zip(Calibration._fields, calibration, strict=True):
        check_tensor(what, matrix)
    intrinsics, pose = (matrix.float() for matrix in calibration)
    return patch_points(depth.float(), intrinsics, patch_size, pose=pose)


def check_metres(depth: Tensor) -> None:
    """Refuse depth in whole numbers, which is in millimetres or steps of some file, and not in metres."""
    check_tensor("depth", depth)
    if not depth.is_floating_point():
        raise ValueError(f"depth is in metres, as floats, got {depth.dtype}: for millimetres pass depth.float() / 1000")


def surface_normals(depth: Tensor, intrinsics: Tensor | None = None) -> Tensor:
    """Unit surface normals in the camera frame, pointing to the camera: depth (b, H, W) in metres to (b, 3, H, W).

    Cross product of the differences between back-projected neighbours. Zero where the pixel or a neighbour is a hole.
    intrinsics: (3, 3) or (b, 3, 3); by default the centre is the middle and the focal length the width of the image.
    """
    check_metres(depth)
    _, height, width = depth.shape
    if intrinsics is None:
        intrinsics = _default_intrinsics(height, width, depth.dtype, depth.device)
    points = backproject(depth, intrinsics)
    across, down = _difference(points, 2), _difference(points, 1)
    normal = torch.linalg.cross(down, across)  # x right, y down: this product points to the camera
    length = normal.norm(dim=-1, keepdim=True)
    valid = valid_depth(depth)
    solid = valid & _neighbours(valid, 1) & _neighbours(valid, 2)
    unit = normal / torch.where(length > 0, length, 1)
    return torch.where(solid[..., None], unit, 0).movedim(-1, 1)


def _default_intrinsics(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(3, 3), filled on the device: from a list of numbers, the host would wait until the device has them."""
    matrix = torch.eye(3, dtype=dtype, device=device)
    matrix[:2].mul_(width)
    matrix[0, 2].fill_(width / 2)
    matrix[1, 2].fill_(height / 2)
    return matrix


def world_normals(depth: Tensor, calibration: Calibration) -> Tensor:
    """Surface normals in the world frame: depth (b, v, H, W) in metres to (b v, 3, H, W)."""
    lead = depth.shape[:-2]
    intrinsics = calibration.intrinsics.float().expand(*lead, 3, 3).flatten(0, -3)
    turn = calibration.pose.float()[..., :3, :3].expand(*lead, 3, 3).flatten(0, -3)
    return torch.einsum("bij,bjhw->bihw", turn, surface_normals(depth.float().flatten(0, -3), intrinsics))


def merge_views(tensor: Tensor, ends: int) -> Tensor:
    """Views as samples: (b, v, …) to (b v, …) where there is an axis of views before the last `ends`."""
    if not isinstance(tensor, Tensor) or tensor.ndim != ends + 2 or tensor.layout != torch.strided:
        return tensor
    return tensor.flatten(0, 1)


def check_frame(frame: str, image: Tensor, depth: Tensor | None, calibration: Calibration | None) -> None:
    """Refuse views and calibration that a model would not use, and missing inputs that it needs."""
    if frame == "camera":
        if calibration is not None:
            raise ValueError(
                "this model sees each camera in a frame of its own and would ignore calibration: leave it out, or "
                "build the model with frame='world'"
            )
        if isinstance(image, Tensor) and image.ndim == 5:
            raise ValueError(
                f"several views per sample, image {tuple(image.shape)}, need one frame: build the model with "
                f"frame='world' and pass calibration"
            )
        return
    missing = [name for name, given in (("depth", depth), ("calibration", calibration)) if given is None]
    if missing:
        raise ValueError(
            f"frame='world' places patches by depth and calibrated cameras, and got no {' and no '.join(missing)}: "
            f"pass depth in metres and calibration=coords.Calibration(intrinsics, pose), or use frame='camera'"
        )


def _difference(points: Tensor, axis: int) -> Tensor:
    """Central differences along an axis of (b, H, W, 3), one-sided at the borders."""
    size = points.shape[axis]
    index = torch.arange(size, device=points.device)
    ahead, behind = (index + 1).clamp(max=size - 1), (index - 1).clamp(min=0)
    return points.index_select(axis, ahead) - points.index_select(axis, behind)


def _neighbours(valid: Tensor, axis: int) -> Tensor:
    """Whether both neighbours along an axis are valid; beyond the border counts as the border."""
    size = valid.shape[axis]
    index = torch.arange(size, device=valid.device)
    ahead, behind = (index + 1).clamp(max=size - 1), (index - 1).clamp(min=0)
    return valid.index_select(axis, ahead) & valid.index_select(axis, behind)
