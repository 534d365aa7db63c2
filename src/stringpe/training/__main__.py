"""`python -m stringpe.training train | eval | compare`: for launchers, and machines with the train extra alone.

    accelerate launch --num_processes 8 -m stringpe.training train imagenet2012 data.train=… --out runs/imagenet

The same commands as `stringpe train`, `stringpe eval` and `stringpe compare`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import recipes
from ..cli.commands import run_compare, run_eval, run_train


def main(words: Sequence[str] | None = None) -> None:
    """Parse and call. What a user can mend is said in one line."""
    asked = _parser().parse_args(words)
    try:
        if asked.command == "train":
            run_train(asked.recipe, asked.overrides, asked.out)
        elif asked.command == "eval":
            run_eval(asked.words, asked.env, asked.shifts, asked.trials, asked.out, asked.jobs, asked.videos)
        else:
            a = asked
            tuning = (a.rates, a.rates_share)
            run_compare(a.recipe, a.overrides, a.encodings, a.seeds, a.out, a.baseline, a.jobs, *tuning, a.costs)
    except (ValueError, OSError) as error:
        sys.exit(f"stringpe: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stringpe.training", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("train", help="train a recipe; run it again to resume")
    one.add_argument("recipe", help=", ".join(recipes.names()))
    one.add_argument("overrides", nargs="*", metavar="key=value")
    one.add_argument("--out", type=Path, required=True, help="folder of the run")
    two = commands.add_parser("eval", help="metrics of a checkpoint")
    two.add_argument(
        "words", nargs="+", metavar="checkpoint | key=value", help="a run's folder or one of its checkpoints"
    )
    two.add_argument("--env", nargs="+", default=[], help="try policies, one or several, in simulation of these tasks")
    two.add_argument("--shifts", action="store_true", help="also under every shift that the task has")
    two.add_argument("--trials", type=int, help="initial states, the same for every policy; 50 by default")
    two.add_argument("--out", type=Path, help="folder of trials, videos and table; each run's own by default")
    two.add_argument("--jobs", type=int, help="simulations side by side; one a core by default")
    two.add_argument("--videos", type=int, help="kept of successes, and of failures; 3 each by default")
    three = commands.add_parser("compare", help="every encoding under one recipe; run it again to resume")
    three.add_argument("recipe", nargs="?", default="relations", help=", ".join(recipes.names()))
    three.add_argument("overrides", nargs="*", metavar="key=value")
    three.add_argument("--encodings", nargs="+", default=[], metavar="NAME[:key=value,…]")
    three.add_argument("--seeds", type=int, default=0)
    three.add_argument("--out", type=Path, default=Path("runs/compare"))
    three.add_argument("--baseline", default="", help="row that differences are taken to")
    three.add_argument("--jobs", type=int, default=0, help="processes side by side")
    three.add_argument("--rates", type=float, nargs="+", default=[], help="learning rates to choose from, row by row")
    three.add_argument("--rates-share", type=float, default=1.0, help="length of the runs that choose, of the recipe's")
    three.add_argument(
        "--costs", action=argparse.BooleanOptionalAction, default=True, help="measure each row alone, after training"
    )
    return parser


if __name__ == "__main__":
    main()
