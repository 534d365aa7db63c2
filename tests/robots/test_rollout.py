import json
import os
from functools import partial

import numpy as np
import pytest
from stand_in import Reach

from stringpe.robots.evaluate import FIRST_SEED, Setting, trials
from stringpe.training.simulate import check_env, evaluate, labels, setting_name, short_names, table


class Expert:
    """Looks up the answer: where the red pixels are."""

    queued = 0

    def reset(self):
        pass

    def select_action(self, observation):
        image = observation["observation.images.top"].astype(int)
        ys, xs = np.nonzero(image[..., 0] - image[..., 2] > 100)
        side = image.shape[0] - 1
        if not len(xs):
            return observation["observation.state"]
        return np.array([xs.mean(), ys.mean()], np.float32) / side * 2 - 1


class Still(Expert):
    def select_action(self, observation):
        assert observation["task"] == Reach.task_text
        return observation["observation.state"]


class Dying(Reach):
    """A simulator that takes its process along."""

    def step(self, action):
        if self.seed_ == 3:
            os._exit(1)
        return super().step(action)


def test_the_same_seed_is_the_same_trial_and_an_expert_succeeds():
    once = list(trials(Setting(Reach, Expert), range(8)))
    again = list(trials(Setting(Reach, Expert), range(7, -1, -1)))
    assert {t.seed: (t.success, t.steps, t.sum_reward) for t in once} == {
        t.seed: (t.success, t.steps, t.sum_reward) for t in again
    }
    assert all(t.success for t in once)
    assert not all(t.success for t in trials(Setting(Reach, Still), range(8)))


def test_a_crashed_simulation_is_counted_and_the_others_go_on():
    found = list(trials(Setting(partial(Reach, crash=(2,)), Still), range(5)))
    assert [t.seed for t in found] == [0, 1, 2, 3, 4]
    assert [bool(t.crashed) for t in found] == [False, False, True, False, False]
    assert found[2].crashed == "RuntimeError: the simulation is unstable"
    assert not found[2].success


def test_a_process_that_dies_is_counted_and_the_others_go_on():
    found = {t.seed: t for t in trials(Setting(Dying, Still), [3, 4], jobs=2)}
    assert sorted(found) == [3, 4]
    assert [s for s, t in found.items() if t.crashed] == [3]
    assert "died" in found[3].crashed


def test_what_a_policy_does_wrong_is_no_crash():
    class Wide(Still):
        def select_action(self, observation):
            return np.zeros(3)

    class Lost(Still):
        def select_action(self, observation):
            return np.array([np.nan, 0.0])

    with pytest.raises(ValueError, match=r"actions of shape \(3,\), this environment takes \(2,\)"):
        list(trials(Setting(Reach, Wide), [0]))
    with pytest.raises(ValueError, match=r"not finite: \[nan, 0.0\]"):
        list(trials(Setting(Reach, Lost), [0]))


def test_nothing_is_rendered_while_actions_are_queued():
    looked = []

    class Quick(Reach):
        stages = ("reached",)
        max_steps = 6

        def advance(self, action):
            _, _, success, _, info = super().step(action)
            return info | {"stage": int(success)}

        def step(self, action):
            looked.append(self.steps)
            observation, reward, success, _, info = super().step(action)
            return observation, reward, success, self.steps >= self.max_steps, info

    class Chunked(Still):
        queued = 0

        def select_action(self, observation):
            self.queued = (self.queued or 3) - 1
            return np.zeros(2)

    (trial,) = trials(Setting(Quick, Chunked), [5])
    assert looked == [2, 5]
    assert trial.steps == 6


def test_an_evaluation_is_written_and_resumed(tmp_path):
    first = evaluate(Expert, partial(Reach, crash=(FIRST_SEED + 1,)), tmp_path, 4, jobs=1, videos=1)
    lines = (tmp_path / "trials.jsonl").read_text()
    (tmp_path / "trials.jsonl").write_text(
        "".join(lines.splitlines(True)[:2]) + '{"seed": 10000'
    )  # killed while writing
    again = evaluate(Expert, partial(Reach, crash=(FIRST_SEED + 1,)), tmp_path, 4, jobs=1, videos=1)
    assert [(t.seed, t.success, t.crashed) for t in again] == [(t.seed, t.success, t.crashed) for t in first]
    info = json.loads((tmp_path / "eval_info.json").read_text())
    assert info["aggregated"]["pc_success"] == 75
    assert info["aggregated"]["n_crashed"] == 1
    low, high = info["aggregated"]["pc_success_interval"]
    assert low < 75 < high
    assert [e["seed"] for e in info["per_episode"]] == [FIRST_SEED + i for i in range(4)]
    assert all(e["max_reward"] <= 1 for e in info["per_episode"])
    (video,) = (tmp_path / "videos").glob("success_*")
    assert video.stat().st_size > 200


def test_videos_show_successes_and_failures(tmp_path):
    list(trials(Setting(Reach, Still, tmp_path, videos=2), range(12)))
    kinds = sorted(p.name.split("_")[0] for p in tmp_path.iterdir())
    assert kinds.count("failure") == 2
    assert kinds.count("success") <= 2


def test_the_table_has_intervals_and_paired_differences():
    """Trap 31: no success rate without an interval, and methods are compared on the same initial states."""
    found = {
        "still": list(trials(Setting(Reach, Still), range(60))),
        "expert": list(trials(Setting(Reach, Expert), range(60))),
    }
    text = table(found, setting_name("Reach", {"lighting": "dim"}))
    still, expert = text.splitlines()[2:4]
    assert "baseline" in still
    assert "| 100.0 " in expert
    assert "94.0 to 100.0" in expert  # Wilson
    assert "+" in expert.split("|")[5]
    assert "0.000" in expert
    assert "lighting=dim: 60 trials each, initial states 0 to 59, the same for all" in text
    assert "say little" in table({"still": found["still"][:10]}, "Reach")


def test_settings_are_named_by_what_they_differ_in():
    settings = [setting_name("Pick", o) for o in ({"noise": True}, {"noise": True, "lighting": "dim"})]
    assert short_names(settings) == ["usual", "lighting=dim"]
    assert short_names(settings[:1]) == ["Pick, noise=True"]
    assert short_names(["Pick", "Place"]) == ["Pick", "Place"]


def test_environments_of_another_robot_are_refused():
    check_env(Reach, 2, 2)
    with pytest.raises(ValueError, match="states of 14 and actions of 14 numbers"):
        check_env(Reach, 14, 14)


def test_labels_are_short_and_differ(tmp_path):
    names = ["runs/rope/seed0", "runs/cayley/seed0"]
    assert labels([tmp_path / n for n in names]) == ["rope-seed0", "cayley-seed0"]
    assert labels([tmp_path / "runs/rope/checkpoints/000100"]) == ["rope"]
    with pytest.raises(ValueError, match="named twice"):
        labels([tmp_path, tmp_path])
