import math

import pytest
import torch

from browser import results_in_browser
from stringpe import viewer
from stringpe.geometry import box3d

INTRINSICS = torch.tensor([[20.0, 0, 8], [0, 20.0, 6], [0, 0, 1]])


def a_box(x=0.0):
    return box3d.from_parts(torch.tensor([x, 0.0, 2.0]), torch.eye(3), torch.tensor([0.4, 0.5, 0.6]))


def frame():
    depth = torch.full((12, 16), 2.0)
    depth[0, :3] = torch.tensor([0.0, math.nan, math.inf])
    return torch.randint(0, 256, (3, 12, 16), dtype=torch.uint8), depth


def test_points_lie_where_the_camera_saw_them_and_holes_are_left_out():
    rgb, depth = frame()
    points, colours = viewer.Frame(rgb, depth, INTRINSICS).points()
    assert len(points) == len(colours) == 12 * 16 - 3
    back = points.double() @ INTRINSICS.double().T
    pixels = back[:, :2] / back[:, 2:]
    seen = depth.isfinite() & (depth > 0)
    v, u = seen.nonzero(as_tuple=True)
    torch.testing.assert_close(pixels, torch.stack([u, v], 1) + 0.5, atol=1e-5, rtol=0, check_dtype=False)
    assert torch.equal(colours, rgb.permute(1, 2, 0)[v, u])


def test_a_scene_shows_its_boxes_and_a_chosen_one_alone(tmp_path):
    rgb, depth = frame()
    boxes = [
        viewer.Box(a_box(), "mug"),
        viewer.Box(a_box(0.3), "bowl"),
        viewer.Box(a_box(0.1), "mug", "predicted", 0.83),
    ]
    script = """
    const view = document.getElementById("view");
    report(view.dataset.points); report(view.dataset.boxes);
    const pixels = () => view.getContext("2d").getImageData(0, 0, view.width, view.height).data;
    const blue = () => { const p = pixels(); let n = 0;
      for (let i = 0; i < p.length; i += 4) if (p[i] === 0 && p[i + 1] === 90 && p[i + 2] === 255) n++; return n; };
    const before = blue();
    document.getElementById("show-predicted").click();
    report(view.dataset.boxes); report(before > 0 && blue() < before);
    document.querySelectorAll("li")[1].click();
    report(view.dataset.boxes); report(document.querySelectorAll("li.chosen")[0].textContent);
    """
    told = results_in_browser(viewer.show_scene(rgb, depth, INTRINSICS, boxes), script, tmp_path)
    assert told == ["189", "3", "2", "true", "1", "bowl"]


def test_the_first_view_is_the_cameras_own(tmp_path):
    """Where pixels are not square, and the principal point is not in the middle."""
    rgb, depth = frame()
    k = torch.tensor([[20.0, 0, 9], [0, 30.0, 5], [0, 0, 1]])
    script = """
    const at = point => project(point).map(value => value.toFixed(3)).join(" ");
    report(at([0, 0, 2])); report(at([0.35, 0.4, 2]));
    view.yaw = 0.5; view.zoom = 2; draw();
    report(at([0, 0, 2]) !== "450.000 266.667 2.000");
    canvas.ondblclick();
    report(at([0, 0, 2]));
    """
    shown = results_in_browser(viewer.show_scene(rgb, depth, k), script, tmp_path)
    # 1000 canvas pixels per unit of x / z, so that the 16 columns fill the 800 pixels of the canvas
    assert shown == ["450.000 266.667 2.000", "625.000 466.667 2.000", "true", "450.000 266.667 2.000"]


def test_edges_behind_a_surface_are_faint_and_names_can_be_hidden(tmp_path):
    rgb, depth = torch.full((3, 12, 16), 255, dtype=torch.uint8), torch.full((12, 16), 1.0)
    script = """
    const opaque = () => { const p = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      let n = 0; for (let i = 0; i < p.length; i += 4) if (p[i] === 0 && p[i + 1] === 160) n++; return n; };
    const whole = () => { const p = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      let n = 0; for (let i = 0; i < p.length; i += 4) if (p[i] !== 255) n++; return n; };
    document.getElementById("show-names").click();
    report(opaque()); report(whole() > 0);
    const bare = whole();
    document.getElementById("show-names").click();
    report(whole() > bare);
    """
    page = viewer.show_scene(rgb, depth, INTRINSICS, [viewer.Box(a_box(), "mug")])  # a box behind a wall
    assert results_in_browser(page, script, tmp_path) == ["0", "true", "true"]


