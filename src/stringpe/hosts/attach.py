"""Into models people already have: `attach` an encoding, `lift` from 2D to 3D, `fold` for inference.

All three change a model in place and return it. Its weights stay where they are, under their names.
"""

from typing import Any, TypeVar

import torch
from torch import nn

from .. import hosts
from ..attention import MultiHead
from ..basis import Identity, Interleaved
from ..catalogue import create, find, names
from ..checks import check_module
from ..composed_frequencies import Gated, with_depth
from ..encoding import Encoding
from ..frequencies import GivenFrequencies, Spectrum
from ..models.depth import DepthLift
from ..models.vit import ViT
from ..own_projections import owned_layers
from .attention import ATTENTION_KINDS, HostAttention
from .description import Grid, Layer, Rope, find_rotaries, read_rotary
from .token_coords import CoordsForAngles, DropPatches, TokenCoords

Model = TypeVar("Model", bound=nn.Module)

START = 1e-7  # of the gates: see `attach`


def attach(
    model: Model,
    encoding: str = "cayley",
    *,
    coord_dim: int = 2,
    start: str = "same",
    attention: str = "softmax",
    units: str = "index",
    **options: Any,
) -> Model:
    """Put an encoding into every self-attention of a vision transformer of timm, transformers or open_clip, in place.

    encoding: a name of `stringpe.names()`, built for every layer on its own. `**options`: as of `stringpe.create`; for
        example `attach(model, "rope", learnable=True)`, with frequencies that learn, as all do in the paper's ALOHA
        experiments.
    coord_dim: 2, or 3 to lift as well (see `lift`).
    start: "same", the model computes what it did before and learns from there; or "replace", its absolute position
        embedding (or its own RoPE) goes, and the encoding has full strength from the first step.
    attention: "softmax", or "linear" for linear attention in its place, by the Performer's features, which estimate the
        softmax.
    units: of the patch grid: "index" extrapolates to other resolutions, "normalised" interpolates, or "centred". RoPE
        that is kept brings its own.

    How "same" can be the same and still learn: with an exact identity R(r) = I, no gradient reaches S, since
    P I Pᵀ = I for every P. So frequencies stand behind a gate for each head and axis that starts at 1e-7, not at 0:
    outputs agree to rounding, the gate has gradient of order one, and frequencies and S have gradient of the order of
    the gate, which grows with it. A model that has RoPE keeps it, exactly: its frequencies become Θ of every layer
    (learned unless learnable=False; for "rope" fixed unless learnable=True), its channel layout part of the basis, and
    P = I at the start.
    """
    check_module("model", model)
    _check(model, encoding, coord_dim, start, attention)
    for found in hosts.find_towers(model):
        layers = [layer for layer, _ in found.layers.values()]
        rope = _read_rope(found, layers, units) if start == "same" or found.tower.rotary else None
        if rope is None or start == "replace":
            sizes = ({"coord_dim": found.tower.axes, **_sizes(entry)} for entry in found.layers.values())
            encodings = [_create(encoding, one, start, options) for one in sizes]
            _put_in(found, encodings, Grid(units), attention, keep=start == "same")
        else:
            _put_in(found, _carry_over(found, rope, encoding, options), rope.grid, attention)
        for table in found.tower.table.split() if start == "replace" else ():
            if hosts.has_path(found.module, table):
                _drop_table(found.module, table, found.tower.prefix_rows(found.module))
    arguments = {"encoding": encoding, "start": start, "attention": attention, "units": units, **options}
    record(model, "attach", arguments)
    return lift(model) if coord_dim == 3 else model


def _check(model: nn.Module, encoding: str, coord_dim: int, start: str, attention: str) -> None:
    find(encoding)  # an unknown name is refused before anything is built
    for what, value, allowed in (
        ("coord_dim", coord_dim, (2, 3)),
        ("start", start, ("same", "replace")),
        ("attention", attention, ATTENTION_KINDS),
    ):
        if value not in allowed:
            raise ValueError(f"{what} must be one of {', '.join(map(str, allowed))}, got {value!r}")
    if any(True for _ in hosts.attached_layers(model)):
        raise ValueError(f"this {type(model).__name__} has an encoding attached already: start from a fresh model")


def carry_rope(model: Model, rope: Rope, encoding: str) -> Model:
    """Attach a RoPE that stands elsewhere (in a checkpoint, say) to a model that has none."""
    _check(model, encoding, 2, "same", "softmax")
    (found,) = hosts.find_towers(model)
    _put_in(found, _carry_over(found, rope, encoding, {}), rope.grid, "softmax")
    return model


def _read_rope(found: hosts.FoundTower, layers: list[nn.Module], units: str) -> Rope | None:
    """The RoPE of a tower, or None."""
    tower = found.tower
    if not tower.rotary:
        return tower.rope(found.module, layers)
    if units != "index":
        raise ValueError(f"this model says itself where its patches are, in indices: drop units={units!r}")
    first, *_ = find_rotaries(found.module, tower.rotary).values()
    head_dim: Any = layers[0].head_dim
    return read_rotary(first, head_dim, tower.axes, len(layers))


