"""What every family must keep, with an encoding attached."""

import copy
from importlib import import_module
from pathlib import Path

import pytest
import torch
from host_families import FAMILIES, FEATURES, GRID, LARGER, PATCH, SIZE, feature_table, images

import stringpe
from cases import perturbed
from stringpe.hosts import attached_layers


def every(which=lambda family: True):
    """Runs a test for every family, or for those that `which` says."""
    families = [family for family in FAMILIES if which(family)]
    return pytest.mark.parametrize("family", families, ids=lambda f: f"{f.package} {f.name}")


each = every()


def moved(model):
    """The encodings off their start, so that one that does nothing cannot pass."""
    for _, layer in attached_layers(model):
        perturbed(layer.encoding, 0.3)
    return model


@each
def test_starts_as_the_same_function(family):
    model = family.model()
    before = family.call(model, images())
    names = set(model.state_dict())
    stringpe.attach(model, "cayley")
    after = family.call(model, images())
    assert (after - before).abs().max() <= 1e-5
    assert before.std() > 1e-3
    assert names - set(model.state_dict()) <= {"rope.freqs"}
    assert (family.call(moved(model), images()) - before).abs().max() > 1e-3


@each
def test_gradient_reaches_every_new_parameter_of_every_layer(family):
    model = stringpe.attach(family.model(), "cayley")
    family.call(model, images()).square().sum().backward()
    layers = dict(attached_layers(model))
    assert len(layers) >= 2
    for name, layer in layers.items():
        for parameter, value in layer.encoding.named_parameters():
            assert value.grad is not None, (name, parameter)
            assert value.grad.abs().max() > 0, (name, parameter)


@each
def test_fold_changes_nothing(family):
    model = moved(stringpe.attach(family.model(), "cayley"))
    before = family.call(model, images())
    weights = {name: value.clone() for name, value in model.named_parameters()}
    if family.windows or family.video:
        with pytest.raises(ValueError, match=r"a relative position bias, which looks at queries|is not a rotation"):
            stringpe.fold(model)
        return
    stringpe.fold(model)
    assert all(isinstance(layer.encoding.basis, stringpe.basis.Identity) for _, layer in attached_layers(model))
    torch.testing.assert_close(family.call(model, images()), before, atol=1e-5, rtol=1e-4)
    changed = [n for n, p in model.named_parameters() if not torch.equal(p, weights[n])]
    assert len(changed) >= 2 * len(list(attached_layers(model))) or any("qkv" in n or "in_proj" in n for n in changed)


@each
def test_replace_makes_the_model_translation_invariant(family):
    model = moved(stringpe.attach(family.model(), "cayley", start="replace"))
    before = family.call(model, images())
    holders = [m for m in model.modules() if hasattr(m, "token_coords")]
    places = holders[0].token_coords[0]
    for holder in holders:
        holder.token_coords = (_Shifted(places),)
    shifted = family.call(model, images())
    torch.testing.assert_close(shifted, before, atol=2e-5, rtol=1e-4)
    for holder in holders:
        holder.token_coords = (_Shifted(places, stretch=2.0),)
    assert (family.call(model, images()) - before).abs().max() > 1e-3  # coordinates do matter


class _Shifted:
    """Coordinates with all tokens, prefixes included, moved by the same vector."""

    def __init__(self, places, stretch=1.0):
        self.places, self.stretch, self.handed_on = places, stretch, places.handed_on

    def place(self, ids, windows):
        return self.places.place(ids, windows=windows) * self.stretch + torch.tensor([32.0, -17.0])

    def of_tokens(self, count):
        coords = self.places.of_tokens(count)
        return coords * self.stretch + torch.tensor([32.0, -17.0, 5.0])[: coords.shape[-1]]

    def of_windows(self, *size):
        return self.places.of_windows(*size) * self.stretch + torch.tensor([32.0, -17.0])


@every(lambda f: f.table)
def test_replace_zeroes_and_freezes_the_absolute_embedding(family):
    model = stringpe.attach(family.model(), "rope", start="replace")
    assert any((p == 0).any() for p in model.parameters() if not p.requires_grad)


HEADS_THAT_LOOK_AT_PLACES = ("Depth Anything", "OWL-ViT", "OWLv2")


