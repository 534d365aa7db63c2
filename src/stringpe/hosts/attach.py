"""For models that exist already: `attach` puts an encoding in, `lift` takes it from 2D to 3D, `fold` removes the basis.

All three change a model in place and return it. Its weights stay where they are, under their names.
"""

from collections.abc import Iterator, Sequence
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
from ..folding import Rows, sharing_obstacle
from ..frequencies import GivenFrequencies, Spectrum
from ..models.depth import DepthLift
from ..models.vit import ViT
from ..own_projections import OwnedLayer, owned_layers
from .description import Grid, Rope, find_rotaries, read_rotary
from .host_attention import ATTENTION_KINDS, HostAttention
from .token_coords import CoordsForAngles, DropPatches, TokenCoords

Model = TypeVar("Model", bound=nn.Module)


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

    encoding: a name of `stringpe.names()`, of which every layer gets one of its own. `**options`: as of
        `stringpe.create`; for example `attach(model, "rope", learnable=True)`, with frequencies that learn, as all do
        in the paper's ALOHA experiments.
    coord_dim: 2, or 3 to lift as well (see `lift`).
    start: "same", the model computes what it did before and learns from there; or "replace", its absolute position
        embedding (or its own RoPE) is removed, and the encoding has full strength from the first step.
    attention: "softmax", or "linear" for linear attention in its place, by the Performer's features, which estimate the
        softmax.
    units: of the patch grid: "index" extrapolates to other resolutions, "normalised" interpolates, or "centred". A RoPE
        that the model keeps has units of its own.

    How can a model compute the same and still learn? If R(r) were exactly I, no gradient would reach S, since
    P I Pᵀ = I for every P. So frequencies stand behind a gate per head and axis that starts at 1e-7, not at 0: outputs
    agree to rounding, the gate has gradient of order one, and frequencies and S have gradient of the order of the gate,
    which grows with it. A model that has RoPE keeps it exactly: its frequencies become Θ of every layer (learned unless
    learnable=False; for "rope" fixed unless learnable=True), its channel layout becomes part of the basis, and P = I at
    the start.
    """
    check_module("model", model)
    _check(model, encoding, coord_dim, start, attention)
    for tower in hosts.find_towers(model):
        description, module = tower.description, tower.module
        rope = _read_rope(tower, units) if start == "same" or description.rotary else None
        if rope is None or start == "replace":
            encodings = [_create(encoding, {"coord_dim": description.axes, **sizes}, start, options)
                         for sizes in _layer_sizes(tower)]  # fmt: skip
            _insert(tower, encodings, Grid(units), attention, keep=start == "same")
        else:
            _insert(tower, _carry_over(tower, rope, encoding, options), rope.grid, attention)
        for table in description.table.split() if start == "replace" else ():
            if hosts.has_path(module, table):
                _drop_table(module, table, description.prefix_rows(module))
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
    """Attach a RoPE that is not in the model (but in a checkpoint, say) to a model that has none."""
    _check(model, encoding, 2, "same", "softmax")
    (tower,) = hosts.find_towers(model)
    _insert(tower, _carry_over(tower, rope, encoding, {}), rope.grid, "softmax")
    return model


def _read_rope(tower: hosts.VisionTower, units: str) -> Rope | None:
    """The RoPE of a tower, or None."""
    layers = [layer for layer, _ in tower.layers.values()]
    description = tower.description
    if not description.rotary:
        return description.rope(tower.module, layers)
    if units != "index":
        raise ValueError(f"this model measures its patches itself, in indices: drop units={units!r}")
    first, *_ = find_rotaries(tower.module, description.rotary).values()
    head_dim: Any = layers[0].head_dim
    return read_rotary(first, head_dim, description.axes, len(layers))


def _insert(
    tower: hosts.VisionTower, encodings: list[Encoding], grid: Grid, attention: str, *, keep: bool = False
) -> None:
    """Put encodings into the attention of a tower, and hooks where its coordinates are known."""
    module, description = tower.module, tower.description
    patches = module.get_submodule(description.patches)
    size: Any = patches.stride if isinstance(patches, nn.Conv2d) else getattr(patches, "patch_size", None)
    size = size if isinstance(size, tuple) else None
    coords = TokenCoords(grid, size)
    for encoding, (name, (layer, parts)) in zip(encodings, tower.layers.items(), strict=True):
        weight = next(layer.parameters())
        ours = HostAttention(layer, parts, encoding.to(weight.device, weight.dtype), coords, attention, keep=keep)
        if type(layer).__module__.startswith("transformers."):
            hosts.transformers.record_maps(ours)
        module.set_submodule(name, ours)
    if description.rotary:
        coords.handed_on = True
        for path in find_rotaries(module, description.rotary):
            module.set_submodule(path, CoordsForAngles(coords))
    elif isinstance(patches, (nn.Conv2d, nn.Conv3d)):
        patches.register_forward_hook(coords.read_grid)
    else:
        patches.register_forward_hook(getattr(coords, description.reader), with_kwargs=True)
    if description.rope_path:
        setattr(module, description.rope_path, None)
    if description.dropout:
        _follow_dropout(module, description.dropout, coords)


def _layer_sizes(tower: hosts.VisionTower) -> Iterator[dict[str, Any]]:
    """The head dim and the number of key heads of every layer, as `stringpe.create` takes them."""
    for layer, parts in tower.layers.values():
        heads = getattr(layer, "num_kv_heads", None) or getattr(layer, parts.heads)
        yield {"head_dim": getattr(layer, parts.head_dim), "num_heads": heads}


def _create(name: str, sizes: dict[str, Any], start: str, options: dict[str, Any]) -> Encoding:
    encoding = _build(name, {**sizes, **options})
    if start == "same":
        encoding.frequencies = Gated(encoding.frequencies)
    return encoding


def _build(name: str, options: dict[str, Any]) -> Encoding:
    encoding = create(name, **options)
    if not isinstance(encoding, Encoding):
        raise ValueError(
            f"{name!r} is a {type(encoding).__name__}: attach takes encodings with a basis and frequencies, such as "
            f"{', '.join(names())}"
        )
    return encoding


def _carry_over(tower: hosts.VisionTower, rope: Rope, name: str, options: dict[str, Any]) -> list[Encoding]:
    """A RoPE as encodings of that name, one per layer, with their basis; frequencies learn where theirs do."""
    spectral = {*Spectrum.__annotations__, "frequencies", "share_frequencies", "every_plane"} - {"learnable"}
    if ignored := [option for option in options if option in spectral]:
        raise ValueError(
            f"this model has RoPE, which sets the frequencies: drop {', '.join(ignored)}, or use start='replace'"
        )
    encodings = []
    for theta, sizes in zip(rope.theta, _layer_sizes(tower), strict=True):
        built = _build(name, {"coord_dim": theta.shape[-2], **sizes, **options})
        if not built.basis.starts_at_identity:
            raise ValueError(
                f"this model has RoPE, whose planes are not those of a {name} basis: attach 'rope', 'rope_mixed', "
                f"'cayley' or 'general' to go on from it, or use start='replace'"
            )
        basis = Interleaved(built.basis) if rope.interleaved else built.basis
        given = theta.expand(sizes["num_heads"], -1, -1).clone()
        frequencies = GivenFrequencies(given, learnable=built.frequencies.learnable)
        encodings.append(Encoding(basis, frequencies, name=name))
    return encodings


def _follow_dropout(module: nn.Module, path: str, coords: TokenCoords) -> None:
    """Let patch dropout report which patches it keeps."""
    drop: Any = getattr(module, path, None)
    if drop is None or isinstance(drop, nn.Identity):
        return
    if type(drop).__name__ == "PatchDropoutWithIndices":
        drop.register_forward_hook(coords.read_kept)
        return
    setattr(module, path, DropPatches(drop.prob, getattr(drop, "ordered", False), coords))


@torch.no_grad()
def _drop_table(module: nn.Module, path: str, prefix_rows: int) -> None:
    """Zero the rows of the patches and freeze the table. The rows of prefix tokens stay: those have no position."""
    parent, _, name = path.rpartition(".")
    embedding: Any = getattr(module.get_submodule(parent), name)
    table: Any = embedding.weight if isinstance(embedding, nn.Embedding) else embedding
    table[..., prefix_rows:, :] = 0
    table.requires_grad_(False)


def lift(model: Model, encoding: str = "cayley", **options: Any) -> Model:
    """Make a 2D model 3D, in place: it is then called as `model(image, depth=…)`, with depth (b, H, W) in metres, holes
    as 0, NaN or infinity, or (b, n) with one value per patch. Without depth it computes what it did in 2D.

    model: an attached model; a 2D `stringpe.ViT`; or a model to which an encoding can be attached, which is done first,
    with `encoding` and `**options` as in `attach`.

    Every encoding gets a third axis, whose frequencies are not zero, and every patch the third coordinate
    z = scale · mean valid depth + offset. Scale and offset are learned. The scale starts at 0, so that the model starts
    as exactly the 2D one, and has gradient.
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
    for encoding_2d in {id(holder.encoding): holder.encoding for holder in holders}.values():
        plane = encoding_2d.frequencies
        encoding_2d.frequencies = with_depth(plane).to(plane.weight.device, plane.weight.dtype)
        encoding_2d.coord_dim = 3
    if own is not None:
        own.coord_dim, own.depth = 3, "lift" if own.depth == "none" else f"lift+{own.depth}"
        own.lift = DepthLift(own.patch_size, own.units, scale=0.0).to(next(own.patch.parameters()).device)
    else:
        _take_depth(model, holders)
        record(model, "lift", {})
    return model


