"""The page and the figure of the study of `daband.assess`, from its record; `results_pages.py` writes both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.text import paragraph

__all__ = ["trust_figure", "trust_page"]

Record = dict[str, Any]

LITERATURE = {
    "source accuracy": "source accuracy, as if nothing had changed",
    "confidence": "mean confidence in the target (Hendrycks, Gimpel, 2017)",
    "DoC": "difference of confidences (Guillory et al., 2021)",
    "ATC, max": "thresholded confidence, largest probability (Garg et al., 2022)",
    "ATC, entropy": "thresholded confidence, entropy",
    "ATC, margin": "thresholded confidence, margin",
    "COT": "optimal transport (Lu et al., 2023)",
    "neighbours": "reward of the nearest source predictions",
    "agreement": "agreement (Jiang et al., 2022)",
    "agreement x source accuracy / source agreement": "agreement x source accuracy / source agreement",
    "accuracy given agreement": "source accuracy where members agree and where not, weighted as in the target",
    "the same beyond chance": "agreement beyond chance (kappa) in place of agreement",
    "beyond chance as far as choices are spread": "kappa as far as choices are spread over arms, agreement else",
}
SINGLE_POLICY = ("source accuracy", "confidence", "DoC", "ATC, max", "ATC, entropy", "ATC, margin", "COT", "neighbours")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def trust_page(record: Record, cost: Record) -> str:
    """The page of the study, with what `assess` costs."""
    policies = record["policies"]
    families = sorted({one["family"] for one in policies})
    true = _column(policies, "true")
    family = np.array([one["family"] for one in policies])
    ours, low = _column(policies, "estimated"), _column(policies, "low")
    alone, alone_low = _column(policies, "single"), _column(policies, "single_low")
    errors = {name: np.array([one["others"][name] for one in policies]) - true for name in LITERATURE}
    errors["**`assess`, one policy**"] = alone - true
    errors["**`assess`, a committee**"] = ours - true
    best_single = min(
        ((name, _macro(np.abs(errors[name]), family, families)) for name in SINGLE_POLICY), key=lambda pair: pair[1]
    )
    macro = _macro(np.abs(ours - true), family, families)
    worst = max(families, key=lambda name: np.abs(ours - true)[family == name].mean())
    holds = low <= true + 1e-9
    good = true > 0.85
    handed = np.array([one["verdict"] == "hand over" for one in policies])
    value = _column(policies, "true_value")
    below = int((handed & (value < _column(policies, "required"))).sum())
    below_constant = int((handed & (value < _column(policies, "constant"))).sum())
    lines = [
        "# How well `assess` estimates",
        "",
        "<!-- Written by benchmarks/results_pages.py from benchmarks/records/trust.json and assess-cost.json. "
        "Do not edit. -->",
        "",
        *_others_summary(record["others"]),
        "",
        paragraph(
            "Everything below is of the study itself, in which features, weights and margins were chosen with all its",
            "data in view (`oracle`): weights and margins were fitted on the data sets other than the one that is",
            "judged, the features were not. Its image policies are of the recipe with the discriminator at 1; today",
            "it has .3.",
        ),
        "",
        paragraph(
            f"{len(policies):,} policies of {len({one['problem'] for one in policies})} problems in {len(families)}",
            "data sets: DABand, Neural-LinUCB and linear policies; trained to the end, half-trained and collapsed.",
            "Every policy was assessed with the other seeds of its committee, from source rounds held out and target",
            "contexts without rewards; then its true accuracy was looked up.",
        ),
        "",
        "- A committee of three or more: mean absolute error of the estimated accuracy, mean over data sets: "
        f"**{_n(macro)}** (largest: "
        f"{_n(float(np.abs(ours - true)[family == worst].mean()))}, {worst}). Best estimator of the literature for one "
        f"policy: {_n(best_single[1])} ({best_single[0]}).",
        f"- The bound is true for **{holds.mean():.1%}** of the policies "
        f"({_macro(holds.astype(float), family, families):.1%} as a mean over data sets); its median distance to the "
        f"estimate is {_n(float(np.median(ours - low)))}.",
        f"- *Hand over* for {(handed & good).sum() / max(1, good.sum()):.1%} of the {int(good.sum())} policies above "
        f".85; for {below} policies whose true value is below what was required, and for {below_constant} below the "
        "best constant arm.",
        f"- One policy alone: error {_n(_macro(np.abs(alone - true), family, families))}, its bound true for "
        f"{(alone_low <= true + 1e-9).mean():.1%} at a median distance of {_n(float(np.median(alone - alone_low)))}.",
        "",
        "![Estimated against true accuracy](trust.svg)",
        "",
        "## Mean absolute error by data set",
        "",
        f"| estimator | mean | {' | '.join(families)} |",
        f"| --- | ---: | {' | '.join(['---:'] * len(families))} |",
    ]
    for name, error in errors.items():
        shares = [float(np.abs(error)[family == one].mean()) for one in families]
        cells = " | ".join(_n(share) for share in shares)
        lines.append(f"| {LITERATURE.get(name, name)} | {_n(float(np.mean(shares)))} | {cells} |")
    lines += [
        "",
        "## The bound and the verdict by data set",
        "",
        "| data set | policies | true accuracy | error | bias | bound true | median distance | hand over | audit "
        "| do not |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in families:
        mine = family == name
        verdicts = [one["verdict"] for one in policies if one["family"] == name]
        error = (ours - true)[mine]
        lines.append(
            f"| {name} | {int(mine.sum())} | {_n(true[mine].min(), 2)} to {_n(true[mine].max(), 2)} | "
            f"{_n(float(np.abs(error).mean()))} | {error.mean():+.3f} | {holds[mine].mean():.1%} | "
            f"{_n(float(np.median((ours - low)[mine])))} | "
            + " | ".join(str(verdicts.count(text)) for text in ("hand over", "hand over and audit", "do not"))
            + " |"
        )
    lines += [
        "",
        "## By method",
        "",
        "| method | policies | error | bias | bound true |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    kinds = np.array([_kind(one["variant"]) for one in policies])
    for kind in sorted(set(kinds)):
        mine = kinds == kind
        error = (ours - true)[mine]
        lines.append(
            f"| {kind} | {int(mine.sum())} | {_n(float(np.abs(error).mean()))} | {error.mean():+.3f} | "
            f"{holds[mine].mean():.1%} |"
        )
    lines += [
        "",
        paragraph(
            "The same by true accuracy: errors are largest where a policy is poor, because members share errors there."
        ),
        "",
        "| true accuracy | policies | error | bias | bound true |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for least, most in ((0.0, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.85), (0.85, 1.01)):
        mine = (true >= least) & (true < most)
        if mine.any():
            error = (ours - true)[mine]
            lines.append(
                f"| {_n(least, 2)} to {_n(min(most, 1.0), 2)} | {int(mine.sum())} | {_n(float(np.abs(error).mean()))} "
                f"| {error.mean():+.3f} | {holds[mine].mean():.1%} |"
            )
    moved = record["relabelled"]
    lines += [
        "",
        paragraph(
            "Relabelled targets are not in these numbers. With the arms of the target renamed, the true accuracy of",
            f"{moved['policies']} of the policies is {_n(moved['true'])} on average, the estimate stays at",
            f"{_n(moved['estimated'])}, and {moved['handed_over']} would still be handed over: without rewards from",
            "the target this cannot be seen.",
        ),
        "",
        *_others(record["others"]),
        "",
        "## What was fitted",
        "",
        paragraph(
            "A logistic function of these features, its weights shrunk towards the first alone, which is an estimate",
            f"by itself. Margin of the bound: {record['fitted']['committee']['quantile']} times the usual",
            f"spread for a committee, {record['fitted']['single']['quantile']} for one policy, beside the error of",
            "sampling. The spread is larger, the further the estimate lies below the accuracy in the source.",
        ),
        "",
        "| committee | weight | one policy | weight |",
        "| --- | ---: | --- | ---: |",
    ]
    pairs = [
        list(zip(record["fitted"][kind]["features"], record["fitted"][kind]["weights"], strict=True))
        for kind in ("committee", "single")
    ]
    for index in range(max(map(len, pairs))):
        both = [f"{side[index][0]} | {side[index][1]:+.3f}" if index < len(side) else " | " for side in pairs]
        lines.append(f"| {' | '.join(both)} |")
    lines += [
        "",
        *_alternatives(record["alternatives"], families),
        "",
        *_cost(cost),
        "",
        paragraph(
            "`python benchmarks/results_pages.py` writes this page; its study was a script of commit",
            f"{record['commit']}; {record['machine']}. Seeds 0 to 2 of every variant, 0 to 4 for the released MNIST-M.",
        ),
        "",
    ]
    return "\n".join(lines)


def _others_summary(rows: Sequence[Record]) -> list[str]:
    """The figures that a user may expect: policies and settings on which nothing was fitted."""
    counts = np.array([row["policies"] for row in rows])
    share = float(np.array([row["holds"] for row in rows]) @ counts / counts.sum())
    by_data: dict[str, list[Record]] = {}
    for row in rows:
        by_data.setdefault(row["data"], []).append(row)
    errors = [
        float(np.average([r["error"] for r in own], weights=[r["policies"] for r in own])) for own in by_data.values()
    ]
    return [
        paragraph(
            f"**Expect an error of {_n(float(np.mean(errors)))} (mean over data sets) and a bound that is true for",
            f"{share:.1%}**: that is what {int(counts.sum())} policies have that took no part in the fit (committees",
            "of three; [below](#other-policies)), on pairs that did. On tables nobody had looked at the bound held",
            "less often still: see [when not to use this](../concepts/when-not.md).",
        )
    ]


def _others(rows: Sequence[Record]) -> list[str]:
    """Policies of another benchmark, on which nothing was fitted."""
    counts = np.array([row["policies"] for row in rows])
    share = float(np.array([row["holds"] for row in rows]) @ counts / counts.sum())
    return [
        "## Other policies",
        "",
        paragraph(
            "The candidates of [`choose`](choose.md) on every pair, other settings and lengths of training with fewer",
            f"held-out rounds: {int(counts.sum())} policies in committees of three, judged by weights and margins from",
            f"the other data sets. The bound is true for {share:.1%} of them: expect that, not the numbers above,",
            "on pairs of your own. No number was fitted on them, but the feature of linear committees was added after",
            "their errors had been seen. Linear policies on images are the weak spot: seeds agree on what all of them",
            "get wrong.",
        ),
        "",
        "| data set | policies | | error | bias | bound true | median distance |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {row['data']} | {row['kind']} | {row['policies']} | {_n(row['error'])} | {row['bias']:+.3f} | "
            f"{row['holds']:.1%} | {_n(row['distance'])} |"
            for row in rows
        ),
    ]


def _alternatives(found: dict[str, dict[str, float]], families: Sequence[str]) -> list[str]:
    lines = [
        "What else was tried, fitted and judged alike:",
        "",
        f"| estimate of a committee | mean | {' | '.join(families)} |",
        f"| --- | ---: | {' | '.join(['---:'] * len(families))} |",
    ]
    for name, errors in found.items():
        cells = " | ".join(_n(errors[family]) for family in families)
        lines.append(f"| {name} | {_n(float(np.mean(list(errors.values()))))} | {cells} |")
    return lines


def _cost(record: Record) -> list[str]:
    return [
        "## Cost",
        "",
        paragraph(
            "`assess` of a committee of three beside the time to score its contexts alone. What it adds is about 10 ms",
            "for linear policies, whatever the contexts, and latents of 400 contexts for the others.",
        ),
        "",
        "| contexts | policy | number | score, ms | assess, ms | ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {row['case']} | {row['policy']} | {row['contexts']:,} | {row['score_ms']:,.1f} | "
            f"{row['assess_ms']:,.1f} | {row['ratio']:.2f} |"
            for row in record["rows"]
        ),
        "",
        paragraph(f"Measured at commit {record['commit']}; {record['machine']}."),
    ]


def trust_figure(record: Record) -> str:
    """Estimated against true accuracy, as SVG."""
    policies = record["policies"]
    families = sorted({one["family"] for one in policies})
    side, left, top = 400, 50, 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + side + 150} {top + side + 50}" '
        'font-family="sans-serif" font-size="12" role="img" '
        'aria-label="Estimated against true target accuracy of every policy; points near the diagonal are right">',
        f'<rect width="{left + side + 150}" height="{top + side + 50}" fill="#ffffff"/>',
        f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="none" stroke="#888888"/>',
        f'<line x1="{left}" y1="{top + side}" x2="{left + side}" y2="{top}" stroke="#888888" stroke-dasharray="4 3"/>',
    ]
    for tick in range(6):
        share = tick / 5
        x, y = left + share * side, top + (1 - share) * side
        parts.append(f'<text x="{x:.0f}" y="{top + side + 16}" text-anchor="middle">{share:.1f}</text>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{share:.1f}</text>')
    parts.append(
        f'<text x="{left + side / 2:.0f}" y="{top + side + 38}" text-anchor="middle">estimated accuracy</text>'
    )
    parts.append(
        f'<text transform="translate(14 {top + side / 2:.0f}) rotate(-90)" text-anchor="middle">true accuracy</text>'
    )
    for index, name in enumerate(families):
        colour = COLOURS[index % len(COLOURS)]
        points = "".join(
            f'<circle cx="{left + one["estimated"] * side:.1f}" cy="{top + (1 - one["true"]) * side:.1f}" r="2.2"/>'
            for one in policies
            if one["family"] == name
        )
        parts.append(f'<g fill="{colour}" fill-opacity="0.55">{points}</g>')
        y = top + 14 + 18 * index
        parts.append(f'<circle cx="{left + side + 16}" cy="{y - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + side + 26}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _kind(variant: str) -> str:
    if "linucb-p" in variant or variant == "linucb":
        return "linear"
    if "nlinucb" in variant:
        return "Neural-LinUCB"
    return "DABand, collapsed" if "collapsed" in variant else "DABand"


def _column(policies: Sequence[Record], name: str) -> np.ndarray:
    return np.array([one[name] for one in policies], np.float64)


def _macro(values: np.ndarray, family: np.ndarray, families: Sequence[str]) -> float:
    return float(np.mean([values[family == name].mean() for name in families]))


def _n(value: float, digits: int = 3) -> str:
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.startswith("0.") else text
