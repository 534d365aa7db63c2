import torch

from stringpe.data.queries import draw_queries
from stringpe.models.owl_loss import Truth


def truth(labels, classes=10):
    labels = torch.tensor(labels)
    valid = labels >= 0
    return Truth(torch.zeros(*labels.shape, 4), labels.clamp(min=0), valid, torch.zeros_like(valid))


def test_an_image_is_asked_about_what_it_shows_and_some_more():
    asked = draw_queries(truth([[3, 7, 3], [5, -1, -1]]), torch.ones(10), 4, torch.rand(2, 10))
    assert asked.classes.shape == (2, 6)
    assert asked.mask.tolist() == [[True] * 6, [True] * 5 + [False]]
    assert {3, 7} <= set(asked.classes[0].tolist())
    assert 5 in asked.classes[1, :5].tolist()
    assert all(len(set(row.tolist())) == 6 for row in asked.classes)
    for b, j, label in ((0, 0, 3), (0, 1, 7), (0, 2, 3), (1, 0, 5)):
        assert asked.classes[b, asked.truth.labels[b, j]] == label


def test_few_classes_are_all_asked_about():
    asked = draw_queries(truth([[1], [-1]]), torch.ones(3), 50, torch.rand(2, 3))
    assert asked.mask.all()
    assert [sorted(row.tolist()) for row in asked.classes] == [[0, 1, 2]] * 2


def test_negatives_are_drawn_by_frequency():
    weight = torch.tensor([1.0, 4.0, 0.0, 1.0])
    asked = draw_queries(truth([[-1]] * 4000), weight, 1, torch.rand(4000, 4))
    share = torch.bincount(asked.classes[:, 0], minlength=4) / 4000
    assert torch.allclose(share, torch.tensor([1 / 6, 4 / 6, 0.0, 1 / 6]), atol=0.03)


def test_known_negatives_come_first():
    known = torch.zeros(3, 10, dtype=torch.bool)
    known[:, 8] = True
    asked = draw_queries(truth([[2]] * 3), torch.ones(10), 1, torch.rand(3, 10), known)
    assert asked.classes.tolist() == [[2, 8]] * 3


def test_no_negatives_and_nothing_shown():
    asked = draw_queries(truth([[2, 4], [-1, -1]]), torch.ones(10), 0, torch.rand(2, 10))
    assert asked.mask.tolist() == [[True, True], [False, False]]
