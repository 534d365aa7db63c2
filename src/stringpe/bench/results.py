"""Run the benchmarks and write their results: a JSON file with every number, a Markdown page, and a plot."""

import importlib.metadata
import json
import platform
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..devices import find_device
from ..io.files import read_record, write_json, write_text
from ..io.progress import track
from ..io.table import markdown_table
from . import models, op, pairs, train
from .timing import LeftOut

BOTH = 2.5  # floors of forward + backward: forward reads x and writes y, backward reads g and y and writes dx
FLOOR = (
    "Floor: the time of a copy of q and k for forward (each tensor read once and written once), and 2.5 of it for"
    " forward + backward, which also reads the gradient and what was rotated, and writes a gradient. On a GPU, times"
    " are those of a replayed graph, the device alone; `call` is a call from Python, ten in a row."
)
TRAIN = (
    "A step of `stringpe train`, its batch included, beside a plain loop over the same model and one fixed batch; the"
    " ratio is the loop's time over the plain loop's, timed in turns. The column for timm is the plain loop with timm's"
    " ViT of the same size, if timm is installed. Utilisation is the model's products over the device's peak by its"
    " data sheet. On a CPU the models are tiny and show only that everything runs."
)
PAIRS = (
    "Ours and what it replaces, timed in turns; the ratio is ours over the other. On a CPU the models are tiny and show"
    " only that everything runs."
)
PARTS = ("op", "block", "vit", "growth", "train", "pairs")
OP_SHAPES = {
    "cuda": [op.Shape(256, 12, 256, 64), op.Shape(8, 16, 16384, 128), op.Shape(16, 12, 256, 64)],
    "cpu": [op.Shape(8, 12, 196, 64), op.Shape(8, 1, 196, 64), op.Shape(8, 12, 196, 64, shared=True)],
}


def run(
    parts: Sequence[str] = PARTS,
    *,
    out: Path | str = "bench",
    device: str | None = None,
    ways: Sequence[str] | None = None,
    modes: Sequence[str] = ("eager", "compiled"),
) -> dict[str, Any]:
    """Measure `parts`, print as it goes, and write bench.json and bench.md under `out` with every row, so that a run
    that is interrupted leaves what it measured, and (with matplotlib) bench.png after each part. Results of earlier
    runs in the folder are kept, and new ones are added to them. A way that fails is left out and named, with the
    reason.

    ways: which rows of the parts vit and train, by name; all by default. modes: of the ViT part, "eager" and
    "compiled".
    """
    unknown = [p for p in parts if p not in PARTS]
    if unknown:
        raise ValueError(f"there is no part {unknown[0]!r}: parts are {', '.join(PARTS)}")
    where = torch.device(device) if device else find_device()
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    folder = Path(out)
    kept = folder / "bench.json"
    results: dict[str, Any] = read_record(kept, {"runs": [dict]}) if kept.exists() else {"runs": []}
    results["runs"].append(describe_machine(where, dtype))
    for part in parts:
        for row in track(_rows(part, where, dtype, ways, modes), f"measuring {part}"):
            print(json.dumps(_round(_add(results, part, row)), ensure_ascii=False), flush=True)
            write_json(kept, results)
            write_text(folder / "bench.md", markdown(results))
        plot(results, folder / "bench.png")
    return results


def _add(results: dict[str, Any], part: str, row: Any) -> dict[str, Any]:
    """The row as it stands in `results`: among those of its part, or among those that were left out."""
    found: dict[str, Any] = row if isinstance(row, dict) else asdict(row)
    if isinstance(row, LeftOut):
        part, found = "left_out", {"part": part, **found}
    results.setdefault(part, []).append(found)
    return found


def _rows(
    part: str,
    device: torch.device,
    dtype: torch.dtype,
    ways: Sequence[str] | None,
    modes: Sequence[str],
) -> Iterable[Any]:
    small = device.type == "cpu"
    if part == "op":
        for shape in OP_SHAPES[device.type]:
            yield from op.rows(shape, dtype, device)
    elif part == "block":
        sizes: dict[str, Any] = {"batch": 2, "tokens": 196} if small else {}
        yield from models.block_rows(device, dtype=dtype, **sizes)
    elif part == "train":
        yield from train.rows(device, tuple(ways or ()))
    elif part == "pairs":
        yield from pairs.rows(device)
    elif part == "vit":
        sizes = {"batch": 2, "size": "vit_tiny_patch16"} if small else {}
        chosen = list(ways or ["absolute", *models.builders()])
        yield from models.vit_rows(chosen, device, modes=tuple(modes), dtype=dtype, **sizes)
    else:
        for axis, value, row in op.measure_growth(dtype, device):
            yield row if isinstance(row, LeftOut) else {"axis": axis, "value": value, "row": asdict(row)}


