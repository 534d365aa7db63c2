"""Models as files that run without this package: ONNX and torch.export, from a checkpoint or an attached model.

    stringpe export runs/train --to onnx --out model.onnx

The basis is folded into the projections first, or written as numbers where that cannot be done: what is exported are
plain rotations. The batch is dynamic; so is the resolution, in whole patches, where the model allows it. The file is
then run on random inputs and compared with the model: weights or outputs that are not finite are refused, and so is a
file whose outputs differ.
"""

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .basis import GivenBasis
from .coords import Calibration
from .encoding import Encoding
from .hosts import attached_layers
from .hosts.attach import fold
from .hosts.transformers import ImageAsPatches, takes_patches
from .models.vit import ViT
from .pretrained import check_weights

FORMATS = ("onnx", "torch-export")
INPUTS = ("image", "depth", "intrinsics", "pose")
"""The inputs of an exported model, of which a model takes the first one, two or four."""

ROUNDING = 1e-4  # the largest difference that rounding makes, in outputs of order one
WRONG = 1e-2  # a difference that rounding does not make, relative to the largest output


class Exported(NamedTuple):
    """An exported model: the file, whether it takes images of any size in whole patches, and the largest difference
    between its outputs and the model's, on another batch than the one that was traced."""

    path: Path
    any_size: bool
    difference: float


class _Plain(nn.Module):
    """A model as a function from tensors to a tuple of tensors, of image (b, 3, H, W), depth (b, H, W) if it takes
    depth, and intrinsics (b, 3, 3) and pose (b, 4, 4) if its coordinates are in the world frame."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self,
        image: Tensor,
        depth: Tensor | None = None,
        intrinsics: Tensor | None = None,
        pose: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        return tuple(self.named(image, depth, intrinsics, pose).values())

    def named(
        self,
        image: Tensor,
        depth: Tensor | None = None,
        intrinsics: Tensor | None = None,
        pose: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The outputs by name."""
        given: dict[str, Any] = {} if depth is None else {"depth": depth}
        if intrinsics is not None and pose is not None:
            given["calibration"] = Calibration(intrinsics, pose)
        out: Any = self.model(image, **given)
        for _, layer in attached_layers(self.model):
            layer.token_coords[0].coords = None
        return _name_outputs(out, self.model)


