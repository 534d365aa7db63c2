"""How the parameters of a new model start: every model of the library, in one place.

| parameter | start |
|---|---|
| weights of linear layers | truncated normal, std 0.02, more for fewer than 256 inputs (`weight_std`) |
| linear layers that the whole signal goes through: attention pooling, projections, MLPs of box heads | gain / √fan-in |
| patch embedding, convolutions | normal, std = gain / √fan-in, so that the size of a patch does not matter |
| embeddings of words | normal, std 1 / √dim, as large as the table of positions beside them |
| class token, registers, pooling query, camera vectors | truncated normal, std 0.02 |
| biases, norms | zero; gain one and offset zero |
| classifiers | 1 / √fan-in, so that they pass a gradient to the layers before them from the first step on |
| modules with a `reset_parameters` of their own | as it does: box heads, the scale of a lift |
| position encodings, tables of absolute embeddings | by their own `reset_parameters` |

Why 0.02 and not Xavier: under Xavier's start the residual stream of 8 layers × 256 grows sevenfold, and what attention
adds to all tokens alike drowns what each of them has of its own. `measure_signal` shows both numbers for any ViT.

Why more for narrow layers: 0.02 multiplies the size of a signal by 0.02 √inputs, 0.32 at 256 inputs, where it was
measured, and 0.11 at 32. The values and outputs of attention make that 0.013: attention contributes next to nothing at
the start, and for hundreds of steps a narrow model cannot use positions (docs/models.md has the numbers).

`initialise_by_name` draws every parameter from a generator of its own, seeded with (seed, the parameter's name). Two
models that differ in their encoding then agree, bit for bit, in every parameter that both have.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..encoding import PositionEncoding
from ..seeds import derive

if TYPE_CHECKING:
    from .vit import ViT

WEIGHTS = ("truncated_normal", "width_scaled", "depth_scaled", "uniform", "xavier")
STD = 0.02
PATCH_GAIN = 3**-0.5
"""Tokens of patches are this many times as large as the pixels, as torch's own start of a convolution makes them."""

_WIDTH = 256  # inputs of the layers at which 0.02 was compared with other starts by training
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Initialisation:
    """How a model starts.

    weights: of linear layers: "truncated_normal", std 0.02, as timm and DeiT, and more below 256 inputs (`weight_std`);
        "width_scaled", std 0.32 / √inputs, which is 0.02 for 256 inputs; "depth_scaled", as "truncated_normal" with the
        last layer of each of the k residual branches of a stack divided by √k (k = 2 · layers), as GPT-2; "uniform",
        within ± 1 / √inputs, as torch starts a linear layer; or "xavier", uniform with std √(2 / (inputs + outputs)),
        which `measure_signal` advises against.
    patch_gain: of the patch embedding, whose std is patch_gain / √fan-in.
    """

    weights: str = "truncated_normal"
    patch_gain: float = PATCH_GAIN

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights must start as one of {', '.join(WEIGHTS)}, got {self.weights!r}")
        if not 0 < self.patch_gain < float("inf"):
            raise ValueError(f"the gain of the patch embedding must be positive and finite, got {self.patch_gain}")


DEFAULT = Initialisation()


@runtime_checkable
class ResidualBlock(Protocol):
    """A block that names the layers whose outputs it adds to the residual stream."""

    def residual_outputs(self) -> list[nn.Linear]: ...


def initialise(model: nn.Module, how: Initialisation = DEFAULT, *, skip: Collection[nn.Module] = ()) -> None:
    """Start all parameters from torch's global generator, except inside the modules of `skip`. Position encodings keep
    their values: they started when they were built, and one that was given to a model may be trained."""
    _initialise(model, how, [*skip, *_encodings(model)], seed=lambda name: None)


def initialise_by_name(
    model: nn.Module, seed: int, how: Initialisation = DEFAULT, *, skip: Collection[nn.Module] = ()
) -> None:
    """Start every parameter and every encoding under a generator seeded with (seed, its name), so that models that
    share a seed agree in the parameters that they have in common. torch's global generator is left as it was.

    skip: modules inside the model that keep their values, for example a pretrained tower.
    """
    elsewhere = {p.device.type for p in model.parameters()} - {"cpu", "meta"}
    if elsewhere:
        raise ValueError(
            f"the model is on {', '.join(sorted(elsewhere))}, where the same seed draws other numbers: initialise it "
            f"on the CPU, then move it"
        )
    state = torch.get_rng_state()
    try:
        _initialise(model, how, skip, seed=lambda name: _seed_cpu(derive(seed, "parameters", name)))
    finally:
        torch.set_rng_state(state)


def weight_std(inputs: int) -> float:
    """The standard deviation at which a linear layer with that many inputs starts: 0.02 from 256 inputs on,
    5.12 / inputs below, but at most 1 / √inputs, at which the output is as large as the input."""
    return max(STD, min(STD * _WIDTH / inputs, inputs**-0.5))


def draw_by_fan_in(layer: nn.Linear | nn.Conv2d, gain: float = PATCH_GAIN) -> None:
    """Start a layer that reads raw numbers (pixels, actions, sines of a position), or through which the whole signal
    goes, at std gain / √fan-in, without a bias: its outputs are as large for 7 inputs as for 700."""
    nn.init.normal_(layer.weight, std=gain / layer.weight[0].numel() ** 0.5)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def draw_classifier(layer: nn.Linear, bias: float = 0.0) -> None:
    """Start a classifier at std 1 / √inputs, with this bias. From zero it would pass no gradient to the layers before
    it at the first step, and hardly one that tells images apart in many more: docs/models.md has what that costs."""
    draw_by_fan_in(layer, gain=1.0)
    nn.init.constant_(layer.bias, bias)


