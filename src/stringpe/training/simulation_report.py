"""report.html of policies in simulation: what was tried, what the trials show, and what they do not."""

from pathlib import Path

from ..io.checkpoint import read_model
from ..metrics.statistics import paired_shares
from .launch import versions
from .report import Section, show_picture, write_report
from .simulate import Results, notes, short_names, table_rows

_COLUMNS = (
    "success: share of the trials that the simulation counts as a success, with Wilson's interval",
    "weights: the first digits of the digest of the weights, which is in every file of the evaluation",
    "difference: to the first policy, on the same initial states, with Newcombe's interval for paired shares",
    "McNemar p: of the exact test that a policy wins as many initial states as it loses to the first one",
    "crashed: simulations that ended in an error or hung; they count as failures",
)


def write_simulation(out: Path, results: Results, figure: bytes | None, policy: Path) -> Path:
    """Write report.html to `out`; returns its path. policy: the folder of the first policy, whose recipe is shown."""
    settings = list(results)
    tasks = dict.fromkeys(name.partition(", ")[0] for name in settings)
    labels = list(next(iter(results.values())))
    said = f"Policies: {', '.join(labels)}. In each of these settings, each of them meets the same initial states."
    tables = tuple(table_rows(result) for result in results.values())
    remarks = tuple(note for name, result in results.items() for note in notes(result, name))
    sections = [
        Section("The task", (said,), points=tuple(settings)),
        Section("Conclusion", points=tuple(_conclusions(results))),
        Section("What cannot be concluded", points=tuple(_limits(results))),
        Section("Success", tables=tables, points=_COLUMNS, notes=remarks),
    ]
    pictures = [] if figure is None else [show_picture("Success, with 95 % intervals", "image/svg+xml", figure)]
    recipe = read_model(policy)[0]
    return write_report(out, recipe, sections, pictures, versions(), f"Policies in simulation: {', '.join(tasks)}")


def _conclusions(results: Results) -> list[str]:
    """Success of every policy, and the differences that the trials show."""
    said = []
    for name, policies in zip(short_names(list(results)), results.values(), strict=True):
        first = next(iter(policies))
        base = {t.seed: t.success for t in policies[first].trials}
        for label, result in policies.items():
            low, high = result.share.bounds
            text = f"{name}: {label} succeeds in {100 * result.share.mean:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
            if label != first and result.weights != policies[first].weights:
                pair = paired_shares({t.seed: t.success for t in result.trials}, base)
                side = "above" if pair.difference.mean > 0 else "below"
                text += (
                    f", {abs(100 * pair.difference.mean):.0f} points {side} {first} (p = {pair.p_value:.3f})"
                    if pair.p_value < 0.05
                    else f", not shown to differ from {first} (p = {pair.p_value:.3f})"
                )
            said.append(f"{text}.")
    return said


def _limits(results: Results) -> list[str]:
    """What the trials do not say."""
    least = min(len(result.trials) for policies in results.values() for result in policies.values())
    said = [
        "Which encoding makes the better policy: a trial repeats the simulation, not the training. That takes several "
        "trainings per encoding, and their spread is the one that counts.",
        "How the policies would do on a real robot.",
    ]
    if least < 50:
        said.insert(0, f"Much about success itself: {least} trials leave wide intervals. Use at least 50.")
    if sum(len(policies) - 1 for policies in results.values()) > 3:
        said.append("Every difference by itself: with so many comparisons, one in twenty has p < 0.05 by chance.")
    return said
