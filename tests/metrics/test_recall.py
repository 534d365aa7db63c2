import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stringpe.metrics.recall import RANKS, recall


def by_hand(image, text, owner):
    """Recall as loops over galleries, ties against."""
    scores = (image @ text.T).tolist()
    n, m = len(image), len(text)
    found = {}
    for k in RANKS:
        hits = []
        for i in range(n):
            own = [j for j in range(m) if owner[j] == i]
            if own:
                best = max(scores[i][j] for j in own)
                hits.append(sum(scores[i][j] >= best for j in range(m) if owner[j] != i) < k)
        found[f"i2t@{k}"] = sum(hits) / len(hits)
        hits = []
        for j in range(m):
            if owner[j] >= 0:
                ahead = [i for i in range(n) if i != owner[j] and scores[i][j] >= scores[int(owner[j])][j]]
                hits.append(len(ahead) < k)
        found[f"t2i@{k}"] = sum(hits) / len(hits)
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 60), st.integers(0, 10_000), st.integers(1, 7))
def test_trap_27_recall_is_a_loop_over_galleries(n, m, seed, chunk):
    dice = torch.Generator().manual_seed(seed)
    image = torch.randint(-2, 3, (n, 3), generator=dice).float()  # few values: many ties
    text = torch.randint(-2, 3, (m, 3), generator=dice).float()
    owner = torch.randint(-1, n, (m,), generator=dice)
    owner[0] = 0
    found = recall(image, text, owner, chunk=chunk)
    for name, share in by_hand(image, text, owner.tolist()).items():
        assert float(found[name]) == pytest.approx(share)
    assert float(found["mean"]) == pytest.approx(sum(float(found[k]) for k in found if k != "mean") / 6)


def test_all_found_nothing_found_and_one_caption_of_five():
    image = torch.eye(12)
    text, owner = torch.eye(12).repeat_interleave(5, 0), torch.arange(12).repeat_interleave(5)
    assert all(float(v) == 1 for v in recall(image, text, owner).values())
    nothing = recall(torch.ones(12, 4), torch.ones(60, 4), owner)
    assert all(float(v) == 0 for v in nothing.values())  # all alike is found by luck, and luck does not count
    # One good caption of five is enough from image to text; from text to image each is asked on its own.
    mixed = text.clone()
    mixed[torch.arange(60) % 5 != 0] *= -1
    found = recall(image, mixed, owner)
    assert float(found["i2t@1"]) == 1
    assert float(found["t2i@1"]) == pytest.approx(1 / 5)


def test_distractors_stand_in_the_gallery_but_are_not_asked_about():
    image, owner = torch.eye(3), torch.tensor([0, 1, 2, -1])
    text = torch.cat([torch.eye(3), 2 * torch.eye(3)[:1]])
    found = recall(image, text, owner)
    assert float(found["i2t@1"]) == pytest.approx(2 / 3)
    assert float(found["t2i@1"]) == 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="recall takes image"):
        recall(torch.eye(3), torch.eye(4), torch.arange(4))
    with pytest.raises(ValueError, match="numbers images from 0 to 2"):
        recall(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match="at least one text"):
        recall(torch.eye(3), torch.eye(3), torch.tensor([-1, -1, -1]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_embeddings_that_are_not_finite_are_refused(value):
    """All-NaN embeddings used to have no rivals: a recall of 100 %."""
    bad = torch.eye(3)
    bad[1, 0] = value
    with pytest.raises(ValueError, match="1 of 3 image embeddings are not finite"):
        recall(bad, torch.eye(3), torch.arange(3))
    with pytest.raises(ValueError, match="1 of 3 text embeddings are not finite"):
        recall(torch.eye(3), bad, torch.arange(3))