def set_to_zero(layer: nn.Linear) -> None:
    """Start a layer at zero: the last one of a branch that is to begin as if it were not there."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class Signal(NamedTuple):
    """What blocks of attention do to patch tokens, as `measure_signal` measures it.

    own: RMS of what distinguishes a token after the last block from the mean of its image, as a share of the token's
        RMS: 1 where tokens have nothing in common, 0 where all are alike.
    own_before: the same ahead of the first block.
    before, after: RMS of the tokens ahead of the first and behind the last block.
    """

    own: float
    own_before: float
    before: float
    after: float

    @property
    def kept(self) -> float:
        """The share of a token's own signal that comes out of the blocks, relative to the share that went in."""
        return self.own / self.own_before

    @property
    def growth(self) -> float:
        """How many times as large the residual stream leaves the blocks as it entered them."""
        return self.after / self.before


@torch.no_grad()
def measure_signal(model: "ViT", image: Tensor, depth: Tensor | None = None) -> Signal:
    """The share of a token's own signal after the last block of a ViT, and the growth of its residual stream, on
    images (b, 3, H, W) and depth (b, H, W) or None.

    A new ViT of 8 layers × 256 with Cayley-STRING has own 0.76 and growth 1.5 on 16 images of Tiny-ImageNet; from
    Xavier's start 0.29 and 7.1 (seed 0)."""
    ends: list[Tensor] = []
    hooks = [
        model.blocks[0].register_forward_pre_hook(lambda _, inputs: ends.append(inputs[0])),
        model.blocks[-1].register_forward_hook(lambda _, inputs, output: ends.append(output)),
    ]
    training = model.training
    try:
        model.eval().features(image, depth)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    first, last = (x[:, model.front :].double() for x in ends)  # (b, n, dim), without class token and registers
    own_before, own = (_rms(x - x.mean(1, keepdim=True)) / _rms(x) for x in (first, last))
    return Signal(own, own_before, _rms(first), _rms(last))


def _initialise(
    model: nn.Module, how: Initialisation, skip: Collection[nn.Module], seed: Callable[[str], None]
) -> None:
    """Children first, so that `reset_parameters` of a module can start its children in another way. `seed` is called
    with the name of every parameter or module before it is drawn."""
    left_alone = {id(inner) for module in skip for inner in module.modules()}
    in_encodings = {id(inner) for encoding in _encodings(model) for inner in encoding.modules()}
    with torch.no_grad():
        for name, module in reversed(list(model.named_modules())):
            if id(module) in left_alone:
                continue
            if id(module) not in in_encodings:
                for key, parameter in module.named_parameters(recurse=False):
                    seed(f"{name}.{key}".lstrip("."))
                    _fill(module, key, parameter, how)
            own = getattr(type(module), "reset_parameters", None)  # of this package, and not inherited from torch
            if own is not None and own.__module__.partition(".")[0] != "torch":
                seed(name)
                module.reset_parameters()
        if how.weights == "depth_scaled":
            _scale_residuals(model, left_alone)


def _fill(module: nn.Module, name: str, parameter: Tensor, how: Initialisation) -> None:
    """Start one parameter of a layer of torch, or one that a module of this package holds itself: a learned token."""
    if isinstance(module, _NORMS) and name == "weight":
        nn.init.ones_(parameter)
    elif name == "bias":
        nn.init.zeros_(parameter)
    elif isinstance(module, nn.Conv2d):
        nn.init.normal_(parameter, std=how.patch_gain / parameter[0].numel() ** 0.5)
    elif isinstance(module, nn.Linear) and how.weights == "uniform":
        nn.init.uniform_(parameter, -(parameter.shape[1] ** -0.5), parameter.shape[1] ** -0.5)
    elif isinstance(module, nn.Linear) and how.weights == "xavier":
        nn.init.xavier_uniform_(parameter)
    elif isinstance(module, nn.Linear) and how.weights == "width_scaled":
        nn.init.trunc_normal_(parameter, std=STD * (_WIDTH / parameter.shape[1]) ** 0.5)
    elif isinstance(module, nn.Linear):
        nn.init.trunc_normal_(parameter, std=weight_std(parameter.shape[1]))
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    else:
        nn.init.trunc_normal_(parameter, std=STD)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        parameter[module.padding_idx] = 0


def _scale_residuals(model: nn.Module, left_alone: Collection[int]) -> None:
    """Divide the last layer of the k residual branches of each stack of blocks by √k."""
    for stack in model.modules():
        if isinstance(stack, nn.ModuleList) and id(stack) not in left_alone:
            blocks = [block for block in stack if isinstance(block, ResidualBlock)]
            last = [layer for block in blocks for layer in block.residual_outputs()]
            for layer in last:
                layer.weight.div_(len(last) ** 0.5)


def _encodings(model: nn.Module) -> list[PositionEncoding]:
    return [module for module in model.modules() if isinstance(module, PositionEncoding)]


def _seed_cpu(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU as well


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())
