"""The findings page: what the benchmarks of this repository showed, with every figure read from benchmarks/results.

A sentence that compares is chosen by the intervals it rests on; a figure that is missing from its file is an error, so
the page cannot say what was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from results_pages import RESULTS

from guda.evaluation.intervals import Figure
from guda.evaluation.results import DatasetEntry, read_results
from guda.parsing import read_yaml
from guda.table import human_count

ESTIMANDS = {
    "elbo": "ELBO difference (the paper)",
    "elbo-excess": "the same, less the average picture",
    "path": "path divergence",
    "path-excess": "path, against the average picture",
}


class Results:
    """Files of benchmarks/results, read once; asking for what is not there is an error."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder, self._files = folder, dict[str, dict[str, DatasetEntry]]()

    def datasets(self, file: str) -> dict[str, DatasetEntry]:
        if file not in self._files:
            self._files[file] = read_results(self.folder / f"{file}.json").datasets
        return self._files[file]

    def figure(self, file: str, dataset: str, name: str) -> Figure:
        """A figure with its interval, under whichever names its script used for the ends."""
        values = self.datasets(file)[dataset].figures or {}
        mean = values.get(name, values.get(f"{name}.mean"))
        ends = [next((values[name + s + end] for s in "._" if name + s + end in values), None) for end in ("lo", "hi")]
        if mean is None or ends[0] is None or ends[1] is None:
            raise KeyError(f"{file}.json has no figure {name!r} of {dataset!r} with an interval")
        return Figure(mean=mean, lo=ends[0], hi=ends[1])

    def number(self, file: str, dataset: str, name: str) -> float:
        return (self.datasets(file)[dataset].figures or {})[name]

    def link(self, file: str) -> str:
        return f"[{file}.json](../benchmarks/results/{file}.json)"


def shown(f: Figure, digits: int = 2) -> str:
    return f"{f.mean:.{digits}f} [{f.lo:.{digits}f}, {f.hi:.{digits}f}]"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, aligned, *rows])


def findings_markdown(folder: Path = RESULTS) -> str:
    r = Results(folder)
    parts = [
        "# What we found",
        "Generated from the files of `benchmarks/results/` by `tools/site/findings.py`; no figure is typed by hand. "
        "Brackets are 95 % intervals over pictures, given the trainings there are (and over trainings where there are "
        "more than two). The ceiling is what one retraining reaches against the others. Models and images are small: "
        "nothing here was measured on Stable Diffusion, and nothing says that it carries over.",
        *_retrainings(r),
        *_constants(r),
        *_dtrak(r),
        *_small_groups(r),
        *_coalitions(r),
        *_calibration(r),
        *_cost(r),
        "## What was not measured",
        "Models of more than a few million parameters; images of more than 32 pixels; the paper's CIFAR-10 and "
        "UnlearnCanvas experiments at full size; several independent data sets of the same kind. Two LOGO seeds, which "
        "is what most tables have, say little about a third ([trust.md](trust.md)). Which settings were chosen on "
        "which pictures is in the file of each benchmark ([results](results/index.md)).",
    ]
    return "\n\n".join(parts) + "\n"


def _retrainings(r: Results) -> list[str]:
    rows, better = [], []
    for name, entry in r.datasets("path").items():
        chance = (entry.random or {})["top1"]
        for estimand, title in ESTIMANDS.items():
            top = r.figure("path", name, f"reliability_top1.{estimand}")
            rank = r.figure("path", name, f"reliability.{estimand}")
            rows.append([name, title, shown(top), f"{chance:.2f}", shown(rank)])
        paper, ours = (r.figure("path", name, f"reliability_top1.{e}") for e in ("elbo", "path-excess"))
        if ours.lo > paper.hi:
            better.append(f"{name} ({shown(paper)} to {shown(ours)})")
    told = f"The intervals do not overlap on {', '.join(better)}." if better else "The intervals overlap everywhere."
    return [
        "## What two retrainings agree on",
        "The same model is trained again without a group, from another seed, and both retrainings rank the groups of "
        "the same pictures. How often do they rank the same group first? A method with less noise than one retraining "
        "may agree with it more often than another retraining does; one that agrees much less often misses something.",
        table(["data set", "score", "same first group", "chance", "Spearman"], rows),
        f"Path divergence drops the part of the ELBO difference that is luck of one picture ([scoring.md](scoring.md#"
        f"path-divergence)). {told} Source: {r.link('path')}.",
    ]


