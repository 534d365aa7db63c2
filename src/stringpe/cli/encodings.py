"""The commands that look at encodings and measure them, without training: one function each, as in `commands`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from .parse import Count, Least, check_device, find_local_modules


def compare_properties(
    head_dim: Annotated[int, Least(2)] = 64,
    num_heads: Count = 12,
    coord_dim: Count = 3,
    tokens: Count = 196,
    shift: float = 1000.0,
    seed: int = 0,
) -> None:
    """Compare all encodings without training: invariance under a shift, exactness, parameters and cost.

    Args:
        head_dim: Channels per head.
        num_heads: Heads of the layer.
        coord_dim: Coordinates per token.
        tokens: Tokens that are encoded for the cost column.
        shift: Units by which all coordinates move for the invariance column.
        seed: Of the random queries, keys, coordinates and parameters.
    """
    import torch

    from .. import __version__
    from ..io.table import markdown_table
    from . import properties

    head = ["encoding", f"score error, shift of {shift:g}", "against expm (float64)", "parameters", "ms (quartiles)"]
    rows = [
        [
            row.name,
            f"{row.shift_error:.1e}",
            "–" if row.dense_error is None else f"{row.dense_error:.1e}",
            f"{row.parameters:,}",
            f"{row.milliseconds:.2f} ({row.quartiles[0]:.2f}–{row.quartiles[1]:.2f})",
        ]
        for row in properties.measure(
            head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim, tokens=tokens, shift=shift, seed=seed
        )
    ]
    print(f"q and k of {num_heads} heads × {head_dim}, {tokens} tokens, {coord_dim} coordinates\n")
    print(markdown_table(head, rows))
    print(f"\nstringpe {__version__}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads, seed {seed}")


def inspect(
    name: str,
    /,
    out: Path = Path("encoding.png"),
    head_dim: Annotated[int, Least(2)] = 64,
    num_heads: Count = 4,
    coord_dim: Count = 2,
    extent: float = 16.0,
    noise: float = 0.1,
    seed: int = 0,
    beside: tuple[str, ...] = ("sincos", "rope"),
    image: Path | None = None,
    html: bool = False,
) -> None:
    """Draw an encoding: wavelengths, basis, and score maps over displacement.

    With --out FILE.gif or --html it shows instead where the patches of a picture look, under this encoding and others,
    while all coordinates move: weights under absolute embeddings change, those under relative encodings do not.

    Args:
        name: ROTARY; or a function of your own, my_module:factory.
        out: The picture to write; .png, .svg or .pdf, or .gif for the animation.
        head_dim: Channels per head.
        num_heads: Heads of the layer; up to four are drawn.
        coord_dim: Coordinates per token; the first two are drawn.
        extent: Half the width of the score maps, in units of the coordinates.
        noise: Spread of the random basis parameters, which a model would learn; 0 draws the start, where P = I.
        seed: Of the encoding, its noise and the token.
        beside: Encodings to show beside it in the animation and on the page.
        image: The picture of the animation and the page; one of the procedural world by default.
        html: Write a page in place of the picture, with the suffix .html, to choose patches and displacements on.
    """
    import torch

    from ..catalogue import create
    from ..encoding import Encoding
    from .drawing import draw

    find_local_modules(name, *beside)
    if html or out.suffix == ".gif":
        _show_patch_attention((*beside, name), out, image, html, noise, seed)
        return
    torch.manual_seed(seed)
    encoding = create(name, head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim)
    if not isinstance(encoding, Encoding):
        raise ValueError(f"{name!r} is not made of a basis and frequencies, which is what can be drawn")
    for parameter in encoding.basis.parameters():
        torch.nn.init.normal_(parameter, std=noise)
    print(encoding)
    print(f"wrote {draw(encoding, out, extent=extent, seed=seed)}")


def _show_patch_attention(
    names: Sequence[str], out: Path, image: Path | None, html: bool, noise: float, seed: int
) -> None:
    """The animation, or the page, of patches that look at each other under several encodings."""
    from .. import viewer
    from . import patch_attention as patches

    picture = patches.rendered_picture() if image is None else patches.read_picture(image)
    names = list(dict.fromkeys(names))
    if html:
        page = patches.attention_page(names, picture, noise=noise, seed=seed)
        print(f"wrote {viewer.save(page, out.with_suffix('.html'))}")
    if out.suffix == ".gif":
        print(f"wrote {patches.animate(names, picture, out, noise=noise, seed=seed)}")


def bench(
    parts: tuple[str, ...] = (),
    /,
    out: Path = Path("bench"),
    device: str = "",
    ways: tuple[str, ...] = (),
    modes: tuple[str, ...] = ("eager", "compiled"),
    check: Path | None = None,
) -> None:
    """Measure what encodings cost, beside the usual ways and the memory floor: a table, a JSON file and a plot.

    Args:
        parts: Of op, block, vit, growth and train; all by default.
        out: Folder for bench.json, bench.md and bench.png; results that are there are added to.
        device: cuda or cpu; a GPU if there is one.
        ways: Rows of the parts vit and train, by name; all by default.
        modes: Of the vit part: eager, compiled.
        check: A bench.json of an earlier run on the same kind of device. Ratios that grew by more than 5 % are listed,
            and the exit status is 1 if there are any.
    """
    from ..bench import run
    from ..bench.regressions import compare_runs, describe
    from ..bench.results import PARTS
    from ..io.files import read_json

    if wrong := [mode for mode in modes if mode not in ("eager", "compiled")]:
        raise ValueError(f"there is no mode {wrong[0]!r}: modes are eager and compiled")
    earlier = None if check is None else read_json(check)
    results = run(parts or PARTS, out=out, device=check_device(device) or None, ways=ways or None, modes=modes)
    if earlier is not None:
        outcome = compare_runs(results, earlier)
        print(describe(outcome))
        if outcome.worse():
            raise SystemExit(1)
