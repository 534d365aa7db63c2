import random
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from captioned_files import depth, picture, shard, words
from processes import in_two
from stringpe import recipes, scenes
from stringpe.data import scene_views
from stringpe.data.captioned_batches import load_captioned
from stringpe.data.labelled_images import open_image_set
from stringpe.data.loader import Memory
from stringpe.data.order import Place
from stringpe.data.queries import PHOTO_TEMPLATES
from stringpe.models.contrastive import Contrastive
from stringpe.models.contrastive_loss import clip_loss_within_groups
from stringpe.models.text import TextTower
from stringpe.models.tokenizer import Tokenizer
from stringpe.models.vit import vit
from stringpe.recipes.overrides import override
from stringpe.recipes.schema import Augment, Data, Loop, Loss, Model, Recipe, Text
from stringpe.scenes.descriptions import phrase
from stringpe.tasks import check
from stringpe.tasks.load import load_run
from stringpe.tasks.retrieval import Retrieval, share_distinguished, zero_shot
from stringpe.training import evaluate, train

ANIMALS = ("dog", "cat", "horse", "cow", "bird", "fish", "goat", "hen", "frog", "toad", "wolf", "bear")


def samples(count, **more):
    return {
        f"{i:06d}": {
            "png": picture(20 * i),
            "json": words(*(f"a {ANIMALS[i]} {w}" for w in ("left", "here")[: 1 + i % 2])),
        }
        | more
        for i in range(count)
    }


@pytest.fixture
def recipe(tmp_path):
    train_set = shard(tmp_path / "train.tar", samples(12))
    val_set = shard(tmp_path / "val.tar", samples(7))
    return Recipe(
        name="animals",
        task="retrieval",
        model=Model(dim=16, layers=1, heads=2, patch_size=8, encoding="rope", pool="map"),
        text=Text(dim=16, layers=1, heads=2, width=12, vocab=300, context=16),
        data=Data(source="shards", train=str(train_set), val=str(val_set), image_size=16),
        augment=Augment(crop=0.5, flip=True, colour=0.2),
        loss=Loss(kind="siglip", pair_bias="auto"),
        loop=Loop(batch_size=6, steps=3, log_every=1, eval_batch=2),
    )


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    """A recipe on rooms seen twice."""
    return Recipe(
        name="rooms",
        task="retrieval",
        model=Model(dim=16, layers=1, heads=2, patch_size=8, encoding="rope", depth="lift"),
        text=Text(dim=16, layers=1, heads=2, width=12, vocab=300, context=40),
        data=Data(
            source="scenes", image_size=32, train_size=16, val_size=8, cache=str(tmp_path_factory.mktemp("cache"))
        ),
        augment=Augment(flip=True),
        loss=Loss(kind="siglip"),
        loop=Loop(batch_size=8, steps=2, log_every=1),
    )


@pytest.mark.parametrize("kind", ["siglip", "clip"])
def test_a_run_leaves_towers_that_are_used_without_its_data(recipe, tmp_path, kind):
    asked = override(recipe, [f"loss.kind={kind}"])
    outcome = train(asked, tmp_path / "run", quiet=True)
    metrics = outcome["metrics"]
    assert outcome["metric"] == "mean_recall"
    assert metrics["count"] == 7
    six = [metrics[f"{way}@{k}"] for way in ("i2t", "t2i") for k in (1, 5, 10)]
    assert metrics["mean_recall"] == pytest.approx(sum(six) / 6)
    assert metrics["t2i@10"] == 1  # seven images in the gallery
    again = evaluate(tmp_path / "run")
    assert again["mean_recall"] == pytest.approx(metrics["mean_recall"])
    for file in ("train.tar", "val.tar"):
        (tmp_path / file).unlink()
    model, saved, parts = load_run(tmp_path / "run")
    assert saved.name == "animals"
    assert model.embed_text(parts.tokenizer.encode(["a dog left"], model.text.context)).shape == (1, 12)


def test_evaluation_uses_the_tokeniser_of_the_run(recipe, tmp_path):
    train(recipe, tmp_path / "run", quiet=True)
    other = shard(tmp_path / "other.tar", {k: v | {"json": words("zzz " + k)} for k, v in samples(12).items()})
    found = evaluate(tmp_path / "run", [f"data.train={other}"])  # captions that would make another tokeniser
    assert found["count"] == 7


def test_recall_is_of_the_whole_set_however_it_is_batched(recipe):
    torch.manual_seed(0)
    task = Retrieval(recipe)
    model = task.model().eval()
    with torch.no_grad():
        image, text, owner = task._embed_all(model, Place())
        whole = model.embed_image(task.feed.val_images(torch.arange(7), Place())["image"])
    assert torch.allclose(image, whole, atol=1e-6)
    assert owner.tolist() == [0, 1, 1, 2, 3, 3, 4, 5, 5, 6]
    assert torch.allclose(text, model.embed_text(task.feed.val_texts.tokens), atol=1e-6)


