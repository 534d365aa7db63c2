"""What is said of a frame is true of it."""

import pytest
import torch

from stringpe import scenes
from stringpe.scenes.descriptions import phrase

FRAMES = scenes.render(scenes.sample(8, 24))
TABLE = scenes.relations(FRAMES)
NUMBER = {name: k for k, name in enumerate(scenes.RELATIONS)}


def pairs(name):
    return TABLE[..., NUMBER[name]].nonzero().tolist()


def test_left_and_right_are_sides_of_the_image():
    assert pairs("left of")
    for b, i, j in pairs("left of"):
        columns = [(FRAMES.instance[b] == k + 1).any(0).nonzero() for k in (i, j)]
        assert columns[0].max() < columns[1].min()
    assert torch.equal(TABLE[..., NUMBER["right of"]], TABLE[..., NUMBER["left of"]].transpose(1, 2))


def test_behind_is_deeper_and_in_the_same_columns():
    assert pairs("behind")
    for b, i, j in pairs("behind"):
        depths = [FRAMES.depth[b][FRAMES.instance[b] == k + 1] for k in (i, j)]
        assert depths[0].min() > depths[1].max() - 5e-3
    assert torch.equal(TABLE[..., NUMBER["in front of"]], TABLE[..., NUMBER["behind"]].transpose(1, 2))


def test_on_is_standing_on_its_top():
    assert pairs("on")
    for b, i, j in pairs("on"):
        up = FRAMES.pose[b, 2, :3]  # the world's z axis in the camera frame
        height = FRAMES.corners()[b] @ up
        assert float(height[i].min()) <= float(height[j].max()) + 1e-3
        assert float(height[i].max()) > float(height[j].max()) - 0.05
        assert float(height[i].min()) > float(height[j].min())


def test_nearer_is_a_smaller_distance():
    for b, i, j in pairs("nearer than"):
        assert FRAMES.centre[b, i].norm() + 0.09 < FRAMES.centre[b, j].norm()


def test_captions_say_only_what_holds():
    stated = 0
    for b, (texts, things) in enumerate(zip(scenes.captions(FRAMES), scenes.seen(FRAMES), strict=True)):
        assert texts
        named = {
            word: [t.slot for t in things if word in (phrase(t), phrase(t, 1.0))]
            for t in things
            for word in (phrase(t), phrase(t, 1.0))
        }
        for word in texts[0].rstrip(".").split(" with ", 1)[1].replace(" and ", ", ").split(", "):
            assert named[word], texts[0]
        for text in texts[1:]:
            first, rest = text.rstrip(".").split(" is ", 1)
            relation = next(r for r in scenes.RELATIONS if rest.startswith(r + " "))
            second = rest[len(relation) + 1 :]
            held = TABLE[b, :, :, NUMBER[relation]]
            assert any(held[i, j] for i in named[first] for j in named[second]), text
            stated += 1
    assert stated > 40


def test_captions_are_the_same_for_the_same_scene():
    again = scenes.render(scenes.sample(8, [3, 4]))
    assert scenes.captions(again) == scenes.captions(FRAMES)[3:5]


def test_seen_objects_carry_their_annotation():
    for b, things in enumerate(scenes.seen(FRAMES, min_pixels=20, min_visibility=0.5)):
        for t in things:
            assert t.kind == scenes.kinds()[int(FRAMES.kind[b, t.slot])]
            assert t.pixels >= 20
            assert t.visibility >= 0.5
            assert t.centre == pytest.approx(FRAMES.centre[b, t.slot].tolist())
