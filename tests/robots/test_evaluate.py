"""Trials in lockstep and in processes: the same results however they are run; crashes, deaths and hangs are counted."""

import json
import os
import time
from functools import partial

import numpy as np
import pytest
import torch
from actors import Expert, Still
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_toy import policy
from stand_in import Reach

from browser import results_in_browser
from stringpe.robots.evaluate import FIRST_SEED, TrialWorkers, run_trials
from stringpe.robots.policies.base import PolicySpec
from stringpe.robots.rollout import ENVIRONMENTS, TrialSetting
from stringpe.training.simulation import (
    EvaluationPlan,
    check_env,
    evaluate_policy,
    label_checkpoints,
    read_trials,
    setting_name,
)
from stringpe.training.simulation_report import Result, format_table, short_names

pytestmark = pytest.mark.slow


class Dying(Reach):
    """A simulator that takes its process along."""

    def step(self, action):
        if self.seed_ == 3:
            os._exit(1)
        return super().step(action)


class Hanging(Reach):
    """A simulator that never answers."""

    def step(self, action):
        if self.seed_ == 3:
            time.sleep(3600)
        return super().step(action)


class Absent(Still):
    """A policy that is never loaded."""

    def __init__(self):
        time.sleep(3600)


class Silent(Still):
    """A policy that never plans."""

    def plan_actions(self, observations, generators):
        time.sleep(3600)


class Lost(Still):
    def plan_actions(self, observations, generators):
        return np.full((len(observations), 1, 2), np.nan)


def toy(kind="diffusion"):
    """A policy for Reach with random weights, the same in every process."""
    made = policy(kind, spec=PolicySpec(("top",), 2, 2, 16, 10.0))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return made.eval()


def outcomes(trials):
    return {t.seed: (t.success, t.steps, t.sum_reward, t.max_reward, t.crashed) for t in trials}


@pytest.fixture(scope="module")
def one_by_one():
    """Every trial by itself: no other environment is under way."""
    return {
        kind: outcomes(t for s in range(12) for t in run_trials(TrialSetting(Reach, partial(toy, kind)), [s]))
        for kind in ("diffusion", "energy")
    }


@pytest.mark.parametrize("kind", ["diffusion", "energy"])
@given(order=st.permutations(range(12)), count=st.integers(1, 12))
@settings(max_examples=5, deadline=None)
def test_a_trial_does_not_depend_on_the_trials_beside_it(one_by_one, kind, order, count):
    """To the last bit of the sum of rewards."""
    found = outcomes(run_trials(TrialSetting(Reach, partial(toy, kind)), order[:count]))
    assert found == {seed: one_by_one[kind][seed] for seed in order[:count]}


def test_processes_give_the_same_trials(one_by_one):
    setting = TrialSetting(Reach, toy)
    with TrialWorkers(2) as workers:
        assert outcomes(workers.run(setting, range(4))) == {s: one_by_one["diffusion"][s] for s in range(4)}
        assert len(workers._workers) == 1  # four trials are one call of the network per round
        assert outcomes(workers.run(setting, range(12))) == one_by_one["diffusion"]
        assert len(workers._workers) == 2


def test_the_network_is_called_once_for_all_environments():
    calls = []

    class Counting(Still):
        def plan_actions(self, observations, generators):
            calls.append(len(observations))
            return super().plan_actions(observations, generators)

    list(run_trials(TrialSetting(Reach, Counting, steps=3), range(ENVIRONMENTS + 2)))
    assert calls == [ENVIRONMENTS] * 3 + [2] * 3


def test_an_expert_succeeds_and_standing_still_does_not():
    assert all(t.success for t in run_trials(TrialSetting(Reach, Expert), range(8)))
    assert not all(t.success for t in run_trials(TrialSetting(Reach, Still), range(8)))


def test_a_crashed_simulation_is_counted_and_the_others_go_on():
    found = {t.seed: t for t in run_trials(TrialSetting(partial(Reach, crash=(2,)), Still), range(5))}
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert [s for s, t in found.items() if t.crashed] == [2]
    assert found[2].crashed == "RuntimeError: the simulation is unstable"
    assert not found[2].success
    assert not found[2].hung


def test_an_environment_that_cannot_be_made_is_a_crash():
    def broken():
        raise OSError("no display")

    (trial,) = run_trials(TrialSetting(broken, Still), [0])
    assert trial.crashed == "OSError: no display"


