"""What runs of detection in 3D predict: the figure, and the pages of `stringpe eval --html` as a browser shows them."""

import pytest
import torch
from PIL import Image

from browser import results_in_browser
from stringpe.cli.main import main
from stringpe.data.boxes3d import load_boxes3d
from stringpe.recipes import override
from stringpe.tasks.detection3d_figures import draw_figure, name_run, predict_frames, predict_val_frames, spread_frames
from stringpe.training import train


def test_columns_of_the_figure_are_runs_and_rows_frames(run3d, tmp_path):
    folder, _ = run3d
    path = draw_figure({"one": folder, "two": folder}, tmp_path / "a.png", rows=3)
    with Image.open(path) as picture:
        assert picture.width > 2 * 96
        assert picture.height > 3 * 96
        colours = {c for _, c in picture.getcolors(1 << 20)}
    assert any(g > 150 > max(r, b) + 40 for r, g, b in colours)  # green
    assert any(b > 150 > max(r, g) for r, g, b in colours)  # blue
    assert draw_figure({"one": folder}, tmp_path / "b.png", frames=[1], threshold=0.001).exists()


def test_frames_are_spread_over_every_family(recipe3d):
    kept = load_boxes3d(recipe3d.data, "val", True)
    assert set(kept.group[spread_frames(kept, 4)].tolist()) == {0, 1, 2, 3}


def test_the_command_writes_a_figure_and_names_its_runs(run3d, tmp_path, capsys):
    main(["figure", str(run3d[0]), f"mine={run3d[0]}", "--rows", "1", "--out", str(tmp_path / "c.png")])
    assert "wrote" in capsys.readouterr().out
    assert name_run(str(run3d[0]))[0] == "cayley, RGB-D"
    with pytest.raises(SystemExit, match="frames 0 to 9, got"):
        main(["figure", str(run3d[0]), "--frames", "99"])


def test_frames_have_the_true_boxes_and_as_many_predictions(run3d, recipe3d):
    frames = predict_val_frames(run3d[0], count=3)
    kept = load_boxes3d(recipe3d.data, "val", True)
    assert len(frames) == 3
    numbers = [next(i for i in range(len(kept)) if torch.equal(kept.rgb[i], frame.rgb)) for frame in frames]
    assert len({int(kept.group[i]) for i in numbers}) == 3  # in turn from every family
    for frame, i in zip(frames, numbers, strict=True):
        truths = [box for box in frame.boxes if box.kind == "true"]
        guesses = [box for box in frame.boxes if box.kind == "predicted"]
        there = kept.label[i] >= 0
        assert [box.label for box in truths] == [kept.names[k] for k in kept.label[i][there]]
        assert torch.equal(torch.stack([box.box for box in truths]), kept.box[i][there])
        assert 0 < len(guesses) <= len(truths)
        assert [box.score for box in guesses] == sorted((box.score for box in guesses), reverse=True)


def test_runs_whose_centres_are_relative_to_points_are_shown_too(recipe3d, tmp_path):
    recipe = override(recipe3d, ["model.box_centre=point", "loop.steps=2", "loop.eval_every=0"])
    outcome = train(recipe, tmp_path / "run", quiet=True)
    assert len(predict_val_frames(tmp_path / "run", count=3)) == 3
    every = torch.arange(len(load_boxes3d(recipe.data, "val", True)))
    boxes, iou = predict_frames(tmp_path / "run", every, 0.0)
    assert len(boxes) == len(every)
    assert iou == pytest.approx(outcome["metrics"]["iou"], abs=1e-4)


@pytest.mark.slow
def test_eval_writes_a_page_that_shows_both_kinds_of_boxes(run3d, tmp_path, capsys):
    main(["eval", str(run3d[0]), "--out", str(tmp_path), "--html"])
    assert f"wrote {tmp_path / 'scenes.html'}" in capsys.readouterr().out
    script = """
    const view = document.getElementById("view");
    report(Number(view.dataset.points) > 500); report(document.querySelectorAll("#frame option").length);
    const all = Number(view.dataset.boxes), truths = document.querySelectorAll("li.true").length;
    report(truths > 0 && all === truths + document.querySelectorAll("li.predicted").length);
    document.getElementById("show-predicted").click();
    report(Number(view.dataset.boxes) === truths);
    """
    page = (tmp_path / "scenes.html").read_text()
    assert results_in_browser(page, script, tmp_path) == ["true", "8", "true", "true"]


def test_other_runs_have_nothing_to_turn(tmp_path):
    small = ["data.image_size=16", "data.train_size=8", "data.val_size=4", "model.dim=16", "model.layers=1"]
    small += ["model.heads=2", "loop.batch_size=4", "loop.steps=1", "loop.eval_every=0", f"data.cache={tmp_path}"]
    main(["train", "scenes", *small, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit, match=r"--html and --rrd show boxes in 3D, or with --env rollouts; .* of objects"):
        main(["eval", str(tmp_path / "run"), "--html"])
