"""Depth from one image, with a Depth-Anything-V2 model that transformers loads from a local folder.

    estimate = DepthEstimator("depth-anything-v2-metric-indoor-small")
    depths = estimate([image, …])          # uint8 (3, H, W) each, to metres (H, W) each

The folder holds config.json, model.safetensors and preprocessor_config.json, as models are published. Only the Small
weights of Depth-Anything-V2 are Apache-2.0; the larger ones are for research only. Images are prepared here, with
torch alone, as preprocessor_config.json says.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..io.files import digest_file
from ..io.imports import LANGUAGE, import_optional
from .transformers_folder import (
    describe_weights,
    load_transformers,
    normalise_pixels,
    read_preparation,
    resize_pixels,
)

_DEFAULTS = {
    "size": {"height": 518, "width": 518},
    "ensure_multiple_of": 14,
    "keep_aspect_ratio": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
"""The preprocessing of Depth-Anything, for folders without preprocessor_config.json."""

_SHAPE = {"size": {"height": int, "width": int}, "ensure_multiple_of": int, "keep_aspect_ratio": bool}

_LARGEST_SIDE = 1 << 14  # pixels


class DepthEstimator:
    """A model that estimates depth from images. metric: whether its outputs are metres.

    A relative model gives disparity without a unit. It is refused unless `made_up` = (near, far) gives the distances in
    metres to which the disparity of every image is stretched: then the order of distances is right, and their values
    are made up.
    """

    def __init__(
        self, folder: str | Path, *, device: str | torch.device = "cpu", made_up: tuple[float, float] | None = None
    ):
        self.folder, self.device, self.made_up = Path(folder), torch.device(device), made_up
        if not (self.folder / "config.json").is_file():
            raise ValueError(f"{folder} has no config.json: give the folder of a depth model of transformers")
        kind = import_optional("transformers", "depth estimation", LANGUAGE, "AutoModelForDepthEstimation")
        self.model: Any = load_transformers(kind, self.folder).eval().to(self.device)
        unit = getattr(self.model.config, "depth_estimation_type", "relative")
        self.metric = unit == "metric"
        self.max_depth = float(getattr(self.model.config, "max_depth", None) or 0)
        if not self.metric and made_up is None:
            raise ValueError(
                f"{folder} is a {unit} model: it gives disparity without a unit, not metres. Use a metric one "
                f"(Depth-Anything-V2-Metric-Indoor), or give the distances to stretch it to: --made-up 0.5 10"
            )
        if made_up is not None and (self.metric or not 0 < made_up[0] < made_up[1]):
            raise ValueError(
                f"made_up must be (near, far) in metres, 0 < near < far, and is for relative models only, got {made_up}"
            )
        self.preparation = how = read_preparation(self.folder, _SHAPE, _DEFAULTS)
        sizes = (how["size"]["height"], how["size"]["width"], how["ensure_multiple_of"])
        if not 0 < min(sizes) <= max(sizes) <= _LARGEST_SIDE:
            raise ValueError(
                f"{folder}/preprocessor_config.json does not say how images are prepared: sizes are from 1 to "
                f"{_LARGEST_SIDE} pixels, got {max(sizes) if min(sizes) > 0 else min(sizes)}; download it again"
            )

    @torch.no_grad()
    def __call__(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Depth in metres (H, W), float32 on the CPU, for uint8 images (3, H, W) whose `input_size` is the same."""
        sizes = {self.input_size(image.shape[1], image.shape[2]) for image in images}
        if len(sizes) != 1:
            raise ValueError(
                f"images of one batch must have one size in the model (`input_size`), got {sorted(sizes)}: batch "
                f"images of one size together"
            )
        batch = torch.cat([self._prepare(image.to(self.device), next(iter(sizes))) for image in images])
        outputs = self._run(batch)
        return [self._to_metres(output, image.shape[1:]).cpu() for output, image in zip(outputs, images, strict=True)]

    def _run(self, batch: Tensor) -> Tensor:
        """The model's output (b, h, w); ValueError that names its folder if its config.json does not fit its layers."""
        try:
            output: Tensor = self.model(pixel_values=batch).predicted_depth.float()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"the model in {self.folder} does not run ({reason}): check its config.json, or download it again"
            ) from None
        if not output.isfinite().all():
            raise ValueError(
                f"the model in {self.folder} gives depth that is not finite: check its config.json and "
                f"preprocessor_config.json, or download it again"
            )
        return output

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in the model: scaled as the side that changes less, rounded to whole patches."""
        how = self.preparation
        rows, columns = how["size"]["height"] / height, how["size"]["width"] / width
        if how["keep_aspect_ratio"]:
            rows = columns = columns if abs(1 - columns) < abs(1 - rows) else rows
        patch = how["ensure_multiple_of"]
        return max(patch, round(height * rows / patch) * patch), max(patch, round(width * columns / patch) * patch)

    def provenance(self) -> dict[str, Any]:
        """What the depth depends on: the model's name and hashes, versions, and the unit."""
        import transformers

        unit = "metres" if self.metric else f"made up: disparity stretched to {self.made_up} metres in every image"
        return {
            **describe_weights(self.folder),
            "config_sha256": digest_file(self.folder / "config.json"),
            "estimate": unit,
            "max_depth": self.max_depth,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def _prepare(self, image: Tensor, size: tuple[int, int]) -> Tensor:
        """Normalised floats (1, 3, h, w)."""
        return normalise_pixels(resize_pixels(image, size), self.preparation)

    def _to_metres(self, output: Tensor, size: Sequence[int]) -> Tensor:
        """The model's output (h, w) to metres at the image's size."""
        depth = F.interpolate(output[None, None], tuple(size), mode="bilinear", align_corners=False)[0, 0]
        if self.metric:
            return depth.clamp(min=0)
        assert self.made_up is not None
        near, far = self.made_up
        low, high = depth.aminmax()
        share = (depth - low) / torch.where(high > low, high - low, 1)  # 1 is nearest
        return 1 / (1 / far + share * (1 / near - 1 / far))