def test_a_process_that_dies_costs_one_trial():
    plain = outcomes(run_trials(TrialSetting(Reach, Still), range(10)))
    found = {t.seed: t for t in run_trials(TrialSetting(Dying, Still), range(10), jobs=2)}
    assert [s for s, t in found.items() if t.crashed] == [3]
    assert found[3].crashed == "the process of the simulation died"
    assert {s: o for s, o in outcomes(found.values()).items() if s != 3} == {s: o for s, o in plain.items() if s != 3}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_simulation_that_hangs_is_ended_and_counted(jobs):
    """The patience is enough for a busy machine to start a process: it has five times as long for that."""
    plain = outcomes(run_trials(TrialSetting(Reach, Still), range(6)))
    began = time.monotonic()
    found = {t.seed: t for t in run_trials(TrialSetting(Hanging, Still), range(6), jobs, patience=5.0)}
    assert time.monotonic() - began < 120
    assert [s for s, t in found.items() if t.hung] == [3]
    assert found[3].crashed == "hung: the simulation gave no answer for 5 s"
    assert {s: o for s, o in outcomes(found.values()).items() if s != 3} == {s: o for s, o in plain.items() if s != 3}


@pytest.mark.parametrize("where", [Absent, Silent])
def test_a_policy_that_hangs_ends_the_evaluation(where):
    with pytest.raises(OSError, match=r"the policy was not loaded, or planned nothing, within \d+ s"):
        list(run_trials(TrialSetting(Reach, where), range(2), 1, patience=1.0))


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_wrong_action_is_a_fault_of_the_policy_and_not_a_crash(jobs):
    with pytest.raises(ValueError, match=r"not finite: \[nan, nan\]"):
        list(run_trials(TrialSetting(Reach, Lost), [0], jobs))


def test_an_action_of_the_wrong_size_is_refused():
    class Wide(Still):
        def plan_actions(self, observations, generators):
            return np.zeros((len(observations), 1, 3))

    with pytest.raises(ValueError, match=r"actions of shape \(3,\), this environment takes \(2,\)"):
        list(run_trials(TrialSetting(Reach, Wide), [0]))


def test_nothing_is_rendered_between_observations():
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
        def plan_actions(self, observations, generators):
            return np.zeros((len(observations), 3, 2))

    (trial,) = run_trials(TrialSetting(Quick, Chunked), [5])
    assert looked == [2, 5]
    assert trial.steps == 6


def test_an_evaluation_is_written_and_resumed(tmp_path):
    what = EvaluationPlan(Expert, partial(Reach, crash=(FIRST_SEED + 1,)), tmp_path, "Reach", "abc", videos=1)
    seeds = range(FIRST_SEED, FIRST_SEED + 4)
    first = evaluate_policy(what, seeds, TrialWorkers(0))
    path = tmp_path / "trials.jsonl"
    whole = path.read_text().splitlines(True)
    for cut in (1, 20, len(whole[2]) - 1):  # killed while writing the third line
        path.write_text("".join(whole[:2]) + whole[2][:cut])
        again = evaluate_policy(what, seeds, TrialWorkers(0))
        assert [(t.seed, t.success, t.crashed) for t in again.trials] == [
            (t.seed, t.success, t.crashed) for t in first.trials
        ]
        assert {t.seed for t in read_trials(tmp_path, "abc")} == set(seeds)  # the cut line has not swallowed a trial
    info = json.loads((tmp_path / "eval_info.json").read_text())
    assert info["weights"] == "abc"
    assert info["aggregated"]["pc_success"] == 75
    assert info["aggregated"]["n_crashed"] == 1
    assert info["aggregated"]["n_hung"] == 0
    low, high = info["aggregated"]["pc_success_interval"]
    assert low < 75 < high
    assert [e["seed"] for e in info["per_episode"]] == list(seeds)
    assert all(e["max_reward"] <= 1 for e in info["per_episode"])
    (video,) = (tmp_path / "videos").glob("success_*")
    assert video.stat().st_size > 200


def test_other_weights_or_another_setting_are_refused(tmp_path):
    what = EvaluationPlan(Expert, Reach, tmp_path, "Reach", "abc", videos=0)
    evaluate_policy(what, range(2), TrialWorkers(0))
    for other in (
        EvaluationPlan(Expert, Reach, tmp_path, "Reach", "def", videos=0),
        EvaluationPlan(Expert, Reach, tmp_path, "Reach, noise=1", "abc", videos=0),
    ):
        with pytest.raises(ValueError, match="holds another evaluation"):
            evaluate_policy(other, range(2), TrialWorkers(0))
    (tmp_path / "evaluation.json").unlink()
    with pytest.raises(ValueError, match=r"trials of other weights \(abc, not def\)"):
        evaluate_policy(EvaluationPlan(Expert, Reach, tmp_path, "Reach", "def", videos=0), range(2), TrialWorkers(0))


