import pytest
import torch
import torch.nn.functional as F

from stringpe import tasks
from stringpe.data.order import Place
from stringpe.recipes.schema import Augment, Data, Loop, Loss, Model, Recipe
from stringpe.tasks.build import backbone
from stringpe.tasks.classification import (
    Classification,
    cross_entropy,
    hits,
    mixup,
    resize,
    soft_targets,
    weighted_sums,
)


def test_losses_are_torchs():
    logits, labels = torch.randn(6, 5), torch.randint(5, (6,))
    target = soft_targets(labels, 5, 0.1)
    assert torch.allclose(
        cross_entropy(logits, target, Loss()).mean(), F.cross_entropy(logits, labels, label_smoothing=0.1)
    )
    sigmoid = cross_entropy(logits, F.one_hot(labels, 5).float(), Loss(kind="sigmoid"))
    p = logits.sigmoid()
    expected = -(p[0, labels[0]].log() + (1 - p[0]).log().sum() - (1 - p[0, labels[0]]).log())
    assert torch.allclose(sigmoid[0], expected, atol=1e-5)


def test_mixup_mixes_neighbours_the_same_way_in_images_and_targets():
    image = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 2, 2)
    target = torch.eye(4)
    mixed, soft = mixup(image, target, 0.5, seed=3, step=8)
    share = soft[0, 0]
    assert 0 < share < 1
    assert torch.allclose(soft.sum(-1), torch.ones(4))
    assert torch.allclose(mixed[2, 0, 0, 0], 2 * share + 3 * (1 - share))
    halves = [mixup(i, t, 0.5, 3, 8)[0] for i, t in zip(image.chunk(2), target.chunk(2), strict=True)]
    assert torch.allclose(torch.cat(halves), mixed)
    assert not torch.allclose(mixup(image, target, 0.5, 3, 9)[1], soft)
    with pytest.raises(ValueError, match="even batch, got 3"):
        mixup(image[:3], target[:3], 0.5, 0, 0)


def test_hits_and_sums_leave_padding_out():
    logits = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.3], [0.0, 0.2, 0.7]])
    labels = torch.tensor([1, 2, 2])
    assert hits(logits, labels, 1).tolist() == [True, False, True]
    assert hits(logits, labels, 2).tolist() == [True, True, True]
    sums = weighted_sums(logits, labels, torch.tensor([1.0, 1.0, 0.0]).double(), Loss())
    assert (sums["top1"].item(), sums["top5"].item(), sums["count"].item()) == (1, 2, 2)


def test_the_head_starts_at_its_bias():
    recipe = Recipe(
        model=Model(dim=16, layers=1, heads=2, patch_size=4, encoding="rope"),
        data=Data(image_size=8, num_classes=5, train_size=8, val_size=4),
        loss=Loss(kind="sigmoid", head_bias=-6.9),
        augment=Augment(mixup=0.5),
    )
    task = Classification(recipe)
    model = task.model()
    assert model.head.bias.tolist() == pytest.approx([-6.9] * 5)
    assert (model(torch.randn(2, 3, 8, 8)) + 6.9).abs().max() < 4  # close to it: classes are told apart by chance
    batch = next(task.batches(0, Place()))
    assert batch["target"].shape == (64, 5)
    assert (batch["target"].sum(-1) - 1).abs().max() < 1e-6
    assert [s.image.shape for s in task.samples(2)] == [(8, 8, 3)] * 2


def with_sizes(sizes, **data):
    data = {"image_size": 16, "num_classes": 3, "train_size": 8, "val_size": 10} | data
    model = Model(dim=16, layers=1, heads=2, patch_size=4, encoding="rope")
    return Recipe(model=model, data=Data(**data), loop=Loop(batch_size=4, eval_batch=4, eval_sizes=sizes))


def test_a_model_is_also_tested_on_images_of_other_sizes():
    plain, task = Classification(with_sizes("")), Classification(with_sizes("8, 32"))
    torch.manual_seed(0)
    model = task.model().eval()
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    with torch.no_grad():
        metrics = task.evaluate(model, Place())
        assert metrics == plain.evaluate(model, Place()) | {name: metrics[name] for name in ("top1_8", "top1_32")}
    assert {shape[2] for shape in seen} == {16, 8, 32}
    assert max(shape[0] for shape in seen if shape[2] == 32) == 1  # four times the pixels
    assert max(shape[0] for shape in seen if shape[2] == 8) == 10
    assert Classification.meaning("top1_32").endswith("first answer is right, on images of 32 pixels per side")


def test_resized_images_show_the_same():
    image = torch.rand(2, 3, 16, 16)
    assert resize(image, 0) is image
    assert torch.allclose(resize(image, 32), F.interpolate(image, 32, mode="bilinear"), atol=1e-5)
    flat = torch.full((1, 3, 16, 16), 0.3)
    assert torch.allclose(resize(flat, 8), torch.full((1, 3, 8, 8), 0.3))
    stripes = torch.arange(16.0).remainder(2).expand(1, 3, 16, 16)
    assert (resize(stripes, 8)[..., 2:-2] - 0.5).abs().max() < 0.13  # point samples would be 0 or 1


@pytest.mark.parametrize(("sizes", "error"), [("30", "multiples of model.patch_size=4, got 30"), ("big", "got 'big'")])
def test_sizes_that_cannot_be_tested_are_refused(sizes, error):
    with pytest.raises(ValueError, match=error):
        Classification.check(with_sizes(sizes))


def test_unknown_tasks_are_answered_with_the_nearest():
    assert tasks.names()[:2] == ["classification", "objects"]
    with pytest.raises(ValueError, match="did you mean 'classification'"):
        tasks.create(Recipe(task="clasification"))


def test_none_takes_depth_as_a_channel_and_the_others_lift_it():
    small = {"dim": 16, "layers": 2, "heads": 2, "patch_size": 4, "depth": "lift"}
    assert backbone(Model(encoding="none", **small), image_size=8).depth == "channel"
    lifted = backbone(Model(encoding="rope", **small), image_size=8)
    assert (lifted.depth, lifted.coord_dim) == ("lift", 3)


def test_liere_has_parameters_of_its_own_in_every_layer():
    model = Model(encoding="liere", dim=16, layers=2, heads=2, patch_size=4)
    layers = [block.attention.encoding for block in backbone(model, image_size=8).blocks]
    assert layers[0] is not layers[1]
    with pytest.raises(ValueError, match="'liere' has no option 'block'"):
        backbone(Model(encoding="liere", encoding_options={"block": 8}), image_size=16)