def test_batches_depend_on_seed_and_step_alone(recipe, rooms):
    for asked in (recipe, rooms):
        task = Retrieval(asked)
        whole = task.batches(0, Place())
        steps = [next(whole) for _ in range(3)]
        halves = [next(task.batches(2, Place(r, 2))) for r in range(2)]
        assert set(steps[2]) == ({"image", "tokens", "depth"} if asked is rooms else {"image", "tokens"})
        for name in steps[2]:
            assert torch.equal(torch.cat([h[name] for h in halves]), steps[2][name])


def test_flipped_images_get_flipped_captions(recipe):
    task = Retrieval(override(recipe, ["augment.crop=1", "augment.colour=0", "loop.batch_size=12"]))
    plain, mirror = task.feed.texts.tokens, task.feed.texts.mirror
    assert not torch.equal(plain, mirror)
    ramp = torch.arange(16, dtype=torch.uint8).expand(12, 3, 16, 16).contiguous()
    task.feed.loader = Memory({"image": ramp})
    seen = set()
    for step in range(8):
        batch = next(task.batches(step, Place()))
        turned = batch["image"][:, 0, 0, 0] > batch["image"][:, 0, 0, -1]
        for flip, tokens in zip(turned.tolist(), batch["tokens"], strict=True):
            text = task.feed.tokenizer.decode(tokens[None])[0]
            seen.add((flip, text.split()[-1]))
    assert seen == {(False, "left"), (True, "right"), (False, "here"), (True, "here")}


def test_depth_is_cropped_and_flipped_with_the_image():
    from stringpe.data.transforms import augment_rgbd

    image = torch.randint(0, 255, (4, 3, 16, 16), dtype=torch.uint8)
    depth = image[:, 0].half()
    depth[:, :2] = 0  # holes stay holes
    u = torch.rand(4, 9)
    x, far = augment_rgbd(image, depth, u, Augment(flip=True))
    grey = ((x[:, 0] + 1) * 127.5).round()
    assert torch.equal(far[:, 2:], grey[:, 2:])
    assert (far[:, :2] == 0).all()
    _, cropped = augment_rgbd(image, depth, u, Augment(crop=0.3))
    assert set(cropped.unique().tolist()) <= set(depth.unique().tolist())  # no mean of two distances


def test_rgbd_shards_train_and_other_models_pass_depth_over(recipe, tmp_path):
    far = {"depth.png": depth(2000)}
    changes = []
    for name, count in (("train", 12), ("val", 7)):
        changes.append(f"data.{name}={shard(tmp_path / f'rgbd-{name}.tar', samples(count, **far))}")
    task = Retrieval(override(recipe, [*changes, "model.depth=lift"]))
    batch = next(task.batches(0, Place()))
    assert torch.allclose(batch["depth"].max(), torch.tensor(2.0), rtol=1e-3)
    assert task.loss(task.model(), batch).isfinite()
    assert "depth" not in next(Retrieval(override(recipe, changes)).batches(0, Place()))


def test_samples_left_out_and_texts_cut_short_are_counted(recipe, tmp_path):
    bad = samples(12)
    bad["000003"]["png"] = b"no image"
    bad["000004"]["json"] = words("a very long caption " * 20)
    asked = override(recipe, [f"data.train={shard(tmp_path / 'bad.tar', bad)}"])
    with pytest.warns(RuntimeWarning, match=r"1 of 12 samples of .* cannot be used and are left out: bad.tar/000003"):
        task = Retrieval(asked)
    assert task.examples == 11
    assert task.counters() == {"corrupt": 1.0, "truncated": 1.0}
    assert task.samples(2)[1].caption == "a cat left"


def test_streams_feed_the_same_batches_again_and_name_what_they_skip(recipe, tmp_path):
    some = samples(12, **{"depth.png": depth()})
    some["000010"] |= {"png": b"no image"}
    path = shard(tmp_path / "s-0.tar", some)
    with pytest.raises(ValueError, match=r"give text.tokenizer=tokenizer.json"):
        Retrieval(override(recipe, ["data.source=stream", "data.train_size=2001"]))
    (tmp_path / "tokenizer.json").write_text(Retrieval(recipe).files()["tokenizer.json"])
    val = shard(tmp_path / "v.tar", samples(7, **{"depth.png": depth()}))
    changes = [
        f"data.train={path}",
        "data.source=stream",
        "model.depth=lift",
        f"data.val={val}",
        "data.train_size=2001",
    ]
    task = Retrieval(override(recipe, [*changes, f"text.tokenizer={tmp_path / 'tokenizer.json'}"]))
    told = "1 samples of .*s-0.tar cannot be used and are left out: 000010: not a picture"
    batches = task.batches(0, Place())
    with pytest.warns(RuntimeWarning, match=told):
        first = [next(batches) for _ in range(2)]
    assert first[0]["depth"].shape == (6, 16, 16)
    assert task.counters()["corrupt"] == 1
    again = task.batches(0, Place())
    second = [next(again) for _ in range(2)]  # it is named once, not once per epoch
    assert all(torch.equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a)
    assert task.evaluate(task.model().eval(), Place())["count"] == 7