def _constants(r: Results) -> list[str]:
    rows, constant = [], []
    for name in r.datasets("path"):
        for estimand, title in ESTIMANDS.items():
            real = r.figure("path", name, f"reliability.{estimand}")
            null = r.figure("path", name, f"reliability_null.{estimand}")
            rows.append([name, title, shown(real), shown(null), f"{real.mean - null.mean:+.2f}"])
            if real.lo <= null.hi:
                constant.append(f"{name} by {estimand}")
    told = f"This is so for {', '.join(constant)}." if constant else "This is nowhere so in this table."
    return [
        "## Where a ranking is a constant per group",
        "A score contains a constant of each group: removing some groups makes the model worse everywhere. Two "
        "retrainings can then agree in Spearman although neither says anything about the picture. The null is a table "
        "that knows only a picture's first group and the means of the groups. Where the agreement is not above it, the "
        f"order of the other groups is no information about the picture. {told}",
        table(["data set", "score", "Spearman of two retrainings", "null", "difference"], rows),
        f"So rank correlations are shown beside this null, and verdicts speak of the first group only. Source: "
        f"{r.link('path')}.",
    ]


def _dtrak(r: Results) -> list[str]:
    rows, told = [], []
    for name, entry in r.datasets("baselines").items():
        recipe = read_yaml(r.folder / f"baselines-{name}.recipe.yaml")
        settings = recipe["methods"].get("dtrak") or recipe.get("defaults", {}).get("dtrak") or {}
        chosen = settings.get("aggregate", "sum")
        assert entry.ceiling is not None
        rows.append([name, "one retraining (ceiling)", shown(entry.ceiling["top1"]), ""])
        for method, title in (("dtrak, as published", "D-TRAK, as published (sum)"), ("dtrak", f"D-TRAK, {chosen}"),
                              ("retrack", "unlearning (retrack)")):  # fmt: skip
            m = entry.methods[method]
            rows.append([name, title, shown(m.metrics["top1"]), shown((m.ratio_to_ceiling or {})["top1"])])
        apart = r.figure("baselines", name, "dtrak_minus_retrack")
        word = "is separated from" if apart.separated else "is not separated from"
        told.append(f"On {name} it {word} unlearning (Top-1 {apart.mean:+.3f} [{apart.lo:+.3f}, {apart.hi:+.3f}])")
    return [
        "## D-TRAK with exact removal",
        "D-TRAK sums influences of single images, which is the first order of removing a group. Removing the whole "
        "group from the ridge regression at once (`removal`) is exact for that regression "
        "([baselines.md](baselines.md)). How images are aggregated was chosen by tuning on other pictures; the table "
        "names what was chosen.",
        table(["data set", "method", "Top-1", "of ceiling"], rows),
        ". ".join(told) + ". It needs no counterfactual model; its scores are not in nats and have no intervals. "
        f"Source: {r.link('baselines')}.",
    ]


def _small_groups(r: Results) -> list[str]:
    fonts = r.datasets("fonts")["fonts-12"]
    digits = r.datasets("path")["digits-60"]
    assert fonts.ceiling is not None
    chance = [(e.random or {})["top1"] for e in (fonts, digits)]
    rows = [["fonts, 60 families", ESTIMANDS["elbo"], shown(fonts.ceiling["top1"]), f"{chance[0]:.2f}"]]
    for name, label, luck in (
        ("fonts", "fonts, a smaller network", chance[0]), ("digits-60", "digits in 60 groups", chance[1]),
    ):  # fmt: skip
        for estimand in ("elbo", "path-excess"):
            top = r.figure("path", name, f"reliability_top1.{estimand}")
            rows.append([label, ESTIMANDS[estimand], shown(top), f"{luck:.2f}"])
    alike = r.number("path", "digits-60", "systematic")
    wide = r.number("path", "digits", "systematic")
    best = r.figure("path", "digits-60", "reliability_top1.path-excess")
    verdict = (
        "above chance, and wrong more often than right" if best.lo > chance[1] and best.hi < 0.5 else "see the table"
    )
    return [
        "## Small groups",
        "Sixty groups of 1.7 % of the images each; twelve of them are asked about. Two retrainings, same first group:",
        table(["data set", "score", "same first group", "chance"], rows),
        f"With path divergence the answer on the digits is {verdict}. Of what one retraining changes on these "
        f"pictures, {alike:.0%} is common to several retrainings, and {r.number('path', 'fonts', 'systematic'):.0%} on "
        f"the fonts, against {wide:.0%} for the ten digits: the rest is noise of training, which no method can predict "
        f"from one model. Sources: {r.link('path')}, {r.link('fonts')}.",
    ]


