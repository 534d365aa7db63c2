"""Folders, the hub's mixin, layouts, and RoPE-Mixed checkpoints."""

import json

import pytest
import torch
from host_families import FAMILIES, images

import stringpe
from cases import perturbed
from stringpe.basis import Identity, Interleaved, convert_layout
from stringpe.encoding import Encoding
from stringpe.frequencies import GivenFrequencies
from stringpe.hosts import attached_layers
from stringpe.hosts.description import mixed_theta
from stringpe.pretrained import from_pretrained, load_rope_mixed, save_pretrained

each = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f"{f.package} {f.name}")


@each
def test_saved_and_loaded_models_compute_the_same(family, tmp_path):
    model = stringpe.attach(family.model(), "cayley")
    for _, layer in attached_layers(model):
        perturbed(layer.encoding, 0.3)
    expected = family.call(model, images())
    save_pretrained(model, tmp_path)
    host = None if family.package == "transformers" else family.build()
    loaded = from_pretrained(tmp_path, model=host)
    assert torch.equal(family.call(loaded, images()), expected)
    assert json.loads((tmp_path / "config.json").read_text())["calls"][0][0] == "attach"


def test_lifted_and_folded_models_come_back(tmp_path):
    import timm

    build = {"model_name": "vit_tiny_patch16_224", "img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = stringpe.lift(timm.create_model(**build).eval())
    for _, layer in attached_layers(model):
        perturbed(layer.encoding, 0.3)
    with torch.no_grad():
        model.depth_lift.scale.fill_(1.5)
    stringpe.fold(model)
    save_pretrained(model, tmp_path, build=build)
    loaded = from_pretrained(tmp_path)
    depth = torch.rand(2, 32, 32)
    assert torch.equal(loaded(images(), depth=depth), model(images(), depth=depth))
    assert not torch.equal(loaded(images(), depth=depth), loaded(images()))


def test_half_precision_models_keep_their_frequencies(tmp_path):
    family = next(f for f in FAMILIES if (f.package, f.name) == ("transformers", "ViT"))
    model = stringpe.attach(family.model(), "cayley").bfloat16()
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path)
    assert {p.dtype for n, p in loaded.named_parameters() if "encoding" not in n} == {torch.bfloat16}
    for (name, value), other in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(value, other), name


def test_what_cannot_be_built_says_so(tmp_path):
    family = FAMILIES[-1]
    with pytest.raises(ValueError, match="nothing attached"):
        save_pretrained(family.model(), tmp_path)
    save_pretrained(stringpe.attach(family.model()), tmp_path)
    with pytest.raises(ValueError, match="pass model="):
        from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="another model than the one built"):
        from_pretrained(tmp_path, model=family.model(layers=3))
    with pytest.raises(ValueError, match=r"no config\.json"):
        from_pretrained(tmp_path / "elsewhere")
    (tmp_path / "config.json").write_text('{"host": null, "calls": [["run", {}]], "dtype": "float32"}')
    with pytest.raises(ValueError, match="not of an attached model"):
        from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"host": {"library": "os"}, "calls": [], "dtype": "float32"}')
    with pytest.raises(ValueError, match="names the library 'os'"):
        from_pretrained(tmp_path)


def test_the_hub_mixin_writes_and_reads_folders(tmp_path):
    from stringpe.hub import Attached

    family = next(f for f in FAMILIES if (f.package, f.name) == ("transformers", "SigLIP"))
    model = stringpe.attach(family.model(), "circulant")
    Attached(model).save_pretrained(tmp_path)
    assert {"config.json", "model.safetensors", "README.md"} <= {p.name for p in tmp_path.iterdir()}
    loaded = Attached.from_pretrained(tmp_path).model
    assert torch.equal(family.call(loaded, images()), family.call(model, images()))


