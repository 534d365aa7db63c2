"""Error of the chunk that policies plan from first frames of held-out episodes, at the heights of training and beyond.

    python first_frames.py RUNS PACKS

RUNS holds the runs camera-0 … world-2; PACKS holds heights.safetensors, which they were trained on, and one pack per
shift. The error is the mean distance to the demonstrated actions as a share of their range, over the chunk, the joints
and eight draws of the policy's noise: `error_first` of `stringpe eval RUN data.val=PACK`, which draws once.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from stringpe.metrics.statistics import paired, t_interval
from stringpe.robots.calibration import intrinsics_key, pose_key
from stringpe.robots.data.pack import Demos, load
from stringpe.tasks.load import load_run
from stringpe.tasks.policy import _choose_held_out, _first_frames

SHIFTS = ("table_height=0.06", "table_height=-0.06", "pedestal_height=0.06", "pedestal_height=-0.06")
SEEDS = (0, 1, 2)
DRAWS = 8


def observe(demos: Demos, frames: Tensor) -> dict:
    """The observations of frames, as a batch."""
    batch = {"observation.state": demos.state[demos.seen[frames]], "task": [demos.tasks[0]] * len(frames)}
    for i, camera in enumerate(demos.cameras):
        batch |= {f"observation.images.{camera}": demos.image[frames, i]}
        batch |= {f"observation.depth.{camera}": demos.depth[frames, i]}
        batch |= {intrinsics_key(camera): demos.intrinsics[frames, i], pose_key(camera): demos.pose[frames, i]}
    return batch


def main(runs: Path, packs: Path) -> None:
    loaded = {f"{f}-{s}": load_run(runs / f"{f}-{s}", "policy") for f in ("camera", "world") for s in SEEDS}
    recipe, chunk = loaded["camera-0"].recipe, loaded["camera-0"].recipe.policy.chunk
    train = load(packs / "heights.safetensors", depth=True, calibration=True)
    held_out = _choose_held_out(int(train.episode.max()) + 1, recipe)
    firsts = _first_frames(train, torch.arange(len(train.seen)))
    unseen = torch.isin(train.episode[train.seen][firsts], held_out)
    spread = train.action.amax(0) - train.action.amin(0)
    blind = train.chunks(train.seen[firsts[~unseen]], chunk).mean(0)  # the mean chunk, without looking
    found: dict[str, dict[str, float]] = {}
    for name in ("usual", *SHIFTS):
        demos = train if name == "usual" else load(packs / f"{name}.safetensors", depth=True, calibration=True)
        frames = firsts[unseen] if name == "usual" else _first_frames(demos, torch.arange(len(demos.seen)))
        wanted, batch = demos.chunks(demos.seen[frames], chunk), observe(demos, frames)
        errors = {"blind": float(((blind - wanted).abs() / spread).mean())}
        for label, run in loaded.items():
            draws = []
            for seed in range(DRAWS):
                torch.manual_seed(seed)
                draws.append(float(((run.model.predict_action_chunk(batch) - wanted).abs() / spread).mean()))
            errors[label] = sum(draws) / DRAWS
        found[name] = errors
        rows = {frame: {seed: 100 * errors[f"{frame}-{seed}"] for seed in SEEDS} for frame in ("camera", "world")}
        means = {frame: t_interval(list(row.values())) for frame, row in rows.items()}
        gain = paired(rows["world"], rows["camera"])
        print(name, len(frames), f"{100 * errors['blind']:.1f}", means, gain, flush=True)
    Path("first_frames.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
