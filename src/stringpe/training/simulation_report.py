"""Results of policies in simulation: tables, the figure, and report.html, which says what was tried, what the trials
show, and what they do not show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..io.checkpoint import read_model
from ..io.files import write_bytes
from ..io.table import markdown_table
from ..metrics.statistics import Estimate, paired_shares, wilson
from ..robots.rollout import Trial
from .figures import can_draw, draw_shares
from .launch import versions
from .report import Section, show_picture, write_report

_COLUMNS = (
    "success: share of the trials that the simulation counts as a success, with Wilson's interval",
    "weights: the first digits of the digest of the weights, which every file of the evaluation contains",
    "difference: from the first policy, on the same initial states, with Newcombe's interval for paired shares",
    "McNemar p: of the exact test of whether a policy wins as many initial states as it loses, against the first one",
    "crashed: simulations that ended in an error or hung; they count as failures",
)


Results = Mapping[str, Mapping[str, "Result"]]
"""By the name of the setting, then by the label of the policy."""


@dataclass(frozen=True)
class Result:
    """The trials of one policy in one setting, and the digest of its weights."""

    trials: Sequence[Trial]
    weights: str

    @property
    def share(self) -> Estimate:
        """The share of successes, with Wilson's interval."""
        return wilson(sum(t.success for t in self.trials), len(self.trials))


def write_simulation(out: Path, results: Results, figure: bytes | None, policy: Path) -> Path:
    """Write report.html to `out`; returns its path. policy: the folder of the first policy, whose recipe is shown."""
    settings = list(results)
    tasks = dict.fromkeys(name.partition(", ")[0] for name in settings)
    labels = list(next(iter(results.values())))
    task = f"Policies: {', '.join(labels)}. In each of these settings, all policies start from the same initial states."
    tables = tuple(table_rows(result) for result in results.values())
    remarks = tuple(note for name, result in results.items() for note in notes(result, name))
    sections = [
        Section("The task", (task,), points=tuple(settings)),
        Section("Conclusion", points=tuple(_conclusions(results))),
        Section("What cannot be concluded", points=tuple(_limits(results))),
        Section("Success", tables=tables, points=_COLUMNS, notes=remarks),
    ]
    pictures = [] if figure is None else [show_picture("Success, with 95 % intervals", "image/svg+xml", figure)]
    recipe = read_model(policy)[0]
    return write_report(out, recipe, sections, pictures, versions(), f"Policies in simulation: {', '.join(tasks)}")


def _conclusions(results: Results) -> list[str]:
    """The success of every policy, and the differences that the trials show."""
    sentences = []
    for name, policies in zip(short_names(list(results)), results.values(), strict=True):
        first = next(iter(policies))
        base = {t.seed: t.success for t in policies[first].trials}
        for label, result in policies.items():
            low, high = result.share.bounds
            text = f"{name}: {label} succeeds in {100 * result.share.mean:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
            if label != first and result.weights != policies[first].weights:
                pair = paired_shares({t.seed: t.success for t in result.trials}, base)
                direction = "above" if pair.difference.mean > 0 else "below"
                text += (
                    f", {abs(100 * pair.difference.mean):.0f} points {direction} {first} (p = {pair.p_value:.3f})"
                    if pair.p_value < 0.05
                    else f", not shown to differ from {first} (p = {pair.p_value:.3f})"
                )
            sentences.append(f"{text}.")
    return sentences


def _limits(results: Results) -> list[str]:
    """What the trials do not show."""
    least = min(len(result.trials) for policies in results.values() for result in policies.values())
    limits = [
        "Which encoding makes the better policy: a trial repeats the simulation, not the training. To compare "
        "encodings, train several policies with each of them, and judge the difference by their spread.",
        "How the policies would do on a real robot.",
    ]
    if least < 50:
        limits.insert(0, f"How high the success rates are: {least} trials leave wide intervals. Use at least 50.")
    if sum(len(policies) - 1 for policies in results.values()) > 3:
        limits.append(
            "Whether each single difference is real: among so many comparisons, one in twenty has p < 0.05 by chance."
        )
    return limits


def short_names(settings: Sequence[str]) -> list[str]:
    """Names of settings without the parts that all have in common; "usual" if no other part is left."""
    parts = [name.split(", ") for name in settings]
    if len(parts) == 1:
        return list(settings)
    common = set.intersection(*map(set, parts))
    return [", ".join(part for part in name if part not in common) or "usual" for name in parts]


def format_overview(results: Results) -> str:
    """Markdown: one row per policy, one column per setting, with success in per cent and Wilson's interval."""
    first, *_ = results.values()
    rows = []
    for label in first:
        shares = [policies[label].share for policies in results.values()]
        rows.append([label, *(f"{100 * s.mean:.0f} ({_range(s, '', 0)})" for s in shares)])
    return markdown_table(["policy", *short_names(list(results))], rows) + "\n"


def format_table(results: Mapping[str, Result], setting: str) -> str:
    """Markdown: success with Wilson's interval, and differences from the first policy, paired by initial state."""
    head, *rows = table_rows(results)
    return "\n".join([markdown_table(head, rows), "", *notes(results, setting), ""])


def table_rows(results: Mapping[str, Result]) -> list[list[str]]:
    """Head and rows of the table of one setting."""
    head = ["policy", "weights", "success (%)", "95 % interval", "difference", "95 % interval", "McNemar p", "crashed"]
    first = next(iter(results))
    base = {t.seed: t.success for t in results[first].trials}
    rows = []
    for label, result in results.items():
        row = [label, result.weights[:8], f"{100 * result.share.mean:.1f}", _range(result.share, "")]
        if label == first:
            row += ["baseline", "", ""]
        else:
            pair = paired_shares({t.seed: t.success for t in result.trials}, base)
            row += [f"{100 * pair.difference.mean:+.1f}", _range(pair.difference, "+"), f"{pair.p_value:.3f}"]
        rows.append([*row, str(sum(bool(t.crashed) for t in result.trials))])
    return [head, *rows]


def notes(results: Mapping[str, Result], setting: str) -> list[str]:
    """Sentences below the table of one setting, which its reader must know."""
    first = next(iter(results))
    base = [t.seed for t in results[first].trials]
    sentences = [
        f"{setting}: {len(base)} trials each, initial states {min(base)} to {max(base)}, the same for all. "
        f"A simulation that crashed or hung counts as a failure. Intervals: Wilson's, and Newcombe's for paired shares."
    ]
    same = [label for label, result in results.items() if label != first and result.weights == results[first].weights]
    if same:
        sentences.append(f"{', '.join(same)} and {first} have the same weights: the comparison means nothing.")
    if len(base) < 50:
        sentences.append(f"{len(base)} trials say little: 6 of 10 is 31 to 83 %. Use at least 50.")
    return sentences


def _range(estimate: Estimate, sign: str, digits: int = 1) -> str:
    low, high = estimate.bounds
    return f"{100 * low:{sign}.{digits}f} to {100 * high:{sign}.{digits}f}"


def draw_success(results: Results, path: Path) -> bytes | None:
    """Write the figure of all settings, and return its content (SVG); None without matplotlib."""
    if not can_draw():
        return None
    shares = [{label: result.share for label, result in policies.items()} for policies in results.values()]
    groups = dict(zip(short_names(list(results)), shares, strict=True))
    figure = draw_shares(groups, "success (%), 95 % interval")
    write_bytes(path, figure)
    return figure