# Patches of a window are not a set, and packed ones come in an order of their own.
@every(lambda f: not (f.windows or f.packed or f.video or f.name in HEADS_THAT_LOOK_AT_PLACES))
def test_replaced_and_without_places_patches_are_a_set(family):
    """With every token at the origin, permuting the patches permutes the output."""
    model = stringpe.attach(family.model(), "rope", start="replace")
    image = images()
    flipped = image.unflatten(3, (GRID, PATCH)).flip(3).flatten(3, 4)  # patches in another order, each as it was
    for _, layer in attached_layers(model):
        layer.token_coords = (_Nowhere(layer.token_coords[0]),)
    one, other = family.call(model, image), family.call(model, flipped)
    if one.ndim == 3:
        patches = (x[:, -(GRID**2) :].unflatten(1, (GRID, GRID)) for x in (one, other))
        one, other = next(patches), next(patches).flip(2)
    torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-4)


class _Nowhere:
    def __init__(self, places):
        self.places, self.handed_on = places, False

    def of_tokens(self, count):
        return self.places.of_tokens(count) * 0


@each
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # where SigLIP2 itself breaks the graph
@pytest.mark.slow
def test_torch_compile_takes_it_whole(family):
    torch.compiler.reset()
    model = moved(stringpe.attach(family.model(), "cayley"))
    expected = family.call(model, images())
    whole = not (family.masks or family.packed)  # which loop over the sizes of images in Python
    compiled = torch.compile(model, fullgraph=whole, backend="aot_eager" if family is FAMILIES[0] else "eager")
    torch.testing.assert_close(family.call(compiled, images()), expected, atol=1e-5, rtol=1e-4)


@every(lambda f: f.exports)
@pytest.mark.slow
def test_torch_export_takes_it(family):
    model = moved(stringpe.attach(family.model(), "cayley"))
    expected = family.call(model, images())
    program = torch.export.export(model, (), family.inputs(images()), strict=False).module()
    torch.testing.assert_close(family.output(program(**family.inputs(images()))), expected, atol=1e-5, rtol=1e-4)


@every(lambda f: f.package == "transformers")
def test_attention_maps_are_those_of_the_host(family):
    """Where transformers is set to "eager" attention. Towers that pack images return the outputs of their attention
    layers under that name; they go on doing so."""

    def collect(found):  # of a tower alone, or of both towers of a larger model
        if isinstance(found, torch.Tensor):
            return [found]
        return [tensor for part in found or () for tensor in collect(part)]

    def maps(model):
        out = model(**family.inputs(images()), output_attentions=True)
        towers = [out, *(out[name] for name in ("vision_model_output", "text_model_output") if name in out)]
        return [tensor for tower in towers for tensor in collect(tower.get("attentions"))]

    host, model = family.model(), family.model()
    for each_model in (host, model):
        each_model.set_attn_implementation("eager")
    stringpe.attach(model, "cayley")
    expected, found = maps(host), maps(model)
    assert len(found) == len(expected) >= 2
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    moved(model)
    assert max((ours - theirs).abs().max() for ours, theirs in zip(maps(model), expected, strict=True)) > 1e-3


@every(lambda f: f.mix)
def test_packed_images_do_not_see_each_other(family):
    model = moved(stringpe.attach(family.model(), "cayley"))
    each = [images((SIZE, SIZE))[:1], images(LARGER)[:1], images((16, 48))[:1]]
    together = family.output(model(**family.mix(each))).flatten(0, -2)
    alone = [family.call(model, image).flatten(0, -2) for image in each]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)
    (together[: len(alone[0])].square().sum()).backward()
    assert all(p.grad.abs().max() > 0 for _, layer in attached_layers(model) for p in layer.encoding.parameters())


# A video model counts rows of the size that it was made for, whatever comes.
@every(lambda f: f.resize is None and not f.video)
def test_families_of_one_size_refuse_another(family):
    with pytest.raises(Exception, match=r"size|shape|coords must be"):
        family.call(stringpe.attach(family.model()), images(LARGER))