def _coalitions(r: Results) -> list[str]:
    rows, told = [], []
    for name, entry in r.datasets("coalitions").items():
        values = entry.figures or {}
        lds = {k: v for k, v in values.items() if k.startswith("lds.") and k[-3:] not in (".lo", ".hi")}
        ceiling = r.figure("coalitions", name, "lds_ceiling")
        rows.append([name, "regression on one half of the models (ceiling)", shown(ceiling)])
        ordered = sorted(lds, key=lambda k: -lds[k])
        rows += [[name, k.removeprefix("lds."), shown(r.figure("coalitions", name, k))] for k in ordered]
        halves, logo = (r.figure("coalitions", name, f"reliability_{m}") for m in ("datamodel", "logo"))
        word = "more" if halves.lo > logo.hi else "less" if halves.hi < logo.lo else "not measurably more or less"
        trainings = r.number("coalitions", name, "trainings")
        told.append(
            f"On {name}, {trainings:.0f} models of halves are {word} reliable ({shown(halves)}) than LOGO with as many "
            f"trainings ({shown(logo)})."
        )
        if "share_correlation" in values:  # not of sixty groups
            shares = r.figure("coalitions", name, "share_correlation")
            told.append(f"The posterior's shares correlate {shown(shares)} with those of trained halves.")
    return [
        "## Random halves of the groups",
        "Models are trained on random halves of the groups ([coalitions.md](coalitions.md)). LDS: how well the sum of "
        "the scores of a half's groups ranks what the model of that half gives a picture. It asks about leaving many "
        "groups at once, so a method may be far from LOGO and close to this.",
        table(["data set", "method", "LDS"], rows),
        f"{' '.join(told)} Source: {r.link('coalitions')}.",
    ]


def _calibration(r: Results) -> list[str]:
    rows = []
    for name in ("digits", "fashion-mnist"):
        for method in ("retrack", "shift", "posterior", "hybrid"):
            held = r.figure("trust", name, f"answer_set_coverage.path-excess.{method}")
            size = r.figure("trust", name, f"answer_set_size.path-excess.{method}")
            right = r.figure("trust", name, f"stands_out_right.path-excess.{method}")
            rows.append([name, method, shown(held), shown(size, 1), shown(right)])
    caught = [r.figure("trust", name, "foreign_caught") for name in ("digits", "fashion-mnist")]
    false = [r.figure("trust", name, "foreign_false") for name in ("digits", "fashion-mnist")]
    return [
        "## Calibration",
        "Answer sets are meant to hold retraining's first group for 95 % of pictures; they are calibrated on pictures "
        "of "
        'their own. "Stands out" is the verdict without calibration: how often a retraining agrees with it.',
        table(["data set", "method", "answer set holds", "groups in it", "stands out: right"], rows),
        f"Pictures that the model does not make are recognised for {shown(caught[0])} (digits) and {shown(caught[1])} "
        f"(Fashion-MNIST) of them, at {shown(false[0])} and {shown(false[1])} false alarms. What each kind of picture "
        f"does: [trust.md](trust.md). Source: {r.link('trust')}.",
    ]


def _cost(r: Results) -> list[str]:
    rows = []
    for name, entry in r.datasets("baselines").items():
        logo = entry.methods["logo"]
        for method in ("logo", "retrack", "shift", "hybrid", "dtrak", "similarity-pixel"):
            m = entry.methods[method]
            fit, score = m.fit_evals or 0.0, m.score_evals or 0.0
            ratio = "" if method == "logo" or not fit else f"{(logo.fit_evals or 0.0) / fit:.0f}"
            cells = [human_count(fit) if fit else "none", ratio, human_count(score) if score else "none"]
            rows.append([name, method, shown(m.metrics["top1"]), *cells])
    # where no plan of path is as stable (fonts: both are at chance) there is no factor
    saved = [
        f"{r.number('path', name, 'evals_ratio_path'):.0f} on {name}"
        for name, entry in r.datasets("path").items()
        if "evals_ratio_path" in (entry.figures or {})
    ]
    return [
        "## Cost",
        "In evaluation units: forward of one image = 1, forward and backward = 3. LOGO's row is one retraining per "
        "group; its Top-1 is the ceiling.",
        table(["data set", "method", "Top-1", "fit, per group", "LOGO costs times", "score, per picture"], rows),
        f"Path divergence needs fewer draws for an equally stable first group than the ELBO difference, by a factor of "
        f"{', '.join(saved)}. Sources: {r.link('baselines')}, {r.link('path')}.",
    ]


if __name__ == "__main__":
    print(findings_markdown())