def _take_depth(model: nn.Module, holders: list[HostAttention]) -> None:
    by_tower = {id(holder.token_coords[0]): holder.token_coords[0] for holder in holders}
    if len(by_tower) > 1:
        raise ValueError(f"{type(model).__name__} has {len(by_tower)} vision towers: lift the one that takes depth")
    (coords,) = by_tower.values()
    coords.lift = DepthLift(coords.patch_size or 1, coords.grid.units, scale=0.0)
    coords.lift.to(next(holders[0].parameters()).device)
    model.depth_lift = coords.lift
    model.register_forward_pre_hook(coords.take_depth, with_kwargs=True)


@torch.no_grad()
def fold(model: Model) -> Model:
    """Put every basis into the projections before it, in place, and return the model: same outputs, plain rotations.

    P goes into W_q and W_k (and their biases); frequencies stay. A basis that is the identity is folded already.
    ValueError, before anything is changed, for a model without any attention layer that has an encoding with a basis,
    one whose encodings are called by unknown code, one where a nonlinearity, a gain or an adapter (LoRA) stands between
    projection and encoding, and one that uses a projection in two places.
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
        if obstacle := layer.fold_obstacle() or sharing_obstacle(model, _rows(layer)):
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


def _rows(layer: MultiHead | HostAttention | OwnedLayer) -> Sequence[Rows]:
    """The rows of queries and keys that folding changes."""
    return layer.rows()[:1] if isinstance(layer, MultiHead) else layer.query_key_rows()


def _check_reach(model: nn.Module, reached: list[Encoding]) -> None:
    """Refuse a model in which there is nothing to fold, or an encoding other than those that are reached."""
    known = {id(encoding) for encoding in reached}
    for name, module in model.named_modules():
        if isinstance(module, Encoding) and id(module) not in known and not isinstance(module.basis, Identity):
            raise ValueError(
                f"cannot fold {name or 'an encoding alone'}: it is not called by stringpe.Attention or an attached "
                f"layer, so its projections are not known. Use stringpe.Attention, or stringpe.Projections in an "
                f"attention class of your own"
            )
    if not reached:
        raise ValueError(
            f"there is nothing to fold in this {type(model).__name__}: it has no attention layer whose encoding has a "
            f"basis and frequencies. fold takes stringpe.Attention, models made of it, and attached models"
        )


def record(model: nn.Module, call: str, options: dict[str, Any]) -> None:
    """Note a call on a model, so that `stringpe.pretrained` can repeat it on a newly built one."""
    done: list[tuple[str, dict[str, Any]]] = getattr(model, "stringpe_calls", [])
    model.stringpe_calls = [*done, (call, options)]  # type: ignore[assignment]
