"""A model card and a data sheet of a run, in the form the Hugging Face Hub expects, with the attribution summary.

    README.md       YAML front matter, what the model is, which groups shaped what it draws, how far to trust that
    DATASHEET.md    the training images: groups, sizes, what was left out, what only their owner can say

Only what the run's files hold is stated. Questions that no file answers (who made the images, under which licence, with
whose consent) are listed as open. Paths of this machine are not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from guda.evaluation.results import DatasetEntry, read_entry
from guda.files import write_text
from guda.methods.base import METHODS, get_method
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.models import architecture
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.fit import fitted_methods
from guda.steps.queries import choose_queries
from guda.steps.score import scored_methods, scores_path
from guda.table import human_count

CARD, SHEET = "README.md", "DATASHEET.md"

MOST = 30  # groups in a table

OPEN = (
    "Who made the images, and when?",
    "Under which licence or permission were they used?",
    "Were their makers asked, and can they withdraw?",
    "How were images assigned to groups, and by whom?",
    "What must the model not be used for?",
)


def write_card(run: Run, folder: str | Path | None = None, queries: str | None = None) -> dict[str, Path]:
    """Write both pages; default: into RUN/card. Returns their paths."""
    target = run.path("card") if folder is None else Path(folder).expanduser()
    made = {"card": target / CARD, "datasheet": target / SHEET}
    card, sheet = card_text(run, queries), datasheet_text(run)
    write_text(made["card"], card)
    write_text(made["datasheet"], sheet)
    return made


def card_text(run: Run, queries: str | None = None) -> str:
    data, model = load_data(run), architecture(run)
    conditional = model.frozen is not None
    front: dict[str, Any] = {
        "library_name": "diffusers",
        "pipeline_tag": "text-to-image" if conditional else "unconditional-image-generation",
        "tags": ["guda", "training-data-attribution", "diffusion"],
    }
    c, h, w = data.shape
    trained = "given" if run.recipe.model.path else "trained in this run"
    parts = [
        f"# {run.recipe.name}",
        f"A {model.kind} diffusion model ({human_count(model.n_parameters())} parameters, {trained}) of {w}x{h} images "
        f"with {c} channel{'s' if c > 1 else ''}. Its training images are in {len(data.groups)} groups; "
        "[guda](https://pypi.org/project/guda/) measured which of them shape what it draws. The training images are "
        f"described in [{SHEET}]({SHEET}).",
        *_training(run),
        *_attribution(run, queries),
        *_evaluation(run),
        "## How to ask about a picture",
        _how(run),
        "## What this does not say",
        "A score describes this model and this partition into groups. It is not a statement about intent, copying or "
        "merit, and an unlearned model is not certified deletion. Scores of groups do not add up. Larger groups tend "
        "to score higher.",
        "## Provenance",
        _table(["what", "digest or version"], _provenance(run)),
    ]
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n" + "\n\n".join(parts) + "\n"


def _training(run: Run) -> list[str]:
    config = run.recipe.training
    if config is None or run.recipe.model.path:
        return []
    rows = [(name, str(getattr(config, name))) for name in ("steps", "batch", "lr", "schedule", "ema", "seed")]
    return ["## Training", _table(["setting", "value"], rows)]


def _scored(run: Run, queries: str | None) -> tuple[str, str, Scores] | None:
    """(query set, method, scores) that the summary is about: the first method with intervals; None: nothing scored."""
    if not run.query_sets():
        return None
    name = choose_queries(run, queries)
    methods = [m for m in scored_methods(run, name) if not METHODS[m].oracle]
    methods.sort(key=lambda m: not METHODS[m].counterfactuals)
    if not methods:
        return None
    return name, methods[0], Scores.read(scores_path(run, name, methods[0]))


def _attribution(run: Run, queries: str | None) -> list[str]:
    found = _scored(run, queries)
    if found is None:
        return ["## Which groups shape its pictures", "Nothing was scored yet."]
    name, method, scores = found
    verdicts = list(scores.verdict().values())
    clear = Counter(v.groups[0] for v in verdicts if v.kind == "stands-out")
    first = Counter(scores.groups[g] for g in scores.rank.argmin(axis=1))
    kinds = Counter(v.kind for v in verdicts)
    order = sorted(scores.groups, key=lambda g: (-clear[g], -first[g], g))[:MOST]
    n = len(scores)
    rows = [(g, f"{clear[g]} ({clear[g] / n:.0%})", f"{first[g]} ({first[g] / n:.0%})") for g in order]
    more = [f"{len(scores.groups) - MOST} more groups are not shown."] if len(scores.groups) > MOST else []
    own = "drawn by the model itself" if name.startswith(("samples-", "prompts-")) else "given"
    return [
        "## Which groups shape its pictures",
        f"{load_queries(run, name).n} pictures ({own}), method `{method}`, {scores.estimand}. For "
        f"{kinds['stands-out']} of them one group stands out. "
        f"{scores.compared or 'These answers were not compared with retraining.'}",
        _table(["group", "stands out", "ranks first"], rows),
        *more,
    ]


def _evaluation(run: Run) -> list[str]:
    if not run.has("evaluation.json"):
        return [
            "## How far to trust it",
            "Not measured: the model was not retrained without its groups. Treat the table above as a hypothesis.",
        ]
    entry: DatasetEntry = read_entry(run.path("evaluation.json"))
    rows = []
    if entry.ceiling is not None:
        top = entry.ceiling["top1"]
        rows.append(("one retraining (ceiling)", f"{top.mean:.2f} [{top.lo:.2f}, {top.hi:.2f}]"))
    for name, method in entry.methods.items():
        if name != run.recipe.evaluation.against:
            top = method.metrics["top1"]
            rows.append((name, f"{top.mean:.2f} [{top.lo:.2f}, {top.hi:.2f}]"))
    return [
        "## How far to trust it",
        f"How often a method ranks the same group first as retraining without each group does, {entry.n_queries} "
        f"pictures, {len(entry.seeds)} retrainings, 95 % intervals:",
        _table(["method", "Top-1"], rows),
        entry.note or "",
    ]


def _how(run: Run) -> str:
    fitted = [m for m in fitted_methods(run) if getattr(get_method(run, m), "bankable", False) and METHODS[m].unlearns]
    if not fitted:
        return "No counterfactual models are published with it; `guda fit` makes them."
    return (
        "Where its bank of counterfactual models is published beside it (`guda push`), anyone can ask:\n\n"
        "    guda pull hf:OWNER/NAME bank/\n\n"
        "```python\nimport guda\n\n"
        'model = guda.Denoiser.from_pretrained("OWNER/NAME")\n'
        'scores = guda.attribute(model, guda.Bank.load("bank/"), "pictures/")\n```'
    )


def _provenance(run: Run) -> Iterable[tuple[str, str]]:
    yield "training images", f"`{run.info['data_digest']}`"
    for key in ("model", "start"):
        if run.info.get(key):
            yield {"model": "weights", "start": "pretrained start"}[key], f"`{run.info[key]}`"
    yield "noise schedule", f"`{run.info['schedule']}`"
    yield from ((f"{name} (when the run was made)", str(version)) for name, version in run.info["versions"].items())


def datasheet_text(run: Run) -> str:
    data = load_data(run)
    c, h, w = data.shape
    sizes = dict(zip(data.groups.names, data.groups.sizes, strict=True))
    config = run.recipe.data
    prepared = [f"resized and centre-cropped to {config.size} pixels" if config.size else "used in their own size"]
    prepared += [f"at most {config.limit_per_group} per group"] if config.limit_per_group else []
    left = Counter(data.left_out.values())
    rows = [(name, f"{n:,}", f"{n / data.n:.1%}") for name, n in list(sizes.items())[:MOST]]
    more = [f"{len(sizes) - MOST} more groups are not shown."] if len(sizes) > MOST else []
    parts = [
        f"# Data sheet: {data.name}",
        "## Composition",
        f"{data.n:,} images of {w}x{h} pixels, {'grey' if c == 1 else 'RGB'}, in {len(sizes)} groups"
        f"{'' if data.groups.disjoint else '; some images are in several groups'}.",
        _table(["group", "images", "share"], rows),
        *more,
        "## Preparation",
        f"Images were {', '.join(prepared)}."
        + (f" Left out: {', '.join(f'{n} ({code})' for code, n in left.items())}." if left else " None was left out."),
        f"Digest of pixels, names and groups: `{data.digest}`.",
        "## Open questions",
        "Nothing in the run answers these; please do before you publish:",
        "\n".join(f"- {question}" for question in OPEN),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(c.split()).replace("|", r"\|") for c in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])