def test_another_frame_can_be_chosen(tmp_path):
    rgb, depth = frame()
    frames = [
        viewer.Frame(rgb, depth, INTRINSICS, [viewer.Box(a_box(), "mug")], "a kitchen"),
        viewer.Frame(
            rgb, torch.full_like(depth, 2.0), INTRINSICS, [viewer.Box(a_box(), "bowl"), viewer.Box(a_box(), "jar")]
        ),
    ]
    script = """
    const view = document.getElementById("view"), frame = document.getElementById("frame");
    const names = () => [...document.querySelectorAll("li")].map(line => line.textContent);
    const shown = () => `${view.dataset.points} points: ${names()}`;
    report(document.getElementById("caption").textContent); report(shown());
    frame.value = 1; frame.onchange(); report(shown());
    """
    told = results_in_browser(viewer.show_frames(frames), script, tmp_path)
    assert told == ["a kitchen", "189 points: mug", "192 points: bowl,jar"]


def test_a_slider_moves_through_the_variants_of_a_map_and_says_what_changes(tmp_path):
    maps = {"still": torch.eye(4).expand(2, 4, 4), "moved": torch.stack([torch.eye(4), torch.eye(4).roll(1, 1)])}
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    page = viewer.show_attention(image, maps, (2, 2), variants=["at the start", "further"], note="No training.")
    script = """
    setTimeout(() => {
      const slider = document.getElementById("variant");
      const told = () => [...document.querySelectorAll("figcaption")].map(c => c.textContent).join("; ");
      report(document.getElementById("variant-name").textContent); report(told());
      slider.value = 1; slider.oninput();
      report(document.getElementById("variant-name").textContent); report(told());
    }, 500);
    """
    assert results_in_browser(page, script, tmp_path) == [
        *("at the start", "still; moved"),
        *("further", "still: weights changed by up to 0.00 %; moved: weights changed by up to 100.00 %"),
    ]


def test_an_attention_page_follows_the_pointer(tmp_path):
    maps = {"rope": torch.eye(12), "cayley": torch.full((12, 12), 1 / 12)}
    image = torch.zeros(3, 12, 16, dtype=torch.uint8)
    script = """
    setTimeout(() => {
      const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
      report(canvas.dataset.chosen);
      const shown = [...document.querySelectorAll("canvas")].map(c => c.getBoundingClientRect());
      report(shown.every(s => s.width === canvas.width + 2 && s.height === canvas.height + 2));  // with its border
      const corner = { clientX: box.left + box.width - 2, clientY: box.top + 2 };
      canvas.dispatchEvent(new PointerEvent("pointermove", corner));
      report(canvas.dataset.chosen);
      const [red, , , ] = canvas.getContext("2d").getImageData(canvas.width - 20, 20, 1, 1).data;
      const [other, , , ] = canvas.getContext("2d").getImageData(10, canvas.height - 10, 1, 1).data;
      report(red > 100 && other === 0);
      report([...document.querySelectorAll("figcaption")].map(c => c.textContent));
    }, 500);
    """
    told = results_in_browser(viewer.show_attention(image, maps, (3, 4)), script, tmp_path)
    assert told == ["6", "true", "3", "true", "rope,cayley"]


def test_a_rollout_plays_all_cameras_together(tmp_path):
    pictures = [torch.full((3, 4, 4), shade, dtype=torch.uint8) for shade in (0, 100, 200)]
    script = """
    const slider = document.getElementById("frame"), first = document.querySelector("img").src;
    slider.value = 2; slider.oninput();
    report(document.querySelectorAll("img").length); report(document.querySelector("img").src !== first);
    report(document.getElementById("caption").textContent);
    """
    page = viewer.show_rollout({"front": pictures, "wrist": pictures}, "Picked up.")
    assert results_in_browser(page, script, tmp_path) == ["2", "true", "frame 3 of 3. Picked up."]


