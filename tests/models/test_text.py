import json

import pytest
import torch

import stringpe
from stringpe.models.text import POOLS, TextTower
from stringpe.models.tokenizer import Tokenizer

CAPTIONS = ["a red mug is left of a bowl", "two dogs play in the snow", "a table with a lamp and a book"] * 3
ENCODINGS = ["absolute", "sincos", "none", "rope", "rope_mixed", "circulant", "cayley"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(CAPTIONS, vocab=320)


def tower(**options):
    torch.manual_seed(0)
    return TextTower(**({"vocab": 320, "dim": 32, "layers": 2, "num_heads": 2, "context": 16, "width": 24} | options))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("pool", POOLS)
def test_padding_changes_nothing(tokenizer, encoding, pool):
    model = tower(encoding=encoding, pool=pool).eval()
    short = tokenizer.encode(["two dogs play", "a red mug"], context=8)
    long = tokenizer.encode(["two dogs play", "a red mug"], context=16)
    assert torch.allclose(model(short), model(long), atol=1e-5)
    beside = tokenizer.encode(["two dogs play", "a table with a lamp and a book in the snow"], context=16)
    assert torch.allclose(model(short)[0], model(beside)[0], atol=1e-5)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_order_of_words_matters_where_there_are_positions(tokenizer, encoding):
    model = tower(encoding=encoding, pool="mean").eval()
    a, b = model(tokenizer.encode(["a mug left of a bowl", "a bowl left of a mug"], context=16))
    assert torch.allclose(a, b, atol=1e-5) == (encoding == "none")


@pytest.mark.parametrize("encoding", ["rope", "cayley", "circulant"])
def test_every_parameter_has_gradient(tokenizer, encoding):
    model = tower(encoding=encoding)
    model(tokenizer.encode(CAPTIONS[:3], context=16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_attention_looks_both_ways(tokenizer):
    model = tower(encoding="rope", pool="last").eval()
    tokens = tokenizer.encode(["two dogs play in the snow"], context=16)
    before = model.features(tokens).tokens
    changed = tokens.clone()
    changed[0, 4] = 300
    after = model.features(changed).tokens
    assert (before[0, 0] - after[0, 0]).abs().max() > 1e-4  # the first token sees the fifth


def test_a_row_of_padding_is_a_number_and_not_seen_by_others(tokenizer):
    model = tower()
    tokens = torch.cat([tokenizer.encode(["two dogs"], context=16), torch.zeros(1, 16, dtype=torch.long)])
    out = model(tokens)
    assert out.isfinite().all()
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_the_last_token_is_the_last_before_padding(tokenizer):
    model = tower(pool="last")
    tokens = tokenizer.encode(["two dogs"], context=16)
    features = model.features(tokens)
    count = int((tokens != 0).sum())
    assert torch.equal(features.pooled[0], features.tokens[0, count - 1])
    assert features.mask.sum() == count


def test_what_a_tower_cannot_read_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"n from 1 to the context of 16, got \(1, 20\)"):
        tower()(tokenizer.encode(["two dogs"], context=20))
    with pytest.raises(ValueError, match="pool must be one of map, last, mean, got 'cls'"):
        tower(pool="cls")
    with pytest.raises(ValueError, match="build it with coord_dim=1"):
        tower(encoding=stringpe.rope(head_dim=16, num_heads=2, coord_dim=2))
    with pytest.raises(ValueError, match="no encoding named 'roep': did you mean 'rope'"):
        tower(encoding="roep")
    with pytest.raises(ValueError, match="padding must be a token number below vocab=320"):
        tower(padding=320)


def test_texts_come_back(tokenizer):
    texts = ["Two dogs play in the snow", "größer, 漢字!"]
    tokens = tokenizer.encode(texts, context=40)
    assert tokens.shape == (2, 40)
    assert tokens.dtype == torch.long
    assert tokenizer.decode(tokens) == ["two dogs play in the snow", "größer, 漢字!"]
    assert tokens.max() < len(tokenizer) <= 320


def test_long_captions_are_cut_and_counted(tokenizer):
    other = Tokenizer.from_json(tokenizer.to_json())
    tokens = other.encode(["two dogs " * 30, "two dogs", "a mug " * 30], context=8)
    assert other.truncated == 2
    whole = other.encode(["two dogs " * 30], context=200)
    assert torch.equal(tokens[0, :7], whole[0, :7])
    assert tokens[0, 7] == tokens[2, 7] == other.inner.token_to_id("[END]")


def test_training_twice_gives_the_same_tokeniser():
    assert Tokenizer.train(CAPTIONS, vocab=320).to_json() == Tokenizer.train(iter(CAPTIONS), vocab=320).to_json()


def test_a_file_comes_back(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert torch.equal(loaded.encode(CAPTIONS), tokenizer.encode(CAPTIONS))
    assert loaded.padding == tokenizer.padding


def test_a_file_of_another_model_is_read(tokenizer, tmp_path):
    foreign = json.loads(tokenizer.to_json())
    for token in foreign["added_tokens"]:
        token["content"] = {"[PAD]": "<pad>", "[END]": "</s>"}[token["content"]]
    vocab = foreign["model"]["vocab"]
    vocab["<pad>"], vocab["</s>"] = vocab.pop("[PAD]"), vocab.pop("[END]")
    foreign["post_processor"] = None  # texts without an end token
    foreign["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(foreign))
    loaded = Tokenizer.load(path)
    assert loaded.padding == 0
    assert torch.equal(
        loaded.encode(["two dogs play in the snow"], 5), tokenizer.encode(["two dogs play in the snow"], 20)[:, :5]
    )


def test_what_is_not_a_text_is_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="text 1 of 2 is empty"):
        tokenizer.encode(["two dogs", "  "])
    with pytest.raises(ValueError, match="put it into a list"):
        tokenizer.encode("two dogs")
    with pytest.raises(ValueError, match="there is no tokeniser file"):
        Tokenizer.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"bad.json is not a tokenizer.json"):
        Tokenizer.load(tmp_path / "bad.json")
    plain = json.loads(tokenizer.to_json())
    plain["added_tokens"], plain["post_processor"] = [], None
    del plain["model"]["vocab"]["[PAD]"], plain["model"]["vocab"]["[END]"]
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="names no padding token"):
        Tokenizer.load(tmp_path / "plain.json")
