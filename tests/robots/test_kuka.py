import numpy as np
import pytest

from stringpe import robots
from stringpe.robots.data import demos
from stringpe.robots.sim.sensors import DepthSensor

SHIFTS = [*robots.shifts("KukaPick"), {"table_height": 0.1}]


@pytest.mark.parametrize("shift", SHIFTS, ids=str)
def test_the_expert_picks_under_every_shift(shift):
    env = robots.make("KukaPick", cameras=(), **shift)
    assert demos.demonstrate(env, seed=5) is not None


VARIED = {"table_height": "-0.06..0.06", "pedestal_height": "-0.06..0.06", "distractors": "0..3", "lighting": "random"}


@pytest.mark.parametrize("task", ["KukaPick", "KukaPlace", "KukaHandOver"])
@pytest.mark.slow
def test_the_expert_succeeds_in_varied_scenes(task):
    env = robots.make(task, cameras=(), **VARIED)
    heights = []
    for seed in range(6):
        assert demos.demonstrate(env, seed) is not None, seed
        heights.append(float(env.world.pose("table").pos[2]))
    assert len(set(heights)) == 6
    assert max(map(abs, heights)) <= 0.06


def test_a_seed_fixes_the_scene_and_the_small_objects(blind):
    plain, (one, two) = blind("KukaPick"), (robots.make("KukaPick", cameras=(), **VARIED) for _ in range(2))
    two.restart(1)
    for env in (plain, one, two):
        env.restart(9)
    for thing in one.task.things:
        np.testing.assert_array_equal(one.world.pose(thing.name).pos, two.world.pose(thing.name).pos)
    np.testing.assert_array_equal(one.model.light("lamp").dir, two.model.light("lamp").dir)
    height = one.world.pose("table").pos[2]
    assert height != 0
    for thing in plain.task.things:
        gap = one.world.pose(thing.name).pos - plain.world.pose(thing.name).pos
        np.testing.assert_allclose(gap, [0, 0, height], atol=1e-4)


def test_without_seeds_the_scene_changes_from_episode_to_episode():
    env = robots.make("KukaPick", cameras=(), table_height="-0.03..0.03", seed=3)
    heights = []
    for _ in range(4):
        env.restart()
        heights.append(float(env.world.pose("table").pos[2]))
    assert len(set(heights)) == 4


def test_the_number_of_large_objects_varies_and_the_others_are_out_of_sight():
    env = robots.make("KukaPick", cameras=(), distractors="0..3")
    counts = set()
    for seed in range(12):
        env.restart(seed)
        near = [env.world.pose(name).pos[0] < 1 for name in ("bottle", "carton", "large bowl")]
        assert near == sorted(near, reverse=True)
        counts.add(sum(near))
    assert counts == {0, 1, 2, 3}


def test_the_arm_has_the_published_reach():
    """Stretched upwards, an LBR iiwa 7 R800 has its wrist at 0.34 + 0.4 + 0.4 m and its flange 0.125 m above."""
    env = robots.make("KukaPick", cameras=())
    arm = env.robot.arms[0]
    for joint in arm.joints:
        env.data.joint(joint).qpos[0] = 0.0
    env.refresh()
    np.testing.assert_allclose(env.data.body("kuka/link_6").xpos, [0, 0, 1.14], atol=1e-9)
    np.testing.assert_allclose(env.data.body("kuka/flange").xpos, [0, 0, 1.265], atol=1e-9)
    assert env.world.grip("arm").turn[2, 0] == pytest.approx(1.0)  # the hand points up, too


def test_an_object_on_the_table_or_in_the_air_is_not_handed_over(blind, home):
    env = blind("KukaHandOver")
    env.reset(seed=0)
    hand = env.world.pose("hand").pos
    for at in (hand + np.array([0, 0, 0.3]), hand * np.array([1, 1, 0])):
        for _ in range(7):
            env.move("green block", at)
            env.refresh()
            assert not env.advance(home(env))["success"]
    env.move("green block", hand + np.array([0, 0, 0.02]))
    assert any(env.advance(home(env))["success"] for _ in range(15))


@pytest.mark.parametrize("target", ["red can", "blue box", "orange ball"])
def test_other_things_can_be_picked(target):
    env = robots.make("KukaPick", cameras=(), target=target)
    assert env.task_text == f"pick up the {target}"
    assert demos.demonstrate(env, seed=5) is not None