def test_another_rollout_can_be_chosen(tmp_path):
    short, long = ([torch.zeros(3, 4, 4, dtype=torch.uint8)] * count for count in (2, 5))
    page = viewer.show_rollouts(
        [viewer.Rollout({"front": short}, "Dropped."), viewer.Rollout({"wrist": long}, "Held.")]
    )
    script = """
    const chooser = document.getElementById("rollout");
    report(document.getElementById("caption").textContent);
    chooser.value = 1; chooser.onchange();
    report(document.getElementById("caption").textContent); report(document.querySelector("figcaption").textContent);
    """
    assert results_in_browser(page, script, tmp_path) == ["frame 1 of 2. Dropped.", "frame 1 of 5. Held.", "wrist"]


def test_names_from_data_cannot_run_as_script(tmp_path):
    evil = "</script><script>report('broken in')</script>"
    rgb, depth = frame()
    page = viewer.show_scene(rgb, depth, INTRINSICS, [viewer.Box(a_box(), evil)], title=evil)
    told = results_in_browser(page, "report(document.querySelector('li').textContent);", tmp_path)
    assert told == [evil]


def test_a_page_needs_nothing_from_outside():
    rgb, depth = frame()
    page = viewer.show_scene(rgb, depth, INTRINSICS)
    assert "http" not in page
    assert "src=" not in page


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: viewer.show_scene(frame()[0].permute(1, 2, 0), frame()[1], INTRINSICS), r"rgb must be \(3, h, w\)"),
        (lambda: viewer.show_scene(frame()[0], torch.zeros(3, 3), INTRINSICS), r"depth must be \(12, 16\) in metres"),
        (lambda: viewer.Box(a_box(), "mug", "guess"), "one of true, predicted, got 'guess'"),
        (lambda: viewer.show_attention(frame()[0], {"rope": torch.eye(3)}, (2, 2)), r"must be \(4, 4\) for 2 × 2"),
        (lambda: viewer.show_attention(frame()[0], {"rope": torch.eye(4)}, (2, 2), variants="ab"), r"be \(2, 4, 4\)"),
        (lambda: viewer.show_frames([]), "at least one frame"),
        (lambda: viewer.show_rollouts([]), "at least one rollout"),
        (lambda: viewer.show_rollout({"front": []}), "same number of pictures, at least one"),
    ],
)  # fmt: skip
def test_bad_calls_are_refused_in_words(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_what_cannot_be_shown_is_refused():
    rgb, depth, k = torch.zeros(3, 4, 4, dtype=torch.uint8), torch.ones(4, 4), torch.eye(3)
    for wrong in (torch.full((3, 3), torch.nan), torch.eye(4), torch.zeros(3, 3), -torch.eye(3)):
        with pytest.raises(ValueError, match="with positive focal lengths"):
            viewer.Frame(rgb, depth, wrong)
    with pytest.raises(TypeError, match="rgb must be a torch tensor, got ndarray"):
        viewer.Frame(rgb.numpy(), depth, k)
    with pytest.raises(ValueError, match="the score of a box must be a finite number"):
        viewer.Box(torch.zeros(12), "a", "predicted", float("nan"))
    with pytest.raises(ValueError, match=r"a picture of 'front' must be \(3, h, w\) uint8"):
        viewer.show_rollout({"front": [torch.rand(3, 4, 4)]})
    with pytest.raises(ValueError, match="the map of 'a' must be finite"):
        viewer.show_attention(rgb, {"a": torch.full((4, 4), torch.nan)}, (2, 2))
    with pytest.raises(ValueError, match="needs at least one map"):
        viewer.show_attention(rgb, {}, (2, 2))


def test_points_too_far_to_be_written_are_holes():
    points, _ = viewer.Frame(
        torch.zeros(3, 1, 2, dtype=torch.uint8), torch.tensor([[1e300, 1]]).double(), torch.eye(3)
    ).points()
    assert len(points) == 1
    assert points.isfinite().all()


def test_any_name_of_a_camera_and_any_title_is_shown(tmp_path):
    picture = torch.zeros(3, 4, 4, dtype=torch.uint8)
    page = viewer.show_rollout({"__proto__": [picture], "front": [picture]}, title="half \ud800 a pair")
    viewer.save(page, tmp_path / "page.html")
    script = "report(Object.keys(data.rollouts[0].cameras).join(' '))"
    assert results_in_browser(page.encode(errors="replace").decode(), script, tmp_path) == ["__proto__ front"]