@every(lambda f: f.resize is not None and not f.video)
def test_coordinates_are_those_of_the_size_that_comes(family):
    build, call = family.resize
    model = family.model(**build)
    before = family.call(model, images(LARGER), **call)
    stringpe.attach(model, "cayley")
    assert (family.call(model, images(LARGER), **call) - before).abs().max() <= 1e-5
    if family.packed:
        return  # the host says itself where its patches are
    places = next(iter(dict(attached_layers(model)).values())).token_coords[0]
    rows, columns = LARGER[0] // PATCH, LARGER[1] // PATCH
    coords = places.coords if places.coords.ndim == 2 else places.coords[0, : rows * columns]
    assert coords.shape == (rows * columns, 2)
    grid = coords.unflatten(0, (rows, columns))
    assert (grid[1:, :, 0] > grid[:-1, :, 0]).all()
    assert (grid[:, 1:, 1] > grid[:, :-1, 1]).all()
    assert torch.equal(grid[:, :1, 0].expand(-1, columns), grid[..., 0])


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.drop], ids=lambda f: f"{f.package} {f.name}")
def test_patch_dropout_keeps_coordinates_with_their_patches(family):
    model = family.model(**family.drop)
    stringpe.attach(model, "cayley", start="replace").train()
    layers = dict(attached_layers(model))
    seen = {}

    def look(module, args, kwargs):
        seen["x"] = args[0] if args else kwargs["query"]

    first = next(iter(layers.values()))
    first.register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad():
        model.eval()
        family.call(model, images())
        every, grid = seen["x"], first.token_coords[0].coords
        model.train()
        family.call(model, images())
    kept, coords = seen["x"], first.token_coords[0].coords
    assert coords.shape == (2, GRID**2 // 2, 2)
    prefix = kept.shape[1] - coords.shape[1]
    assert prefix == every.shape[1] - GRID**2
    for b in range(2):
        distance = torch.cdist(kept[b, prefix:].double(), every[b, prefix:].double())
        assert distance.amin(1).max() < 1e-4
        assert torch.equal(grid[distance.argmin(1)], coords[b])


@each
@pytest.mark.slow
def test_deepcopy_and_gradient_checkpointing(family):
    model = moved(stringpe.attach(family.model(), "cayley"))
    twin = copy.deepcopy(model)
    layer, other = next(attached_layers(model))[1], next(attached_layers(twin))[1]
    assert layer.token_coords[0] is not other.token_coords[0]
    expected = family.call(model, images())
    torch.testing.assert_close(family.call(twin, images()), expected)
    if hasattr(twin, "set_grad_checkpointing"):
        twin.set_grad_checkpointing(True)
    elif getattr(twin, "supports_gradient_checkpointing", False):
        twin.gradient_checkpointing_enable()
    gradients = []
    for one in (model, twin):
        one.train()
        torch.manual_seed(0)  # DINOv3 draws coordinates in training
        family.call(one, images()).square().sum().backward()
        gradients.append(next(attached_layers(one))[1].encoding.frequencies.weight.grad)
    torch.testing.assert_close(*gradients)


@each
def test_depth_is_lifted_and_changes_nothing_until_its_scale_does(family):
    if family.video:
        with pytest.raises(ValueError, match="lift takes a model whose encodings are 2D"):
            stringpe.lift(stringpe.attach(family.model(), "cayley"))
        return
    model = moved(stringpe.attach(family.model(), "cayley"))
    before = family.call(model, images())
    stringpe.lift(model)
    depth = torch.rand(2, SIZE, SIZE) + 0.5
    depth = depth if not family.masks else torch.rand(2, GRID**2 + 2)
    depth = depth if not family.packed else torch.rand(2 * GRID**2)
    if family.cuts:
        with pytest.raises(ValueError, match="cuts windows itself, and depth cannot be cut with them"):
            family.call(model, images(), depth=depth)
        return
    assert torch.equal(family.call(model, images()), before)
    out = family.call(model, images(), depth=depth)
    assert torch.equal(out, before)
    out.square().sum().backward()
    assert model.depth_lift.scale.grad.abs() > 0
    with torch.no_grad():
        model.depth_lift.scale.fill_(2.0)
    assert (family.call(model, images(), depth=depth) - before).abs().max() > 1e-3
    assert torch.equal(family.call(model, images()), before)  # the depth of one call is not that of the next


@each
def test_linear_attention_trains_or_is_refused(family):
    model = stringpe.attach(family.model(), "cayley", attention="linear")
    if family.masks or family.windows or (family.packed and not family.cuts):
        with pytest.raises(ValueError, match=r"no masks|no packed sequences"):
            family.call(model, images())
        return
    out = family.call(moved(model), images())
    out.square().sum().backward()
    for _, layer in attached_layers(model):
        assert all(p.grad.abs().max() > 0 for p in layer.encoding.parameters())
    with pytest.raises(ValueError, match="feature map"):
        stringpe.fold(model)


def test_the_table_in_the_docs_lists_what_runs():
    """Every cell of the table stands for a test of this folder that runs for that family; one that fails shows here as
    a failed test, and as ✗ after `pytest tests/hosts --write-table`."""
    page = (Path(__file__).parents[2] / "docs" / "attach.md").read_text(encoding="utf-8")
    assert feature_table(lambda test, family: True) in page
    modules = [import_module(name) for name in ("test_families", "test_attach", "test_pretrained")]
    for test, fits in FEATURES.values():
        (found,) = [getattr(m, test) for m in modules if hasattr(m, test)]
        runs = [f for mark in found.pytestmark if mark.name == "parametrize" for f in mark.args[1]]
        assert all(family in runs for family in FAMILIES if fits(family)), test
