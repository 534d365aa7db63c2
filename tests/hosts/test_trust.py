"""What SECURITY.md promises of model folders, one test per promise, each trying to break it."""

import contextlib
import json
import pickle
import sys
import types

import pytest
import torch
from host_families import FAMILIES, images
from safetensors.torch import load, save_file
from torch import nn

import stringpe
from stringpe.cli import commands
from stringpe.pretrained import from_pretrained, save_pretrained

VIT = next(f for f in FAMILIES if (f.package, f.name) == ("transformers", "ViT"))
TIMM = {"model_name": "vit_tiny_patch16_224", "img_size": 32, "embed_dim": 32, "depth": 1, "num_heads": 2}


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def libraries(monkeypatch):
    """timm and open_clip as they are asked to build: every call is noted, and what it names is done."""
    calls = []

    def create_model(**arguments):
        calls.append(arguments)
        path = arguments.get("pretrained") or arguments.get("checkpoint_path")
        if path and not arguments.get("weights_only", False):
            with open(path, "rb") as file:
                pickle.load(file)  # as torch.load does
        return nn.Linear(1, 1)

    for name in ("timm", "open_clip"):
        library = types.ModuleType(name)
        library.create_model = create_model
        monkeypatch.setitem(sys.modules, name, library)
    return calls


@pytest.fixture
def folder(tmp_path):
    """A sound folder, and a function that replaces a part of its config."""
    save_pretrained(stringpe.attach(VIT.model(), "cayley"), tmp_path)

    def change(**parts):
        config = json.loads((tmp_path / "config.json").read_text()) | parts
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return change


def refused(path, match):
    """Every door refuses the folder: from_pretrained, `stringpe export` and the hub's class."""
    from stringpe.hub import Attached

    for door in (from_pretrained, commands.export, Attached.from_pretrained):
        with pytest.raises(ValueError, match=match):
            door(path)


@pytest.mark.parametrize("library", ["open_clip", "timm"])
@pytest.mark.parametrize("name", ["pretrained", "checkpoint_path", "pretrained_cfg", "cache_dir", "weights_only"])
def test_a_config_cannot_load_other_weights(library, name, folder, libraries, tmp_path):
    bomb, trace = tmp_path / "weights.pt", tmp_path / "trace"
    bomb.write_bytes(pickle.dumps(Bomb(trace)))
    arguments = {"model_name": "ViT-B-32", name: str(bomb)}
    refused(folder(host={"library": library, "arguments": arguments}), f"{library} arguments may not name {name}")
    assert not trace.exists()
    assert not libraries


@pytest.mark.parametrize("library", ["open_clip", "timm"])
@pytest.mark.parametrize(
    "name", ["hf-hub:me/model", "local-dir:/tmp/model", "/tmp/model", "../model", "a b", "", "x" * 200 + "/"]
)
def test_a_config_cannot_name_a_model_elsewhere(library, name, folder, libraries):
    refused(folder(host={"library": library, "arguments": {"model_name": name}}), "not the name of an architecture")
    assert not libraries


@pytest.mark.parametrize(
    "value", ["/etc/passwd", "a/b", "C:\\x", "https://x", {"a": "/b"}, [["../x"]], float("inf")], ids=str
)
def test_values_are_plain_numbers_and_words(value, folder, libraries):
    arguments = {"model_name": "vit_tiny_patch16_224", "global_pool": value}
    refused(folder(host={"library": "timm", "arguments": arguments}), "argument global_pool is")
    assert not libraries


@pytest.mark.parametrize("library", ["os", "subprocess", "builtins", "stringpe", None, 3, ["timm"]])
def test_only_three_libraries_can_be_named(library, folder):
    refused(folder(host={"library": library, "arguments": {}}), "names the library")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("class", "pipeline"), ("class", "AutoModel"), ("class", "LlamaForCausalLM"), ("class", "ViTImageProcessor"),
        ("class", "utils"), ("class", "__doc__"), ("class", "models.vit"), ("config_class", "AutoConfig"),
        ("config_class", "LlamaConfig"), ("config_class", "ViTModel"), ("class", None),
    ],
)  # fmt: skip
def test_only_classes_of_known_families_can_be_named(key, name, folder, tmp_path):
    host = json.loads((tmp_path / "config.json").read_text())["host"]
    refused(folder(host=host | {key: name}), r"is not a \w+ class of|not the name of a class")


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_map": {"AutoModel": "x.y"}}, {"attn_implementation": "me_kernels"}, {"backbone": "resnet"},
        {"use_pretrained_backbone": True}, {"quantization_config": {"a": 1}}, {"model_type": "llama"},
        {"hidden_act": "me/kernels"}, {"vision_config": {"model_type": "timm_backbone"}}, {"id2label": "words"},
    ],
    ids=str,
)  # fmt: skip
def test_a_config_of_transformers_cannot_name_code_or_places(changes, folder, tmp_path):
    host = json.loads((tmp_path / "config.json").read_text())["host"]
    refused(folder(host=host | {"config": host["config"] | changes}), r"config")


