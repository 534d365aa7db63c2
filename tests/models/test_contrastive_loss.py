import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from processes import WORLD, in_two
from stringpe.models import contrastive_loss
from stringpe.models.contrastive_loss import clip_loss, clip_loss_within_groups, siglip_loss

LOSSES = {"siglip": siglip_loss, "clip": clip_loss}


def inputs(count=8, width=6, dtype=torch.float64):
    torch.manual_seed(0)
    image, text = (F.normalize(torch.randn(count, width, dtype=dtype), dim=-1).requires_grad_() for _ in range(2))
    return (
        image,
        text,
        torch.tensor([3.0], dtype=dtype).requires_grad_(),
        torch.tensor([-2.0], dtype=dtype).requires_grad_(),
    )


def by_hand(kind, image, text, scale, bias):
    """The definitions, as loops."""
    count = len(image)
    logit = [
        [scale * (image[i] @ text[j]) + (bias if kind == "siglip" else 0) for j in range(count)] for i in range(count)
    ]
    total = torch.zeros(1, dtype=image.dtype)
    for i in range(count):
        if kind == "siglip":
            for j in range(count):
                z = 1 if i == j else -1
                total = total - torch.log(1 / (1 + torch.exp(-z * logit[i][j])))
        else:
            rows, columns = (
                sum(torch.exp(logit[i][j]) for j in range(count)),
                sum(torch.exp(logit[j][i]) for j in range(count)),
            )
            total = total - (torch.log(torch.exp(logit[i][i]) / rows) + torch.log(torch.exp(logit[i][i]) / columns)) / 2
    return total.squeeze() / count


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("chunk", [0, 1, 3, 8, 100])
def test_trap_27_dense_and_chunked_are_the_definition(kind, chunk):
    given = inputs()
    truth = by_hand(kind, *given)
    wanted = torch.autograd.grad(truth, given[: 4 if kind == "siglip" else 3])
    loss = LOSSES[kind](*given, chunk=chunk)
    found = torch.autograd.grad(loss, given)
    assert torch.allclose(loss, truth, rtol=1e-12)
    for a, b in zip(found, wanted, strict=False):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    if kind == "clip":
        assert found[3] == 0


def test_the_start_of_siglip_is_as_its_paper_says():
    count = 64
    image = F.normalize(torch.randn(count, 1000), dim=-1)
    text = torch.zeros(count, 1000)  # nothing looks like anything
    loss = siglip_loss(image, text, torch.tensor([10.0]), torch.tensor([-10.0]))
    expected = math.log1p(math.exp(10)) + (count - 1) * math.log1p(math.exp(-10))
    assert math.isclose(float(loss), expected, rel_tol=1e-5)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_chunk_bounds_the_logits_that_are_kept(kind):
    image, text, scale, bias = inputs(count=64)
    largest = [0]

    def kept(tensor):
        largest[0] = max(largest[0], tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(kept, lambda t: t):
        LOSSES[kind](image, text, scale, bias, chunk=4)
    assert 0 < largest[0] <= 64 * 6  # embeddings, but no 64 × 64 logits
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda t: t):
        LOSSES[kind](image, text, scale, bias)
    assert largest[0] >= 64 * 64


def test_half_precision_does_not_reach_the_logits():
    image, text, scale, bias = inputs(count=16, dtype=torch.float32)
    exact = siglip_loss(image, text, scale, bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(siglip_loss(image, text, scale, bias), exact)


def test_unequal_numbers_are_refused():
    image, text, scale, bias = inputs()
    with pytest.raises(ValueError, match=r"one text per image, got \(8, 6\) and \(7, 6\)"):
        siglip_loss(image, text[:7], scale, bias)


def _process(rank):
    found = {}
    for kind, loss in LOSSES.items():
        for chunk in (0, 3):
            image, text, scale, bias = inputs()
            own = slice(rank * 4, rank * 4 + 4)
            value = loss(image[own], text[own], scale, bias, chunk=chunk, group=dist.group.WORLD)
            value.backward()
            tensors = [value.detach()] + [t.grad for t in (image, text, scale, bias)]
            for t in tensors:  # what data-parallel training does
                dist.all_reduce(t)
            found[kind, chunk] = [t / WORLD for t in tensors]
    return found


@pytest.mark.slow
def test_trap_27_two_processes_agree_with_one(tmp_path):
    found, _ = in_two(_process, tmp_path)
    for kind, loss in LOSSES.items():
        given = inputs()
        value = loss(*given)
        value.backward()
        for chunk in (0, 3):
            for a, b in zip(found[kind, chunk], [value, *(t.grad for t in given)], strict=True):
                assert torch.allclose(a, b.detach(), rtol=1e-9, atol=1e-12)


def test_the_names_are_those_of_the_recipes():
    assert tuple(LOSSES) == contrastive_loss.PAIR_LOSSES


@pytest.mark.parametrize("group", [2, 4])
def test_within_a_group_it_is_the_clip_loss_of_the_group(group):
    image, text, scale, bias = inputs()
    parts = [by_hand("clip", image[i : i + group], text[i : i + group], scale, bias) for i in range(0, 8, group)]
    truth = torch.stack(parts).mean()
    wanted = torch.autograd.grad(truth, (image, text, scale))
    loss = clip_loss_within_groups(image, text, scale, group)
    assert torch.allclose(loss, truth, rtol=1e-12)
    for a, b in zip(torch.autograd.grad(loss, (image, text, scale)), wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    assert torch.allclose(clip_loss_within_groups(image, text, scale, 8), clip_loss(image, text, scale), rtol=1e-12)


@pytest.mark.parametrize("group", [1, 3])
def test_groups_are_whole(group):
    image, text, scale, _ = inputs()
    with pytest.raises(ValueError, match="do not divide into groups of"):
        clip_loss_within_groups(image, text, scale, group)
