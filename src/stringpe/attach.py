"""Into models people already have. So far: `fold`, for models built of this library's attention."""

from typing import TypeVar

import torch
from torch import nn

from .basis import Identity
from .encoding import Encoding
from .projection import MultiHead, fold_projections

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def fold(model: Model) -> Model:
    """Put every basis into the projections before it, in place, and return the model: same outputs, plain rotations.

    P goes into W_q and W_k (and their biases); frequencies stay. Refuses, before touching anything, where something
    nonlinear or a gain stands between projection and encoding.
    """
    layers = [
        (name, m)
        for name, m in model.named_modules()
        if isinstance(m, MultiHead) and isinstance(m.encoding, Encoding) and not isinstance(m.encoding.basis, Identity)
    ]
    for name, layer in layers:
        if obstacle := layer.fold_obstacle():
            raise ValueError(
                f"cannot fold {name or type(layer).__name__}: between projection and encoding stands {obstacle}"
            )
    folded: dict[int, Encoding] = {}  # layers that shared an encoding go on sharing it
    for _, layer in layers:
        encoding = layer.encoding
        assert isinstance(encoding, Encoding)
        ((weight, bias),) = fold_projections([layer], [encoding.basis()])
        layer.qkv.weight[: len(weight)] = weight
        if bias is not None:
            layer.qkv.bias[: len(bias)] = bias
        if id(encoding) not in folded:
            plain = Identity(encoding.head_dim, encoding.num_heads).to(encoding.frequencies.weight)
            folded[id(encoding)] = Encoding(plain, encoding.frequencies, name=f"{encoding.name} (folded)")
        layer.encoding, layer.fold = folded[id(encoding)], True
    return model
