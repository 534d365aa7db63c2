"""Run the benchmarks and write what came out: a JSON file with every number, a markdown page, and a plot."""

import json
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from . import models, op

PARTS = ("op", "block", "vit", "growth")
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
    compiled: bool = True,
) -> dict[str, Any]:
    """Measure `parts`, print as it goes, write bench.json, bench.md and (with matplotlib) bench.png under `out`.

    ways: which rows of the ViT part, by name; all by default. modes: of the ViT part, "eager" and "compiled".
    """
    unknown = [p for p in parts if p not in PARTS]
    if unknown:
        raise ValueError(f"there is no part {unknown[0]!r}: parts are {', '.join(PARTS)}")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    results: dict[str, Any] = {"about": about(where, dtype)}
    if "op" in parts:
        results["op"] = _collect(
            row for shape in OP_SHAPES[where.type] for row in op.rows(shape, dtype, where, compiled=compiled)
        )
    if "block" in parts:
        sizes = {} if where.type == "cuda" else {"batch": 2, "tokens": 196}
        results["block"] = _collect(models.block_rows(where, dtype=dtype, **sizes))  # type: ignore[arg-type]
    if "vit" in parts:
        chosen = list(ways or ["absolute", *models.builders()])
        sizes = {} if where.type == "cuda" else {"batch": 2, "size": "vit_tiny_patch16"}
        results["vit"] = _collect(models.vit_rows(chosen, where, modes=tuple(modes), dtype=dtype, **sizes))  # type: ignore[arg-type]
    if "growth" in parts:
        results["growth"] = _collect(
            {"axis": axis, "value": value, "row": asdict(row)} for axis, value, row in op.growth(dtype, where)
        )
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(results, indent=1))
    (folder / "bench.md").write_text(markdown(results))
    plot(results, folder / "bench.png")
    return results


def about(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What the numbers were measured on, and the command that made them."""
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "none"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(sys.argv),
        "device": name,
        "dtype": str(dtype).removeprefix("torch."),
        "stringpe": __version__,
        "torch": torch.__version__,
        "triton": version,
        "python": platform.python_version(),
    }


def _collect(rows: Iterable[Any]) -> list[dict[str, Any]]:
    collected = []
    for row in rows:
        collected.append(row if isinstance(row, dict) else asdict(row))
        print(json.dumps(_rounded(collected[-1])), flush=True)
    return collected


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return {k: _rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


def markdown(results: dict[str, Any]) -> str:
    """The page: one table a part."""
    lines = ["# Benchmark", "", *(f"- {key}: `{value}`" for key, value in results["about"].items()), ""]
    lines += ["Milliseconds are medians with quartiles.", ""]
    if "op" in results:
        lines += ["## Rotating q and k", "", "Floor: a copy of q and k; forward + backward has twice that.", ""]
        lines += _op_table(results["op"])
    for part, title in (("block", "One attention layer"), ("vit", "ViT")):
        if part in results:
            lines += [f"## {title}", ""]
            lines += _model_table(results[part])
    if "growth" in results:
        lines += [
            "## Growth (ours)",
            "",
            "| axis | value | forward ms (× floor) | both ms (× 2 floors) |",
            "|---|---|---|---|",
        ]
        for item in results["growth"]:
            row = item["row"]
            both, floor = row["both"]["median"], row["floor"]
            lines.append(
                f"| {item['axis']} | {item['value']:,} | {row['forward']['median']:.3f} "
                f"({row['forward']['median'] / floor:.2f}) | {both:.3f} ({both / (2 * floor):.2f}) |"
            )
    return "\n".join(lines) + "\n"


def _op_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| shape | way | forward | × floor | forward + backward | × 2 floors |", "|---|---|---|---|---|---|"]
    for row in rows:
        forward, both, floor = row["forward"], row["both"], row["floor"]
        name = f"{row['way']} ({row['backend']})" if row["backend"] else row["way"]
        pair = (_spread(both), f"{both['median'] / (2 * floor):.2f}") if both else ("–", "–")
        ratio = f"{forward['median'] / floor:.2f}"
        lines.append(f"| {row['shape']} | {name} | {_spread(forward)} | {ratio} | {pair[0]} | {pair[1]} |")
    return [*lines, ""]


def _model_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| way | mode | train | × | memory × | inference | × |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        base = next(r for r in rows if r["mode"] == row["mode"])  # the first of its mode
        train, inference = row["train"], row["inference"]
        memory = f"{train['memory'] / base['train']['memory']:.3f}" if train["memory"] else "–"
        lines.append(
            f"| {row['way']} | {row['mode']} | {_spread(train)} | {train['median'] / base['train']['median']:.3f} "
            f"| {memory} | {_spread(inference)} | {inference['median'] / base['inference']['median']:.3f} |"
        )
    return [*lines, ""]


def _spread(timing: dict[str, Any]) -> str:
    return f"{timing['median']:.3f} ({timing['low']:.3f}–{timing['high']:.3f})"


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