def test_shifts_keep_the_small_things_where_they_are(blind):
    plain = blind("KukaPick")
    plain.reset(seed=7)
    for shift in SHIFTS:
        env = robots.make("KukaPick", cameras=(), **shift)
        env.reset(seed=7)
        lift = np.array([0, 0, shift.get("table_height", 0.0)])
        for thing in plain.task.things:
            gap = env.world.pose(thing.name).pos - plain.world.pose(thing.name).pos - lift
            assert np.abs(gap).max() < 1e-4, (shift, thing.name)


def test_light_changes_the_picture_and_not_the_depth(eyes):
    seen = {}
    for lighting in ("normal", "dim", "warm", "side"):
        env = robots.make("KukaPick", size=(32, 32), cameras=("front",), depth=True, lighting=lighting)
        seen[lighting] = env.reset(seed=0)[0]
        env.close()
    pictures = {name: each["observation.images.front"].astype(float) for name, each in seen.items()}
    assert pictures["dim"].mean() < 0.7 * pictures["normal"].mean()
    assert pictures["warm"][..., 0].mean() > 1.5 * pictures["warm"][..., 2].mean()
    assert np.abs(pictures["side"] - pictures["normal"]).mean() > 10
    for each in seen.values():
        np.testing.assert_array_equal(each["observation.depth.front"], seen["normal"]["observation.depth.front"])


def test_large_things_are_seen(eyes):
    pictures = []
    for distractors in (0, 3):
        env = robots.make("KukaPick", size=(32, 32), cameras=("front",), distractors=distractors)
        pictures.append(env.reset(seed=0)[0]["observation.images.front"].astype(float))
        env.close()
    assert (np.abs(pictures[0] - pictures[1]).max(2) > 30).mean() > 0.05


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lighting": "neon"}, "no lighting named 'neon'"),
        ({"distractors": 9}, "from 0 to 3, or a range such as 0..3; got 9"),
        ({"table_height": 1.0}, "from -0.1 to 0.15, or a range such as -0.1..0.15; got 1.0"),
        ({"table_height": "0.03..-0.03"}, "a range such as -0.1..0.15; got '0.03..-0.03'"),
        ({"table_height": "high"}, "must be a number from -0.1 to 0.15"),
        ({"distractors": 1.5}, "whole number or a range of them, got 1.5"),
        ({"lighting": "dim,neon"}, "no lighting named 'neon'"),
        ({"target": "elephant"}, "no target named 'elephant': .*The names are green block"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        robots.make("KukaPick", cameras=(), **options)


def test_sensor_depth_differs_where_it_should(eyes):
    exact, noisy, again = (
        robots.make("KukaPick", size=(64, 64), cameras=("front",), depth=True, depth_noise=noise)
        for noise in (False, True, True)
    )
    clean, one, two = (env.reset(seed=0)[0]["observation.depth.front"] for env in (exact, noisy, again))
    np.testing.assert_array_equal(one, two)  # the seed fixes the noise, too
    kept = one > 0
    assert 0.8 < kept.mean() < 0.999
    assert 1e-4 < np.abs(one - clean)[kept].mean() < 0.02
    for env in (exact, noisy, again):
        env.close()


def test_noise_and_steps_grow_with_the_square_of_the_distance():
    rng = np.random.default_rng(0)
    sensor = DepthSensor(noise=0.01, step=0.0, loss=0.0, edge_loss=0.0)
    spread = [(sensor(np.full((200, 200), z, np.float32), rng) - z).std() for z in (0.5, 1.0, 2.0)]
    np.testing.assert_allclose(spread, [0.0025, 0.01, 0.04], rtol=0.03)
    stepped = DepthSensor(noise=0.0, step=0.01, loss=0.0, edge_loss=0.0)
    ramp = np.linspace(0.95, 1.05, 2000, dtype=np.float32)[None]
    steps = np.unique(stepped(ramp, rng))
    np.testing.assert_allclose(np.diff(steps), 0.01 * steps[1:] ** 2, rtol=0.05)
    assert len(steps) == 11


def test_holes_are_at_edges_up_close_and_stay():
    depth = np.full((40, 40), 1.0, np.float32)
    depth[10:30, 10:30] = 0.8
    depth[:3] = 0.0
    depth[-3:] = 0.02
    sensor = DepthSensor(noise=0.0, step=0.0, edge_loss=1.0, loss=0.0)
    seen = sensor(depth, np.random.default_rng(0))
    assert (seen[:3] == 0).all()
    assert (seen[-3:] == 0).all()
    assert (seen[9:11, 10:30] == 0).all()
    assert (seen[12:28, 12:28] == 0.8).all()
    assert (seen[5:8, 2:8] == 1.0).all()
    assert depth[10, 10] == np.float32(0.8)  # the input is not touched