def _share(rank, recipe):
    torch.manual_seed(0)
    task = Retrieval(recipe)
    model = task.model().eval()
    place = Place(rank, 2)
    with torch.no_grad():
        metrics = task.evaluate(model, place)
    loss = task.loss(model, next(task.batches(0, place)))
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    for t in (loss := loss.detach(), gradient):
        dist.all_reduce(t)
    return metrics, float(loss) / 2, gradient / 2


@pytest.mark.slow
def test_two_processes_have_one_batch_and_one_gallery(recipe, tmp_path):
    (metrics, loss, gradient), (other, _, _) = in_two(_share, tmp_path, recipe)
    assert metrics == other
    torch.manual_seed(0)
    task = Retrieval(recipe)
    model = task.model().eval()
    with torch.no_grad():
        alone = task.evaluate(model, Place())
    assert metrics == pytest.approx(alone)
    own = task.loss(model, next(task.batches(0, Place())))
    own.backward()
    assert float(own.detach()) == pytest.approx(loss, rel=1e-5)
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(gradient, expected, atol=1e-5)


def test_what_a_contrastive_loss_cannot_use_is_refused(recipe):
    with pytest.raises(ValueError, match=r"compared as a whole, and loop.accumulate=2 would compare parts"):
        check(override(recipe, ["loop.accumulate=2"]))
    with pytest.raises(ValueError, match=r"a number or 'auto', got 'ten'"):
        check(override(recipe, ["loss.pair_bias=ten"]))


def test_a_batch_holds_both_views_of_a_room(rooms):
    task = Retrieval(rooms)
    batch = next(task.batches(0, Place()))
    texts = task.feed.tokenizer.decode(batch["tokens"])
    words = [sorted(text.rstrip(".").split()) for text in texts]
    assert len(words) == 8
    captions = load_captioned(rooms.data, "train", task.depth).captions
    for a, b in zip(captions[::2], captions[1::2], strict=True):
        assert all(sorted(x[:-1].split()) == sorted(y[:-1].split()) and x != y for x, y in zip(a, b, strict=True))
    with pytest.raises(ValueError, match=r"loop.batch_size=7 is not a multiple of 2"):
        Retrieval(override(rooms, ["loop.batch_size=7"]))
    with pytest.raises(ValueError, match="must be even"):
        Retrieval(override(rooms, ["data.val_size=7"]))


@pytest.mark.slow
def test_captions_are_true_of_one_view_and_false_of_the_other():
    frames = scenes.render(scenes.sample(3, 96, views=2), (48, 48))
    distance, low = frames.centre.norm(dim=-1), frames.box2d[..., 3]
    told = scene_views.find_facts(frames)
    assert sum(map(len, told)) > 10
    for room, found in enumerate(told):
        for i, j in found:
            assert distance[2 * room, i] < distance[2 * room, j] - 0.1
            assert distance[2 * room + 1, i] > distance[2 * room + 1, j] + 0.1
    least = round(scene_views.MIN_SHARE * 48 * 48)
    # The same by hand: seen well and called uniquely in both views.
    for room, found in enumerate(told):
        things = [{t.slot: t for t in row} for row in scenes.seen(frames)[2 * room : 2 * room + 2]]
        called = [Counter(phrase(t) for t in row.values()) for row in things]
        good = {
            slot
            for slot, t in things[0].items()
            if all(
                slot in row and row[slot].pixels >= least and row[slot].visibility >= 0.4 and count[phrase(t)] == 1
                for row, count in zip(things, called, strict=True)
            )
        }
        gap, high = distance[2 * room : 2 * room + 2], low[2 * room : 2 * room + 2]
        expected = {
            (i, j)
            for i in good
            for j in good
            if gap[0, i] < gap[0, j] - 0.1
            and gap[1, j] < gap[1, i] - 0.1
            and bool(high[0, i] > high[0, j]) == bool(high[1, i] > high[1, j])
        }
        assert set(found) == expected
    ours, theirs = scene_views.write_sentences(
        [(0, 1), (2, 3)], ["a mug", "a bowl", "a box", "a can"], random.Random(0)
    )
    first, second = (sorted(text.rstrip(".").split(" and ")) for text in (ours[0], theirs[0]))
    assert first == ["a box is nearer than a can", "a mug is nearer than a bowl"]
    assert second == ["a bowl is nearer than a mug", "a can is nearer than a box"]