def describe_machine(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What the numbers were measured on, and the command that made them."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "device": name,
        "dtype": str(dtype).removeprefix("torch."),
        "stringpe": __version__,
        "torch": torch.__version__,
        "triton": version,
        "python": platform.python_version(),
    }


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return {k: _round(v) for k, v in value.items()} if isinstance(value, dict) else value


def markdown(results: dict[str, Any]) -> str:
    """The page: one table per part."""
    lines = ["# Benchmark", ""]
    for run in results["runs"]:
        lines += ["- " + ", ".join(f"{key} `{value}`" for key, value in run.items())]
    lines += [
        "",
        "Milliseconds are medians with quartiles; so are ratios of models, each timed in turns with the first.",
        "",
    ]
    if "op" in results:
        lines += ["## Rotating q and k", "", FLOOR, ""]
        lines += _op_table(results["op"])
    for part, title in (("block", "One attention layer"), ("vit", "ViT")):
        if part in results:
            lines += [f"## {title}", ""]
            lines += _model_table(results[part])
    if "train" in results:
        lines += ["## Training", "", TRAIN, "", *_train_table(results["train"])]
    if "pairs" in results:
        lines += ["## Where it is used", "", PAIRS, "", *_pairs_table(results["pairs"])]
    if "growth" in results:
        lines += ["## Growth (ours)", "", *_growth_table(results["growth"])]
    if "left_out" in results:
        head = ["part", "way", "where", "why"]
        why = [textwrap.shorten(row["why"], 200, placeholder=" …") for row in results["left_out"]]
        cells = [[row["part"], row["way"], row["where"], w] for row, w in zip(results["left_out"], why, strict=True)]
        lines += ["## Left out", "", markdown_table(head, cells, left=4)]
    return "\n".join(lines).rstrip() + "\n"


def _op_table(rows: list[dict[str, Any]]) -> list[str]:
    head = ["shape", "way", "forward", "× floor", "call", "forward + backward", "× floor", "call"]
    table = []
    for row in rows:
        forward, both, floor = row["forward"], row["both"], row["floor"]
        name = f"{row['way']} ({row['backend']})" if row["backend"] else row["way"]
        cells = [
            row["shape"],
            name,
            _show_timing(forward),
            f"{forward['median'] / floor:.2f}",
            _show_median(row["forward_call"]),
        ]
        ratio = f"{both['median'] / (BOTH * floor):.2f}" if both else "–"
        cells += [_show_timing(both) if both else "–", ratio, _show_median(row["both_call"])]
        table.append(cells)
    return [markdown_table(head, table, left=2), ""]


def _growth_table(items: list[dict[str, Any]]) -> list[str]:
    cells = []
    for item in items:
        row = item["row"]
        forward, both, floor = row["forward"]["median"], row["both"]["median"], row["floor"]
        ratios = (f"{forward:.3f} ({forward / floor:.2f})", f"{both:.3f} ({both / (BOTH * floor):.2f})")
        cells.append((item["axis"], f"{item['value']:,}", *ratios))
    return [markdown_table(["axis", "value", "forward ms (× floor)", "both ms (× floor)"], cells), ""]