def test_two_evaluations_do_not_share_a_folder(tmp_path):
    class Slow(Reach):
        def reset(self, **given):
            with pytest.raises(ValueError, match=r"the evaluation in .* is in use by process \d+"):
                evaluate_policy(
                    EvaluationPlan(Expert, Reach, tmp_path, "Reach", "abc", videos=0), range(2), TrialWorkers(0)
                )
            return super().reset(**given)

    result = evaluate_policy(
        EvaluationPlan(Expert, Slow, tmp_path, "Reach", "abc", videos=0), range(2), TrialWorkers(0)
    )
    assert not any(t.crashed for t in result.trials)


def test_videos_show_successes_and_failures(tmp_path):
    list(run_trials(TrialSetting(Reach, Still, tmp_path, videos=2), range(12)))
    kinds = sorted(p.name.split("_")[0] for p in tmp_path.iterdir())
    assert kinds.count("failure") == 2
    assert kinds.count("success") <= 2


def test_a_page_beside_a_video_steps_through_its_cameras(tmp_path):
    env = partial(Reach, cameras=("top", "side"))
    what = EvaluationPlan(Expert, env, tmp_path, "Reach", "abc", videos=1, html=True)
    trials = evaluate_policy(what, range(FIRST_SEED, FIRST_SEED + 3), TrialWorkers(0)).trials
    (video,) = {t.video for t in trials if t.video}
    page = (tmp_path / "videos" / video).with_suffix(".html").read_text()
    data = json.loads(json.loads(page.split("const data = JSON.parse(", 1)[1].split(");\n", 1)[0]))
    (rollout,) = data["rollouts"]
    steps = next(t.steps for t in trials if t.video)
    assert {name: len(pictures) for name, pictures in rollout["cameras"].items()} == {
        "side": steps + 1,
        "top": steps + 1,
    }
    assert rollout["caption"].startswith("Success from initial state")
    assert rollout["caption"].endswith(f": {steps} steps.")
    script = """
    report([...document.querySelectorAll("figcaption")].map(c => c.textContent));
    const size = image => { const copy = new Image(); copy.onload = () => report(copy.width + " x " + copy.height);
      copy.src = image.src; };
    size(document.querySelector("img"));
    """
    assert results_in_browser(page, script, tmp_path) == ["side,top", "16 x 16"]


def test_the_table_has_intervals_and_paired_differences():
    """Trap 31: no success rate without an interval, and methods are compared on the same initial states."""
    found = {
        "still": Result(list(run_trials(TrialSetting(Reach, Still), range(60))), "0123456789abcdef"),
        "expert": Result(list(run_trials(TrialSetting(Reach, Expert), range(60))), "fedcba9876543210"),
    }
    text = format_table(found, setting_name("Reach", {"lighting": "dim"}))
    still, expert = text.splitlines()[2:4]
    assert "baseline" in still
    assert "01234567" in still
    _, _, _, share, interval, difference, _, p_value, crashed, _ = (cell.strip() for cell in expert.split("|"))
    assert (share, interval) == ("100.0", "94.0 to 100.0")  # Wilson
    assert difference.startswith("+")
    assert (p_value, crashed) == ("0.000", "0")
    assert "lighting=dim: 60 trials each, initial states 0 to 59, the same for all" in text
    assert "same weights" not in text
    assert "say little" in format_table({"still": Result(found["still"].trials[:10], "ab")}, "Reach")
    assert "have the same weights" in format_table({"a": found["still"], "b": found["still"]}, "Reach")


def test_settings_are_named_by_what_they_differ_in():
    names = [setting_name("Pick", o) for o in ({"noise": True}, {"noise": True, "lighting": "dim"})]
    assert short_names(names) == ["usual", "lighting=dim"]
    assert short_names(names[:1]) == ["Pick, noise=True"]
    assert short_names(["Pick", "Place"]) == ["Pick", "Place"]


def test_environments_of_another_robot_are_refused():
    check_env(Reach, 2, 2)
    with pytest.raises(ValueError, match="states of 14 and actions of 14 numbers"):
        check_env(Reach, 14, 14)


def test_labels_are_short_and_differ(tmp_path):
    names = ["runs/rope/seed0", "runs/cayley/seed0"]
    assert label_checkpoints([tmp_path / n for n in names]) == ["rope-seed0", "cayley-seed0"]
    assert label_checkpoints([tmp_path / "runs/rope/checkpoints/000100"]) == ["rope"]
    nested = label_checkpoints([tmp_path / "rope", tmp_path / "rope/checkpoints/000100"])
    assert len(set(nested)) == 2
    assert all(nested)
    with pytest.raises(ValueError, match="named twice"):
        label_checkpoints([tmp_path, tmp_path])