def test_how_a_model_was_loaded_is_neither_written_nor_read(folder, tmp_path):
    """transformers can take attention from the hub by `_attn_implementation`; such keys are dropped."""
    model = VIT.model()
    model.config._name_or_path = "/home/me/secret"
    save_pretrained(stringpe.attach(model, "cayley"), tmp_path)
    assert "secret" not in (tmp_path / "config.json").read_text()
    host = json.loads((tmp_path / "config.json").read_text())["host"]
    named = host["config"] | {"_attn_implementation": "me/kernels", "_name_or_path": "me/model"}
    loaded = from_pretrained(folder(host=host | {"config": named}))
    assert "/" not in str(loaded.config._attn_implementation)


@pytest.mark.parametrize(
    "calls",
    [
        [["eval", {}]], [["attach", {"encoding": "os:system"}]], [["attach", {"encoding": "my_module:factory"}]],
        [["attach", {"units": "a/b"}]], [["fold", {"model": 1}]], [["attach"]], "attach", {"attach": {}},
        [["attach", {"encoding": "cayley", "no_such": 1}]], [["attach", {"encoding": "cayley", "model": 1}]],
    ],
    ids=str,
)  # fmt: skip
def test_only_our_own_calls_can_be_named(calls, folder):
    refused(folder(calls=calls), r"config\.json")


@pytest.mark.parametrize("dtype", ["load", "nn", "hub", "int8", None, 3])
def test_only_floating_point_types_can_be_named(dtype, folder):
    refused(folder(dtype=dtype), "not of an attached model")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"host": 1}', '{"calls": [1, 2]}'])
def test_damaged_configs_are_named(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        from_pretrained(tmp_path)


def test_weights_are_safetensors_and_finite(folder, tmp_path):
    path = folder() / "model.safetensors"
    sound = path.read_bytes()
    state = load(sound)  # not a view of the file, which is damaged below
    for damaged in (pickle.dumps(Bomb(tmp_path / "trace")), sound[:100], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
            from_pretrained(tmp_path)
    assert not (tmp_path / "trace").exists()
    name = next(n for n in state if n.endswith("weight"))
    state[name].view(-1)[0] = float("nan")
    save_file(state, path)
    with pytest.raises(ValueError, match=rf"model\.safetensors: the weights are not finite numbers: {name}"):
        from_pretrained(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        from_pretrained(tmp_path)


def test_reading_writes_nothing(folder, tmp_path, monkeypatch):
    path = folder()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    monkeypatch.chdir(tmp_path)
    from_pretrained(path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_reading_asks_nobody(folder, monkeypatch):
    """Not even about a name that a hub knows."""
    import socket

    def refuse(*given, **named):
        raise AssertionError(f"a folder was read, and {given[:1]} was called over the network")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    path = folder(hub={"repo_id": "google/owlvit-base-patch32"}, _name_or_path="google/owlvit-base-patch32")
    with contextlib.suppress(ValueError):  # refused in words is as good
        from_pretrained(path)
    from_pretrained(folder())


def test_saving_refuses_what_loading_would_refuse(tmp_path):
    import timm

    model = stringpe.attach(timm.create_model(**TIMM), "cayley")
    with pytest.raises(ValueError, match=r"cannot be saved with how it was built.*may not name pretrained"):
        save_pretrained(model, tmp_path, build=TIMM | {"pretrained": True})
    save_pretrained(model, tmp_path, build=TIMM)
    torch.testing.assert_close(from_pretrained(tmp_path)(images()), model.eval()(images()))
    with torch.no_grad():
        model.head.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="not finite"):
        save_pretrained(model, tmp_path, build=TIMM)
