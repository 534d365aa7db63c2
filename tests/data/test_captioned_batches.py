"""Captioned pairs: the same batches from memory, workers and streams."""

from dataclasses import replace

import pytest
import torch

from captioned_files import depth, shard, words
from data_fixtures import noise, train_in_order
from stringpe.data.addresses import PIPES
from stringpe.data.captioned_batches import CaptionedBatches, encode_captions, mirror_caption
from stringpe.data.order import Place
from stringpe.data.stream import BUFFER
from stringpe.models.tokenizer import Tokenizer
from stringpe.recipes.schema import Augment, Data, Loop, Recipe, Text


def test_a_mirror_swaps_left_and_right():
    assert mirror_caption("a mug LEFT of a bright bowl, to the right") == "a mug right of a bright bowl, to the left"


def test_captions_of_an_image_are_drawn_from_its_own():
    captions = [["aa left", "bb"], ["cc"], ["dd", "ee", "ff"]]
    tokenizer = Tokenizer.train([c for row in captions for c in row], vocab=300)
    found = encode_captions(captions, tokenizer, context=20)
    assert found.tokens.shape[1] < 20  # no wider than needed
    index, u = torch.tensor([2, 0, 1, 0]), torch.tensor([0.99, 0.0, 0.5, 1.0])
    plain = found.draw(index, u, torch.zeros(4, dtype=torch.bool))
    assert tokenizer.decode(plain) == ["ff", "aa left", "cc", "bb"]
    assert tokenizer.decode(found.draw(index, u, torch.ones(4, dtype=torch.bool))) == ["ff", "aa right", "cc", "bb"]
    tokens, owner = found.of(torch.tensor([1, 2]), most=3)
    assert owner.tolist() == [1, -1, -1, 2, 2, 2]
    assert tokenizer.decode(tokens)[3:] == ["dd", "ee", "ff"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    for name, first, count in (("t-0", 0, 8), ("t-1", 8, 8), ("v", 20, 5)):
        samples = {}
        for i in range(first, first + count):
            texts = [f"number {i} left", f"a picture {i} of noise\nin two lines", f"right {i}"][: 1 + i % 3]
            size = ((20, 16), (16, 20), (40, 33))[i % 3]
            samples[f"{i:03d}"] = {"png": noise(i, size), "json": words(*texts), "depth.png": depth(900 + i, size)}
        shard(folder / f"{name}.tar", samples)
    recipe = Recipe(
        task="retrieval",
        data=Data(source="shards", train=str(folder / "t-{0..1}.tar"), val=str(folder / "v.tar"), image_size=16),
        text=Text(vocab=300, context=24),
        augment=Augment(crop=0.4, flip=True, colour=0.3),
        loop=Loop(batch_size=4),
    )
    (folder / "tokenizer.json").write_text(CaptionedBatches(recipe, False).tokenizer.to_json())
    return replace(recipe, text=replace(recipe.text, tokenizer=str(folder / "tokenizer.json")))


def with_data(recipe, **changes):
    return replace(recipe, data=replace(recipe.data, **changes))


@pytest.mark.parametrize("with_depth", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_and_workers_give_equal_batches(asked, with_depth, workers):
    memory = CaptionedBatches(asked, with_depth)
    other = CaptionedBatches(with_data(asked, in_memory=False, workers=workers), with_depth)
    assert memory.examples == other.examples == 16
    for place in (Place(), Place(1, 2)):
        left, right = memory.train(1, place), other.train(1, place)
        for _ in range(6):
            a, b = next(left), next(right)
            assert set(a) == set(b) == {"image", "tokens"} | ({"depth"} if with_depth else set())
            assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("with_depth", [False, True])
@pytest.mark.parametrize("shards_of", ["{}", "pipe:cat {}"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_small_stream_gives_the_batches_of_memory(asked, monkeypatch, with_depth, shards_of, workers):
    """Without a tokeniser of its own: it is trained on the same captions."""
    monkeypatch.setenv(PIPES, "1")
    asked = replace(asked, text=replace(asked.text, tokenizer=""))
    where = shards_of.format(asked.data.train)
    memory = CaptionedBatches(asked, with_depth)
    stream = CaptionedBatches(
        with_data(asked, source="stream", train=where, train_size=16, workers=workers), with_depth
    )
    assert stream.examples == 16
    for start, place in ((0, Place()), (5, Place()), (1, Place(1, 2))):
        for _, a, b in zip(range(6), memory.train(start, place), stream.train(start, place), strict=False):
            assert set(a) == set(b)
            assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_large_stream_makes_of_a_pair_what_memory_makes_of_it_at_the_same_place(asked, workers):
    """The order of a large stream is its own: it is read off the stream's images and given to memory. Its tokens have
    as many columns as the context, those of memory as many as they need."""
    plain = replace(asked, augment=Augment())
    streamed = {"source": "stream", "train_size": BUFFER + 1, "workers": workers}
    memory = CaptionedBatches(asked, True)
    known = memory.loader.columns["image"]
    orders = []
    for _, batch in zip(range(6), CaptionedBatches(with_data(plain, **streamed), True).train(0, Place()), strict=False):
        pixels = ((batch["image"] + 1) * 127.5).round().to(torch.uint8)
        same = (pixels[:, None] == known[None]).flatten(2).all(2)
        assert same.any(1).all()
        orders.append(same.float().argmax(1))
    expected = train_in_order(memory, orders, "stringpe.data.captioned_batches")
    for a, b in zip(expected, CaptionedBatches(with_data(asked, **streamed), True).train(0, Place()), strict=False):
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["depth"], b["depth"])
        width = a["tokens"].shape[1]
        assert torch.equal(a["tokens"], b["tokens"][:, :width])
        assert (b["tokens"][:, width:] == memory.tokenizer.padding).all()


def test_a_stream_of_nothing_but_bad_samples_ends(asked, tmp_path):
    path = shard(tmp_path / "s.tar", {"0": {"png": noise(0), "json": words("")}, "1": {"json": words("a")}})
    stream = CaptionedBatches(with_data(asked, source="stream", train_size=BUFFER + 1, train=str(path)), False)
    with pytest.raises(ValueError, match=r"no usable sample in .*s\.tar; [01]: it has no (caption|picture)"):
        next(stream.train(0, Place()))