def _put_in(
    found: hosts.FoundTower, encodings: list[Encoding], grid: Grid, attention: str, *, keep: bool = False
) -> None:
    """Put encodings into the attention of a tower, and hooks where its coordinates come from."""
    module, tower = found.module, found.tower
    patches = module.get_submodule(tower.patches)
    size: Any = patches.stride if isinstance(patches, nn.Conv2d) else getattr(patches, "patch_size", None)
    size = size if isinstance(size, tuple) else None
    coords = TokenCoords(grid, size)
    for one, (name, (layer, parts)) in zip(encodings, found.layers.items(), strict=True):
        weight = next(layer.parameters())
        ours = HostAttention(layer, parts, one.to(weight.device, weight.dtype), coords, attention, keep=keep)
        if type(layer).__module__.startswith("transformers."):
            hosts.transformers.record_maps(ours)
        module.set_submodule(name, ours)
    if tower.rotary:
        coords.handed_on = True
        for path in find_rotaries(module, tower.rotary):
            module.set_submodule(path, CoordsForAngles(coords))
    elif isinstance(patches, (nn.Conv2d, nn.Conv3d)):
        patches.register_forward_hook(coords.read_grid)
    else:
        patches.register_forward_hook(getattr(coords, tower.reader), with_kwargs=True)
    if tower.rope_path:
        setattr(module, tower.rope_path, None)
    if tower.dropout:
        _follow_dropout(module, tower.dropout, coords)


def _sizes(entry: tuple[nn.Module, Layer]) -> dict[str, Any]:
    layer, parts = entry
    heads = getattr(layer, "num_kv_heads", None) or getattr(layer, parts.heads)
    return {"head_dim": getattr(layer, parts.head_dim), "num_heads": heads}


def _create(encoding: str, sizes: dict[str, Any], start: str, options: dict[str, Any]) -> Encoding:
    one = _build(encoding, {**sizes, **options})
    if start == "same":
        one.frequencies = Gated(one.frequencies, start=START)
    return one


def _build(encoding: str, options: dict[str, Any]) -> Encoding:
    one = create(encoding, **options)
    if not isinstance(one, Encoding):
        raise ValueError(
            f"{encoding!r} is a {type(one).__name__}: attach takes encodings with a basis and frequencies, such as "
            f"{', '.join(names())}"
        )
    return one


def _carry_over(found: hosts.FoundTower, rope: Rope, encoding: str, options: dict[str, Any]) -> list[Encoding]:
    """A RoPE as encodings of that name, one per layer: with their basis, and learned where their frequencies are."""
    spectral = {*Spectrum.__annotations__, "frequencies", "share_frequencies", "every_plane"} - {"learnable"}
    if lost := [name for name in options if name in spectral]:
        raise ValueError(
            f"this model has RoPE, which sets the frequencies: drop {', '.join(lost)}, or use start='replace'"
        )
    encodings = []
    for theta, sizes in zip(rope.theta, map(_sizes, found.layers.values()), strict=True):
        one = _build(encoding, {"coord_dim": theta.shape[-2], **sizes, **options})
        if not one.basis.starts_at_identity:
            raise ValueError(
                f"this model has RoPE, whose planes are not those of a {encoding} basis: attach 'rope', 'rope_mixed', "
                f"'cayley' or 'general' to go on from it, or use start='replace'"
            )
        basis = Interleaved(one.basis) if rope.interleaved else one.basis
        given = theta.expand(sizes["num_heads"], -1, -1).clone()
        frequencies = GivenFrequencies(given, learnable=one.frequencies.learnable)
        encodings.append(Encoding(basis, frequencies, name=encoding))
    return encodings


def _follow_dropout(module: nn.Module, path: str, coords: TokenCoords) -> None:
    """Make patch dropout say what it keeps."""
    drop: Any = getattr(module, path, None)
    if drop is None or isinstance(drop, nn.Identity):
        return
    if type(drop).__name__ == "PatchDropoutWithIndices":
        drop.register_forward_hook(coords.read_kept)
        return
    setattr(module, path, DropPatches(drop.prob, getattr(drop, "ordered", False), coords))


@torch.no_grad()
def _drop_table(module: nn.Module, path: str, prefix_rows: int) -> None:
    """Zero the rows of the patches and freeze the table. The rows of prefix tokens stay: they say nothing of places."""
    parent, _, name = path.rpartition(".")
    held: Any = getattr(module.get_submodule(parent), name)
    table: Any = held.weight if isinstance(held, nn.Embedding) else held
    table[..., prefix_rows:, :] = 0
    table.requires_grad_(False)