def _model_table(rows: list[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        base = next(r for r in rows if r["mode"] == row["mode"])  # the first of its mode
        train, inference = row["train"], row["inference"]
        memory = f"{train['memory'] / base['train']['memory']:.3f}" if train["memory"] else "–"
        times = (_show_timing(train), _show_ratio(train, base["train"]), memory)
        cells.append(
            (row["way"], row["mode"], *times, _show_timing(inference), _show_ratio(inference, base["inference"]))
        )
    return [markdown_table(["way", "mode", "train", "×", "memory ×", "inference", "×"], cells, left=2), ""]


def _train_table(rows: list[dict[str, Any]]) -> list[str]:
    head = (
        "recipe",
        "encoding",
        "batch",
        "loop (ms)",
        "plain (ms)",
        "timm (ms)",
        "ratio",
        "kernels (ms)",
        "of them for the batch",
        "images/s",
        "utilisation",
    )
    cells = []
    for row in rows:
        share = row["utilisation"]
        kernels = (row["kernels"], row.get("batch_kernels"))  # files of earlier versions lack the second
        cells.append(
            (
                row["recipe"],
                row["encoding"],
                f"{row['batch']:,}",
                _show_timing(row["loop"]),
                f"{row['plain']:.3f}",
                "–" if row.get("timm") is None else f"{row['timm']:.3f}",
                _show_ratio(row["loop"]),
                *("–" if time is None else f"{time:.3f}" for time in kernels),
                f"{row['images_per_second']:,.0f}",
                "–" if share is None else f"{100 * share:.1f} %",
            )
        )
    return [markdown_table(head, cells, left=2), "", *_kinds_table(rows)]


def _kinds_table(rows: list[dict[str, Any]]) -> list[str]:
    """Where the kernels' time goes, of the loop and of the plain loop; nothing without a GPU."""
    measured = [
        (f"{row['recipe']}, {loop}", row[key])
        for row in rows
        for loop, key in (("our loop", "kinds"), ("plain loop", "plain_kinds"))
        if row.get(key)
    ]
    if not measured:
        return []
    kinds = sorted({kind for _, times in measured for kind in times}, key=lambda k: -measured[0][1].get(k, 0.0))
    cells = [[name, *(f"{times.get(kind, 0.0):.2f}" for kind in kinds)] for name, times in measured]
    return ["Milliseconds of kernels per step, by kind:", "", markdown_table(["", *kinds], cells), ""]


def _pairs_table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [(row["what"], row["base"], _show_timing(row["time"]), _show_ratio(row["time"])) for row in rows]
    return [markdown_table(("ours", "the other", "ms", "ratio"), cells, left=2), ""]


def _show_ratio(timing: dict[str, Any], base: dict[str, Any] | None = None) -> str:
    """The ratio that was timed in turns, with its quartiles; where there is none, that of the medians."""
    if timing["ratio"]:
        low, median, high = timing["ratio"]
        return _show_quartiles(low, median, high)
    assert base is not None
    return f"{timing['median'] / base['median']:.3f}"


def _show_median(timing: dict[str, Any] | None) -> str:
    return f"{timing['median']:.3f}" if timing else "–"


def _show_timing(timing: dict[str, Any]) -> str:
    return _show_quartiles(timing["low"], timing["median"], timing["high"])


def _show_quartiles(low: float, median: float, high: float) -> str:
    return f"{median:.3f} ({low:.3f}–{high:.3f})"


def plot(results: dict[str, Any], path: Path) -> None:
    """Bars of every way, as multiples of the floor and of the first model. Needs matplotlib; without it, nothing."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = []
    if "op" in results:
        first = [r for r in results["op"] if r["shape"] == results["op"][0]["shape"]]
        panels.append(
            (f"forward, × floor\n{first[0]['shape']}", [(r["way"], r["forward"]["median"] / r["floor"]) for r in first])
        )
    for part in ("block", "vit"):
        if part in results:
            mode = results[part][-1]["mode"]
            rows = [r for r in results[part] if r["mode"] == mode]
            base = rows[0]["train"]["median"]
            panels.append(
                (
                    f"{part}, training, {mode}\n× {rows[0]['way']}",
                    [(r["way"], r["train"]["median"] / base) for r in rows],
                )
            )
    if not panels:
        return
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, 3.2 * len(panels)), layout="constrained", squeeze=False)
    for ax, (title, bars) in zip(axes[:, 0], panels, strict=True):
        names, values = [b[0] for b in bars], [b[1] for b in bars]
        colours = ["#c44e52" if name.startswith("ours") else "#8c8c8c" for name in names]
        drawn = ax.barh(names, values, color=colours)
        ax.bar_label(drawn, fmt="%.2f", padding=2, fontsize=8)
        ax.axvline(1, color="k", linewidth=0.8)
        ax.invert_yaxis()
        ax.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