def test_layouts_are_each_others_inverse_on_every_axis():
    x = torch.arange(24.0).reshape(2, 6, 2)
    assert convert_layout(torch.arange(6), "interleaved").tolist() == [0, 3, 1, 4, 2, 5]
    assert convert_layout(torch.arange(6), "half").tolist() == [0, 2, 4, 1, 3, 5]
    for dim in (1, -2):
        assert torch.equal(convert_layout(convert_layout(x, "half", dim=dim), "interleaved", dim=dim), x)
    with pytest.raises(ValueError, match="'half' or 'interleaved'"):
        convert_layout(x, "quarter")


def test_rope_vit_frequencies_give_the_scores_of_its_formula():
    """freqs (2, layers, h·d/2), x first; pairs (2j, 2j + 1) turn by x f_x + y f_y."""
    layers, heads, d, size = 2, 3, 8, 4
    freqs = torch.randn(2, layers, heads * d // 2, dtype=torch.float64)
    q, k = torch.randn(2, 1, heads, size**2, d, dtype=torch.float64)
    index = torch.arange(size**2)
    x, y = index % size, index // size
    for layer, theta in enumerate(mixed_theta(freqs, heads)):
        own = freqs[:, layer].view(2, heads, 1, d // 2)
        turn = torch.polar(torch.ones(()).double(), x[:, None] * own[0] + y[:, None] * own[1])
        rotated = [torch.view_as_complex(t.unflatten(-1, (-1, 2))) * turn for t in (q, k)]
        expected = (rotated[0] @ rotated[1].mH).real
        encoding = Encoding(Interleaved(Identity(d, heads)), GivenFrequencies(theta))
        coords = stringpe.coords.grid(size, size)
        torch.testing.assert_close(stringpe.testing.scores(encoding, q, k, coords), expected, atol=1e-5, rtol=0)
        matrix = encoding.matrix(coords)
        whole = encoding.rotate(q.float(), coords, whole=True)
        torch.testing.assert_close(torch.einsum("nhde,bhne->bhnd", matrix, q.float()), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["timm", "rope-vit"])
def test_rope_mixed_checkpoints_compute_what_they_did(kind, tmp_path):
    import timm

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    family = next(f for f in FAMILIES if f.name == "RoPE-ViT mixed")
    trained = family.model(use_abs_pos_emb=False)
    weights = trained.state_dict()
    if kind == "rope-vit":
        freqs = weights.pop("rope.freqs")
        weights |= {"freqs": freqs.flatten(2), "freqs_t_x": torch.zeros(16), "freqs_t_y": torch.zeros(16)}
    host = timm.create_model("vit_tiny_patch16_224", **sizes, pos_embed="none", init_values=1e-5).eval()
    model = load_rope_mixed(host, weights)
    torch.testing.assert_close(model(images()), trained(images()), atol=1e-5, rtol=0)
    save_pretrained(model, tmp_path, build={"model_name": "vit_tiny_patch16_224", **sizes, "pos_embed": "none",
                                            "init_values": 1e-5})  # fmt: skip
    assert torch.equal(from_pretrained(tmp_path)(images()), model(images()))
    with pytest.raises(ValueError, match=r"timm.*rope-vit"):
        load_rope_mixed(host, {})


def test_the_model_card_says_what_was_done_and_how_to_load_it(tmp_path, monkeypatch):
    from huggingface_hub import ModelHubMixin

    from stringpe.hub import Attached

    family = next(f for f in FAMILIES if (f.package, f.name) == ("transformers", "SigLIP"))
    model = stringpe.lift(stringpe.attach(family.model(), "circulant", block_size=8))
    told = {}
    monkeypatch.setattr(ModelHubMixin, "push_to_hub", lambda self, repo, **options: told.update(options))
    Attached(model).push_to_hub("someone/lifted", private=True)
    assert told == {"model_card_kwargs": {"repository": "someone/lifted"}, "private": True}
    Attached(model).save_pretrained(tmp_path, model_card_kwargs=told["model_card_kwargs"])
    card = (tmp_path / "README.md").read_text()
    assert "library_name: stringpe" in card
    assert "# SiglipVisionModel with circulant" in card
    assert "    stringpe.attach(model, encoding='circulant'" in card
    assert "block_size=8" in card
    assert 'Attached.from_pretrained("someone/lifted").model' in card
    assert "It takes depth in metres" in card
