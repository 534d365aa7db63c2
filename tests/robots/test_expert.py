import numpy as np
import pytest

from stringpe import robots
from stringpe.robots.data import demos
from stringpe.robots.sim import expert
from stringpe.robots.sim.expert import Kinematics
from stringpe.robots.sim.poses import Pose, between, from_rotation_vector, grip_down, rotation_about, rotation_vector


@pytest.mark.parametrize("task", robots.tasks())
@pytest.mark.slow
def test_every_task_has_an_expert_whose_commands_replay(task, blind):
    env = blind(task)
    actions = demos.demonstrate(env, seed=11)
    assert actions is not None
    assert actions.dtype == np.float32
    assert env.action_space.contains(actions[0])
    again = demos.replay(env, 11, actions)
    assert again is not None
    np.testing.assert_array_equal(again["action"], actions)
    assert again["next.reward"][-1] == 1.0
    assert again["next.done"].sum() == 1


def test_a_replay_from_another_seed_fails(blind):
    env = blind("FMB-1")
    actions = demos.demonstrate(env, seed=11)
    assert demos.replay(env, 12, actions) is None


def test_noise_varies_demonstrations_and_none_of_it_repeats_them(blind):
    env = blind("MugOnPlate")
    plain, again, noisy = (demos.demonstrate(env, seed=0, noise=noise) for noise in (0.0, 0.0, 1.0))
    np.testing.assert_array_equal(plain, again)
    assert plain.shape != noisy.shape or np.abs(plain - noisy).max() > 0.01


def test_a_task_without_an_expert_says_so(blind):
    from dataclasses import replace

    env = robots.make("MugOnPlate", cameras=())
    env.task = replace(env.task, expert=None)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="MugOnPlate has no expert yet"):
        expert.Expert(env)


@pytest.mark.parametrize("task", ["MugOnPlate", "KukaPick"])
def test_inverse_kinematics_finds_the_joints_of_a_pose(task, blind):
    env = blind(task)
    solver, rng = Kinematics(env.model), np.random.default_rng(0)
    for arm in env.robot.arms:
        for _ in range(5):
            joints = np.array(arm.home) + rng.uniform(-0.2, 0.2, len(arm.home))
            wanted = solver.pose(arm, joints)
            found, error = solver.solve(arm, wanted, np.array(arm.home))
            assert error < 2e-4
            reached = solver.pose(arm, found)
            np.testing.assert_allclose(reached.pos, wanted.pos, atol=3e-4)
            np.testing.assert_allclose(reached.turn, wanted.turn, atol=3e-3)


def test_a_pose_out_of_reach_leaves_a_distance(blind):
    env = blind("MugOnPlate")
    arm = env.robot.arms[0]
    far = Pose(np.array([2.0, 0.5, 0.1]), grip_down(0.0))
    assert Kinematics(env.model).solve(arm, far, np.array(arm.home))[1] > 0.5


def test_rotations_and_their_vectors():
    rng = np.random.default_rng(0)
    for _ in range(20):
        vector = rng.normal(size=3)
        vector *= rng.uniform(0, 3.1) / np.linalg.norm(vector)
        turn = from_rotation_vector(vector)
        np.testing.assert_allclose(turn.T @ turn, np.eye(3), atol=1e-12)
        np.testing.assert_allclose(rotation_vector(turn), vector, atol=1e-9)
    start, end = Pose(np.zeros(3), np.eye(3)), Pose(np.ones(3), rotation_about("z", 1.0))
    half = between(start, end, 0.5)
    np.testing.assert_allclose(half.pos, 0.5)
    np.testing.assert_allclose(half.turn, rotation_about("z", 0.5), atol=1e-12)


def test_fingers_are_alike():
    for axis in np.linspace(-4, 4, 17):
        near = expert.align_axis(axis, np.pi / 2)
        assert abs(near - np.pi / 2) <= np.pi / 2 + 1e-9
        assert abs(np.sin(near - axis)) < 1e-9
