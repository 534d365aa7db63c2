"""Files of point clouds for tests: spheres, rods and discs."""

import numpy as np

KINDS = 3


def shape(kind, points, dice):
    """A sphere, a rod or a disc, of some size, at some place: (points, 3)."""
    x = dice.normal(size=(points, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x *= [np.ones(3), [0.1, 0.1, 1.0], [1.0, 1.0, 0.1]][kind]
    turned = x @ np.linalg.qr(dice.normal(size=(3, 3)))[0]
    return dice.uniform(0.1, 50) * turned + dice.normal(size=3)


def write_clouds(path, train=48, test=30, points=40, **more):
    dice, parts = np.random.default_rng(0), {}
    for split, count in (("train", train), ("test", test)):
        label = np.arange(count) % KINDS
        parts[f"{split}_points"] = np.stack([shape(k, points, dice) for k in label]).astype(np.float32)
        parts[f"{split}_label"] = label.astype(np.uint8)
    np.savez(path, **(parts | more))
    return path
