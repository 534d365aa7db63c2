"""Where the image encoder of a policy starts: at random, from a run, from a tower of transformers."""

import shutil
import warnings

import pytest
import torch
from policy_toy import batch
from safetensors.torch import save_file
from tower_files import write_tower

from stringpe import tasks
from stringpe.recipes.overrides import override
from stringpe.robots.policies.base import PolicySpec
from stringpe.robots.policies.vision_tower import load_tower, read_tower_config
from stringpe.tasks.policy import load_policy, new_policy
from stringpe.tasks.policy_encoder import build_image_encoder
from stringpe.training import evaluate, train

RANDOM = "image encoder starts at random"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(f"ignore:.*{RANDOM}")]


@pytest.fixture
def recipe(reach_recipe):
    return reach_recipe


def test_an_encoder_at_random_is_warned_about(recipe, tmp_path):
    """Trap 32."""
    spec = PolicySpec(("top",), 2, 2, 16, 10.0)
    with warnings.catch_warnings(), pytest.warns(UserWarning, match=RANDOM):
        new_policy(recipe, spec)
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_policy(override(recipe, [f"policy.encoder={tmp_path / 'run'}"]), spec)
        load_policy(tmp_path / "run")


def test_an_encoder_starts_from_a_checkpoint(recipe, tmp_path):
    train(override(recipe, ["loop.steps=2", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    trained = load_policy(tmp_path / "run").observer.encoder
    started = build_image_encoder(override(recipe, [f"policy.encoder={tmp_path / 'run'}"]))
    image = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(started(image, None), trained(image, None))
    with pytest.raises(ValueError, match=r"other towers .*model.dim=32 there, 64 here"):
        build_image_encoder(override(recipe, [f"policy.encoder={tmp_path / 'run'}", "model.dim=64"]))
    for other in ("absolute", "rope"):  # what has no learned weights of its own would be taken for anything
        with pytest.raises(ValueError, match=f"model.encoding={recipe.model.encoding} there, {other} here"):
            build_image_encoder(override(recipe, [f"policy.encoder={tmp_path / 'run'}", f"model.encoding={other}"]))
    with pytest.raises(ValueError, match="there is no checkpoint in nowhere"):
        build_image_encoder(override(recipe, ["policy.encoder=nowhere"]))
    own = str(tmp_path / "{encoding}" / "{seed}")  # every row of a comparison from its like
    (tmp_path / recipe.model.encoding).mkdir()
    (tmp_path / "run").rename(tmp_path / recipe.model.encoding / str(recipe.seed))
    torch.testing.assert_close(
        build_image_encoder(override(recipe, [f"policy.encoder={own}"]))(image, None), trained(image, None)
    )
    with pytest.raises(ValueError, match=r"policy\.encoder can hold \{encoding\}"):
        build_image_encoder(override(recipe, ["policy.encoder={row}"]))


@pytest.mark.parametrize("kind", ["siglip", "paligemma"])
def test_a_tower_of_transformers_is_attached_and_starts_as_it_is(recipe, tmp_path, kind):
    folder = tmp_path / kind
    tower = write_tower(folder, kind)
    image = torch.randn(2, 3, 16, 16)
    wanted = tower(image).last_hidden_state
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for encoding in ("absolute", "cayley"):
            changes = [f"policy.encoder={kind}:{folder}", f"model.encoding={encoding}"]
            encoder = build_image_encoder(override(recipe, changes)).eval()
            torch.testing.assert_close(encoder(image, None), wanted, rtol=1e-3, atol=1e-4)
    learned = ["model.encoding=rope", "model.encoding_options.learnable=true", "model.encoding_options.base=100"]
    for options, count in ((learned[:1], 2), (learned, 4)):  # a gate per layer, and what the paper learns: frequencies
        rope = build_image_encoder(override(recipe, [*changes, *options]))
        trained = [name for name, p in rope.named_parameters() if "frequencies" in name and p.requires_grad]
        assert len(trained) == count, trained
    policy = new_policy(override(recipe, changes), PolicySpec(("top", "wrist"), 3, 4, 16, 10.0))
    loss = policy(batch())
    loss.backward()
    for wrong, text in ((["model.depth=normals"], "takes depth as the third"), (["data.image_size=32"], "takes 16 px")):
        with pytest.raises(ValueError, match=text):
            build_image_encoder(override(recipe, [*changes, *wrong]))
    with pytest.raises(ValueError, match="takes depth as the third coordinate of an attached encoding"):
        build_image_encoder(override(recipe, [*changes, "model.depth=lift", "model.encoding=absolute"]))


def test_a_tower_of_transformers_sees_depth_and_starts_as_its_2d_self(recipe, tmp_path):
    """The KUKA policies: a pretrained 2D encoder, with depth as third coordinate of Circulant-STRING."""
    tower = write_tower(tmp_path / "pali", "paligemma")
    changes = [f"policy.encoder=paligemma:{tmp_path / 'pali'}", "model.encoding=circulant", "model.depth=lift"]
    encoder = build_image_encoder(override(recipe, [*changes, "model.encoding_options.block_size=8"]))
    assert encoder.wants_depth
    image, depth = torch.randn(2, 3, 16, 16), 0.5 + torch.rand(2, 16, 16)
    seen = encoder(image, depth)
    torch.testing.assert_close(seen, tower(image).last_hidden_state, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        for parameter in encoder.model.depth_lift.parameters():
            parameter.add_(1.0)
        for name, parameter in encoder.named_parameters():
            if "frequencies" in name and parameter.shape[-1] == 1:  # the gates
                parameter.fill_(1.0)
    assert (encoder(image, depth) - encoder(image, depth + depth.flip(1))).abs().max() > 1e-3
    short = override(recipe, [*changes, "model.encoding_options.block_size=8", "loop.steps=1", "loop.eval_every=0"])
    train(short, tmp_path / "run", quiet=True)
    shutil.rmtree(tmp_path / "pali")  # a run holds all that acting and evaluating need
    policy = load_policy(tmp_path / "run")
    assert policy.observer.encoder.wants_depth
    assert evaluate(tmp_path / "run")["count"] == 8
    tuning = override(short, ["policy.encoder=", f"model.start={tmp_path / 'run'}"])
    started = tasks.create(tuning).model().eval()
    weights = started.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in policy.state_dict().items())


def test_weights_of_a_tower_are_found_under_all_names(tmp_path):
    """Published PaliGemmas have vision_tower.vision_model.…, in several files; others model.vision_tower.…"""
    tower = write_tower(tmp_path / "new", "paligemma")
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "new/config.json", tmp_path / "old")
    renamed = {f"vision_tower.vision_model.{k}": v.bfloat16() for k, v in tower.state_dict().items()}
    names = sorted(renamed)
    extra = {"language_model.model.layers.0.encoder.weight": torch.zeros(1)}
    save_file({n: renamed[n] for n in names[::2]} | extra, tmp_path / "old/model-00001-of-00002.safetensors")
    save_file({n: renamed[n] for n in names[1::2]}, tmp_path / "old/model-00002-of-00002.safetensors")
    for name, precision in (("new", 0), ("old", 0.01)):
        config = read_tower_config(tmp_path / name)
        found = load_tower(tmp_path / name, config).state_dict()
        for key, value in tower.state_dict().items():
            torch.testing.assert_close(found[key], value, atol=0, rtol=precision)
    (tmp_path / "old/model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lack .* other weights of the vision tower: get the whole model"):
        load_tower(tmp_path / "old", config)
    for content, text in (("{}", "holds a model of type 'None'"), ('{"model_type": "gemma"}', "of type 'gemma'")):
        (tmp_path / "old/config.json").write_text(content)
        with pytest.raises(ValueError, match=text):
            read_tower_config(tmp_path / "old")
    with pytest.raises(ValueError, match=r"there is no config.json in .*nowhere"):
        read_tower_config(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", "[]"), ("config.json", '{"model_type": "siglip"}'), ("model.safetensors", "x")],
)
def test_a_damaged_folder_of_a_tower_is_named(tmp_path, name, content):
    write_tower(tmp_path, "siglip")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        load_tower(tmp_path, read_tower_config(tmp_path))