def _name_outputs(out: Any, model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a model returns, by the names that it gives them: keys or fields. A single tensor is called
    "logits" if the model has a head, else "features"."""
    if isinstance(out, Tensor):
        head = getattr(model, "head", None)
        return {"features" if head is None or isinstance(head, nn.Identity) else "logits": out}
    if hasattr(out, "items"):
        parts = dict(out.items())
    else:
        parts = dict(zip(getattr(out, "_fields", None) or [f"output_{i}" for i in range(len(out))], out, strict=True))
    return {name: part for name, part in parts.items() if isinstance(part, Tensor)}


def bake(model: nn.Module) -> nn.Module:
    """A copy that has no P to compute: it is in the projections, or written as numbers where it cannot be folded."""
    model = copy.deepcopy(model).eval()
    try:
        return fold(model)
    except ValueError:
        for module in model.modules():
            if isinstance(module, Encoding):
                module.basis = GivenBasis(module.basis().detach().contiguous())
        return model


@torch.no_grad()
def export(
    model: nn.Module, path: str | Path, *, to: str = "onnx", size: int | tuple[int, int] | None = None
) -> Exported:
    """Write a model to a file and check what was written against it.

    model: a `stringpe.ViT`, or an attached model that can be called with an image alone, or with depth if it is 3D.
    to: "onnx" or "torch-export". size: of the image, in pixels; by default the one that the model was made for.
    """
    if to not in FORMATS:
        raise ValueError(f"export goes to {' or '.join(FORMATS)}, got {to!r}")
    for package in ("onnxscript", "onnxruntime") if to == "onnx" else ():
        import_module(package)  # before the work, not after it
    patch, inputs = _patch_size(model), _count_inputs(model)
    height, width = _image_size(model, size)
    check_weights(model)
    baked = bake(model)
    plain = _Plain(ImageAsPatches(baked, height, width) if takes_patches(model) else baked)
    plain.eval()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    check = _example(3, height, width, inputs)
    _check_outputs(plain, check, model)
    # First with any size: traced on another shape than the one it is checked on, so that no size can be built in.
    with contextlib.suppress(Exception):  # hosts refuse other sizes in many ways, from assertions to failed traces
        other = _example(2, height + patch[0], width + 2 * patch[1], inputs)
        difference = _write(plain, other, check, patch, path, to)
        if difference <= ROUNDING:
            return Exported(path, True, difference)
    difference = _write(plain, _example(2, height, width, inputs), check, None, path, to)
    largest = max(out.abs().max().item() for out in plain(*check))
    if not difference <= max(ROUNDING, WRONG * largest):
        path.unlink(missing_ok=True)
        raise ValueError(
            f"the exported file does not compute what the model does: outputs of up to {largest:.3g} differ by up to "
            f"{difference:.3g}. Nothing was written; try the other format of {' and '.join(FORMATS)}"
        )
    return Exported(path, False, difference)


def _check_outputs(plain: nn.Module, inputs: tuple[Tensor, ...], model: nn.Module) -> None:
    """Refuse a model that cannot be called with these inputs, and one whose outputs are not finite."""
    names = INPUTS[: len(inputs)]
    try:
        outputs = plain(*inputs)
    except Exception as error:  # of any library, in any way
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"export calls a model with {', '.join(names)} of {tuple(inputs[0].shape)} alone, and this "
            f"{type(model).__name__} cannot be called so ({type(error).__name__}: {reason}): export an image tower "
            f"(of transformers' CLIPModel that is CLIPVisionModel), or pass the size that it was made for"
        ) from error
    for i, out in enumerate(outputs):
        if out.is_floating_point() and not out.isfinite().all():
            raise ValueError(
                f"output {i} of this model is not finite on random images: it would be exported as it is. Check its "
                f"weights, and the size that it was made for"
            )


def _write(
    plain: _Plain,
    example: tuple[Tensor, ...],
    check: tuple[Tensor, ...],
    patch: tuple[int, int] | None,
    path: Path,
    to: str,
) -> float:
    """Trace on one batch, write, run the file on another, and return how far it is from the model there."""
    with _quiet():
        program = _trace(plain, example, patch)
        if to == "onnx":
            inputs, outputs = list(INPUTS[: len(example)]), list(plain.named(*check))
            names: dict[str, Any] = {"input_names": inputs, "output_names": outputs}
            torch.onnx.export(program, (), path, dynamo=True, verbose=False, external_data=False, **names)
        else:
            torch.export.save(program, path)
        written = _run(path, to, check)
    pairs = zip(written, plain(*check), strict=True)
    return max((output - wanted).abs().max().item() for output, wanted in pairs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks of torch's and onnxscript's exporters about themselves, which a user can do nothing about."""
    log = logging.getLogger("onnxscript")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        log.setLevel(level)


def _trace(plain: nn.Module, example: tuple[Tensor, ...], patch: tuple[int, int] | None) -> Any:
    batch = torch.export.Dim("batch", min=1, max=4096)
    rows, columns = torch.export.Dim("rows", min=1, max=512), torch.export.Dim("columns", min=1, max=512)
    sizes = None if patch is None else (patch[0] * rows, patch[1] * columns)
    image: dict[int, Any] = {0: batch} if sizes is None else {0: batch, 2: sizes[0], 3: sizes[1]}
    depth: dict[int, Any] = {0: batch} if sizes is None else {0: batch, 1: sizes[0], 2: sizes[1]}
    shapes = (image, depth, {0: batch}, {0: batch})[: len(example)]
    return torch.export.export(plain, example, dynamic_shapes=shapes)


def _run(path: Path, to: str, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    if to == "torch-export":
        return list(torch.export.load(path).module()(*inputs))
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {name: x.numpy() for name, x in zip(INPUTS, inputs, strict=False)}
    return [torch.from_numpy(out) for out in session.run(None, feeds)]


def _example(batch: int, height: int, width: int, inputs: int) -> tuple[Tensor, ...]:
    """Random images and depth, seen by cameras at the origin and beside it."""
    random = torch.Generator().manual_seed(0)
    image = torch.randn(batch, 3, height, width, generator=random)
    depth = torch.rand(batch, height, width, generator=random) + 0.5
    focal = float(max(height, width))
    intrinsics = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]).repeat(batch, 1, 1)
    pose = torch.eye(4).repeat(batch, 1, 1)
    pose[:, 0, 3] = torch.arange(batch) / 8
    return (image, depth, intrinsics, pose)[:inputs]


def _count_inputs(model: nn.Module) -> int:
    """How many of `INPUTS` a model takes."""
    if isinstance(model, ViT):
        return 4 if model.frame == "world" else 2 if model.depth != "none" else 1
    return 2 if hasattr(model, "depth_lift") else 1


def _patch_size(model: nn.Module) -> tuple[int, int]:
    if isinstance(model, ViT):
        return model.patch_size, model.patch_size
    if takes_patches(model):
        config: Any = model.config
        return config.patch_size, config.patch_size
    for _, layer in attached_layers(model):
        size: Any = layer.token_coords[0].patch_size
        if size is not None:
            return size
    raise ValueError(
        f"export takes a stringpe.ViT or an attached model that is called with an image, not {type(model).__name__}"
    )


def _image_size(model: nn.Module, size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Height and width of the images: as given, or those that the model says it was made for."""
    known: Any = model
    if size is None and takes_patches(model):
        size = known.embeddings.position_embedding_size * known.config.patch_size
    if size is None:
        paths = ("patch_embed", "visual", "config", "config.vision_config", "config.backbone_config", "")
        for holder in (_find(known, path) for path in paths):
            size = size or getattr(holder, "img_size", None) or getattr(holder, "image_size", None)
    if size is None:
        raise ValueError("the model does not say which size of image it is made for: pass size=224 (--size 224)")
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _find(holder: Any, path: str) -> Any:
    """What lies at a path of attributes, or None."""
    for name in filter(None, path.split(".")):
        holder = getattr(holder, name, None)
    return holder