def lift(model: Model, encoding: str = "cayley", **options: Any) -> Model:
    """A 2D model becomes 3D, in place: `model(image, depth=…)`, with depth (b, H, W) in metres, holes as 0, NaN or
    infinity, or (b, n) with one value per patch. Without depth it is its 2D self.

    model: an attached one, a 2D `stringpe.ViT`, or a model that can be attached, which then is, with `encoding` and
    `**options` as in `attach`.

    Each encoding gets a third axis whose frequencies are not zero, and patches the third coordinate
    z = scale · mean valid depth + offset, learned, with the scale at 0: the model starts as exactly its 2D self, and
    the depth layer has gradient.
    """
    check_module("model", model)
    own = model if isinstance(model, ViT) else None
    if own is None and not any(True for _ in hosts.attached_layers(model)):
        attach(model, encoding, **options)
    elif options:
        raise ValueError(f"this model has its encoding already: drop {', '.join(options)}")
    holders: list[Any] = [
        m for m in model.modules() if isinstance(m, (MultiHead, HostAttention)) and isinstance(m.encoding, Encoding)
    ]
    if not holders or any(holder.encoding.coord_dim != 2 for holder in holders):
        raise ValueError(f"lift takes a model whose encodings are 2D; this {type(model).__name__} has none, or is 3D")
    for one in {id(holder.encoding): holder.encoding for holder in holders}.values():
        one.frequencies = with_depth(one.frequencies).to(one.frequencies.weight.device, one.frequencies.weight.dtype)
        one.coord_dim = 3
    if own is not None:
        own.coord_dim, own.depth = 3, "lift" if own.depth == "none" else f"lift+{own.depth}"
        own.lift = DepthLift(own.patch_size, own.units, scale=0.0).to(next(own.patch.parameters()).device)
    else:
        _take_depth(model, holders)
        record(model, "lift", {})
    return model


def _take_depth(model: nn.Module, holders: list[HostAttention]) -> None:
    every = {id(holder.token_coords[0]): holder.token_coords[0] for holder in holders}
    if len(every) > 1:
        raise ValueError(f"{type(model).__name__} has {len(every)} vision towers: lift the one that sees depth")
    (coords,) = every.values()
    coords.lift = DepthLift(coords.patch_size or 1, coords.grid.units, scale=0.0)
    coords.lift.to(next(holders[0].parameters()).device)
    model.depth_lift = coords.lift
    model.register_forward_pre_hook(coords.take_depth, with_kwargs=True)


@torch.no_grad()
def fold(model: Model) -> Model:
    """Put every basis into the projections before it, in place, and return the model: same outputs, plain rotations.

    P goes into W_q and W_k (and their biases); frequencies stay. A basis that is the identity is folded already.
    Refuses, before touching anything, a model without attention that it knows, one with encodings that it cannot reach,
    and one where something nonlinear, a gain or an adapter (LoRA) stands in the way.
    """
    check_module("model", model)
    holders: list[tuple[str, Any]] = [
        (name, m)
        for name, m in model.named_modules()
        if isinstance(m, (MultiHead, HostAttention)) and isinstance(m.encoding, Encoding)
    ]
    holders += owned_layers(model)
    _check_reach(model, [layer.encoding for _, layer in holders])
    layers = [(name, layer) for name, layer in holders if not isinstance(layer.encoding.basis, Identity)]
    for name, layer in layers:
        if obstacle := layer.fold_obstacle():
            raise ValueError(f"cannot fold {name or type(model).__name__}: {obstacle}")
    folded: dict[int, Encoding] = {}  # layers that shared an encoding go on sharing it
    for _, layer in layers:
        encoding: Encoding = layer.encoding
        if id(encoding) not in folded:
            plain = Identity(encoding.head_dim, encoding.num_heads).to(encoding.frequencies.weight)
            folded[id(encoding)] = Encoding(plain, encoding.frequencies, name=f"{encoding.name} (folded)")
        layer.fold_basis(folded[id(encoding)])
    if any(isinstance(layer, HostAttention) for _, layer in layers):
        record(model, "fold", {})
    return model


def _check_reach(model: nn.Module, held: list[Encoding]) -> None:
    """Refuse a model in which there is nothing to fold, or a basis that folding would not find."""
    own = {id(encoding) for encoding in held}
    for name, module in model.named_modules():
        if isinstance(module, Encoding) and id(module) not in own and not isinstance(module.basis, Identity):
            raise ValueError(
                f"cannot fold {name or 'an encoding alone'}: it is not called by stringpe.Attention or an attached "
                f"layer, so its projections are not known. Use stringpe.Attention, or stringpe.Projections in an "
                f"attention class of your own"
            )
    if not held:
        raise ValueError(
            f"there is nothing to fold in this {type(model).__name__}: it has no attention layer whose encoding has a "
            f"basis and frequencies. fold takes stringpe.Attention, models made of it, and attached models"
        )


def record(model: nn.Module, call: str, options: dict[str, Any]) -> None:
    """Note what was done to a model, so that `stringpe.pretrained` can do it again to a fresh one."""
    done: list[tuple[str, dict[str, Any]]] = getattr(model, "stringpe_calls", [])
    model.stringpe_calls = [*done, (call, options)]  # type: ignore[assignment]
