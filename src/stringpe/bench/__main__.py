"""`python -m stringpe.bench`: the benchmarks without the command line's extras, for machines that have torch alone."""

import argparse

from .report import PARTS, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stringpe.bench", description=run.__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help="op, block, vit, growth, train; all by default")
    parser.add_argument("--out", default="bench", help="folder for bench.json, bench.md and bench.png")
    parser.add_argument("--device", help="cuda or cpu; cuda if there is one")
    parser.add_argument("--ways", nargs="+", help="rows of the parts vit and train")
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], help="of the vit part")
    options = parser.parse_args()
    run(options.parts, out=options.out, device=options.device, ways=options.ways, modes=options.modes)


if __name__ == "__main__":
    main()
