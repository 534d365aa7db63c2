import pytest
import torch
import torch.nn.functional as F

from stringpe import tasks
from stringpe.data.order import Place
from stringpe.recipes.schema import Augment, Data, Loss, Model, Recipe
from stringpe.tasks.build import backbone
from stringpe.tasks.classification import Classification, cross_entropy, hits, mixup, soft_targets, weighted_sums


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
    with pytest.raises(ValueError, match="softmax, sigmoid, got 'hinge'"):
        cross_entropy(logits, target, Loss(kind="hinge"))


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
