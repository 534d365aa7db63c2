"""KUKA pick in minutes: a small diffusion policy from RGB-D at 128 px, from scratch, on one GPU.

    stringpe data demos KukaPick depth_noise=true --episodes 1200 --depth --out data/pick
    stringpe data pack data/pick pick.safetensors --stride 5 --depth-step 4
    stringpe compare kuka_small data.train=pick.safetensors --baseline circulant:model.depth=none --out runs/kuka \\
        --encodings circulant:model.depth=none circulant:model.depth=normals \\
                    circulant circulant:model.depth=lift+normals
    stringpe eval runs/kuka/runs/*/seed0 depth_noise=true --env KukaPick --shifts --trials 50 --out results/kuka

Data: demonstrations as the first command records them. The rows: 2D, 2D with surface normals, depth lifted to the third
coordinate, and both. policy.kind=energy is the paper's kind of policy, which learns more slowly (docs/policies.md).
Registers stand at the origin of the coordinates, so that a lifted patch expresses its own depth, and not only its
difference from other patches. The decoder predicts the clean chunk, a quarter of each batch are first frames, and the
encoder begins with convolutions, so that the policy learns to use its cameras: docs/policies.md.

To test whether depth helps where heights differ, vary them in training, test beyond the range of training, and leave
out the wrist camera, from which a block looks the same at every height:

    stringpe data demos KukaPick table_height=-0.03..0.03 pedestal_height=-0.03..0.03 depth_noise=true \\
        --cameras front --episodes 1200 --depth --out data/heights
    stringpe eval … depth_noise=true --env KukaPick --shifts       # table and pedestal at ± 6 cm among the shifts

lighting=random and distractors=0..3 vary light and clutter in the same way. Such demonstrations, recorded with both
cameras (without --cameras front), can also test whether policies generalise to other heights better in the robot's
frame than in the frames of the cameras (docs/policies.md):

    stringpe compare kuka_small data.train=data/heights --seeds 3 --baseline circulant --out runs/frames \\
        --encodings circulant circulant:policy.frame=world

Time: sixteen minutes on one H200 for sixteen such policies side by side.
Expected: 92 to 94 % of picks succeed in simulation, with depth or without (results/2026-11-16-kuka-pick, which also has
the shifts). In those runs the arm was drawn from another model file; today it is drawn from primitives, with the same
kinematics. The paper's real robot: 65 % in 2D, 42 % with normals, 74 % lifted, 53 % with both.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from dataclasses import replace

from .aloha_small import RECIPE as ALOHA

RECIPE = replace(
    ALOHA,
    name="kuka_small",
    model=replace(ALOHA.model, encoding="circulant", depth="lift"),
    policy=replace(ALOHA.policy, chunk=16, execute=8),
)