def test_captions_distinguish_views_or_do_not():
    image = torch.eye(4)
    text, owner = torch.eye(4)[[0, 1, 3, 2]], torch.tensor([0, 1, 2, 3])
    assert share_distinguished(image, text, owner, 2) == 0.5
    assert share_distinguished(torch.ones(4, 2), torch.ones(4, 2), owner, 2) == 0  # a tie is no answer


@pytest.mark.parametrize(("encoding", "depth_kind"), [("cayley", "lift"), ("absolute", "lift"), ("circulant", "none")])
def test_rooms_train_with_and_without_depth(rooms, tmp_path, encoding, depth_kind):
    asked = override(rooms, [f"model.encoding={encoding}", f"model.depth={depth_kind}"])
    outcome = train(asked, tmp_path, quiet=True)
    assert 0 <= outcome["metrics"]["views"] <= 1
    assert outcome["metrics"]["count"] == 8


def test_views_of_a_room_are_compared_among_themselves_too(rooms, recipe):
    task, more = Retrieval(rooms), Retrieval(override(rooms, ["loss.within=0.5"]))
    torch.manual_seed(0)
    model, batch = task.model(), next(task.batches(0, Place()))
    found = model(batch["image"], batch["tokens"], batch.get("depth"))
    wanted = task.loss(model, batch) + 0.5 * clip_loss_within_groups(found.image, found.text, found.scale, 2)
    assert torch.allclose(more.loss(model, batch), wanted)
    with pytest.raises(ValueError, match="stands alone"):
        Retrieval(override(recipe, ["loss.within=1"]))


@pytest.mark.slow
def test_a_tiny_run_learns(recipe, tmp_path):
    """Twelve images of their own shade and word are distinguished after a few seconds."""
    changes = ["loop.steps=120", "loop.batch_size=12", "augment.crop=1", "augment.colour=0", "augment.flip=false"]
    changes += [
        "optim.lr=0.003",
        "optim.warmup_steps=10",
        f"data.val={recipe.data.train}",
        "loop.log_every=60",
    ]
    outcome = train(override(recipe, changes), tmp_path / "learn", quiet=True)
    assert outcome["metrics"]["t2i@1"] > 0.6  # guessing finds one in twelve
    assert outcome["metrics"]["i2t@1"] > 0.6


def test_the_recipe_of_the_paper_has_its_length_and_warm_up():
    webli = recipes.load("webli3d")
    assert webli.total_steps(webli.data.train_size) // 1000 == 155
    assert round(webli.optim.warmup_steps / 155_000, 2) == 0.05


@pytest.fixture
def folder(tmp_path):
    for name, shades in (("dark", (10, 20)), ("light", (200, 210, 220))):
        (tmp_path / name).mkdir()
        for shade in shades:
            (tmp_path / name / f"{shade}.png").write_bytes(picture(shade))
    (tmp_path / "light" / "zz.png").write_bytes(b"no image")
    return tmp_path


def test_the_nearest_name_wins(folder, monkeypatch):
    tokenizer = Tokenizer.train(["a photo of a dark light thing"], vocab=300)
    model = Contrastive(
        vit("vit_test_patch16"), TextTower(vocab=len(tokenizer), dim=16, layers=1, num_heads=2, width=2)
    )

    def image(pixels, depth=None):  # red is high: (1, 0), else (0, 1)
        bright = pixels[:, 0].mean((1, 2)) > 0
        return torch.stack([bright.float(), 1 - bright.float()], -1)

    def text(tokens):
        light = torch.tensor(["light" in t for t in tokenizer.decode(tokens)]).float()
        return torch.stack([light, 1 - light], -1)

    monkeypatch.setattr(model, "embed_image", image)
    monkeypatch.setattr(model, "embed_text", text)
    images = open_image_set("folder", str(folder))
    found = zero_shot(model, tokenizer, images, ["dark", "light"], size=16, batch=2)
    assert found == {"top1": 1.0, "top5": 1.0, "count": 5, "corrupt": 1}
    wrong = zero_shot(model, tokenizer, images, ["light", "dark"], size=16)
    assert wrong["top1"] == 0
    with pytest.raises(ValueError, match="is of class 1, but there are 1 names"):
        zero_shot(model, tokenizer, images, ["dark"], size=16)
    assert len(PHOTO_TEMPLATES) == 7
