"""The prompts of a run: build them once, look at them, and see what anchors would be drawn."""

from __future__ import annotations

from typing import Any

from guda.data.captioners import vocabularies
from guda.data.prompts import Prompts, build_prompts
from guda.data.text import text_encoder
from guda.diffusion.noise import generator
from guda.errors import GudaError, Mismatch
from guda.run.data import PROMPTS, load_data, load_prompts
from guda.run.run import Run
from guda.unlearning.anchors import AnchorsConfig, Strategy, make_anchor


def prompts_build(run: Run) -> dict[str, Any]:
    """Describe the styles and write every prompt; the same again changes nothing, others are refused."""
    config = run.recipe.prompts
    if config is None:
        raise GudaError(
            "prompts-section-missing",
            f"the recipe of {run.root} has no prompts section; make a run from a recipe that has one",
        )
    data = load_data(run)
    ranked = vocabularies(data, config)
    prompts, path = build_prompts(data, config, ranked.vocabularies, ranked.dropped), run.path(*PROMPTS)
    new = not path.is_file()
    if not new and (old := Prompts.load(path, data.digest)).digest != prompts.digest:
        raise Mismatch(
            "prompts-conflict", f"{path} holds other prompts: digest", old.digest, prompts.digest,
            "models of this run may have been trained with them; use another run folder, or delete it if none were",
        )  # fmt: skip
    run.note("prompts_digest", prompts.digest)  # deleting the file does not make other prompts welcome
    if new:
        prompts.save(path)
    return {
        "run": str(run.root), "file": str(path), "built": new, "digest": prompts.digest,
        "training": len(prompts.training), "evaluation": len(prompts.evaluation),
        "vocabularies": {s: list(words) for s, words in prompts.vocabularies.items()}, "dropped": prompts.dropped,
    }  # fmt: skip


def prompts_show(
    run: Run, examples: int = 1, forget: str | None = None, config: AnchorsConfig | None = None
) -> dict[str, Any]:
    """Vocabularies, `examples` training and evaluation prompts per style, and anchors of a style to forget.

    Example images are drawn by the seed of the prompts: the same are shown every time.
    """
    prompts, data = load_prompts(run), load_data(run)
    assert run.recipe.prompts is not None
    assert data.contents is not None
    seed = run.recipe.prompts.seed
    rows = []
    for style in data.groups.leaf_names:
        members = data.groups.members(data.groups.index(style))
        members = generator(seed, "shown prompts", style).permutation(members)[:examples]
        rows += [
            {"style": style, "object": data.contents[i], "training": prompts.training[i],
             "evaluation": prompts.evaluation[style, data.contents[i]]}
            for i in members
        ]  # fmt: skip
    value: dict[str, Any] = {
        "run": str(run.root), "digest": prompts.digest, "dropped": prompts.dropped, "examples": rows,
        "vocabularies": {s: list(words) for s, words in prompts.vocabularies.items()},
    }  # fmt: skip
    if forget is not None:
        data.groups.index(forget)  # refuses an unknown one
        shown = [r["training"] for r in rows if r["style"] == forget]
        value["anchors"] = _anchors(prompts, forget, shown, seed, config or AnchorsConfig())  # type: ignore[call-arg]
    return value


def _anchors(prompts: Prompts, forget: str, shown: list[str], seed: int, config: AnchorsConfig) -> list[dict[str, Any]]:
    retain = [s for s in prompts.vocabularies if s != forget]
    out = []
    embed = text_encoder(config.encoder)
    strategies: tuple[Strategy, ...] = ("weighted", "uniform", "removed")
    for strategy in strategies:
        anchor = make_anchor(strategy, prompts.vocabularies, forget, retain, embed, config, prompts.objects)
        out += [
            {"strategy": strategy, "forget": p, "anchor": anchor.draw(p, (seed, "shown anchors")),
             "probabilities": anchor.probabilities(p)}
            for p in shown
        ]  # fmt: skip
    return out
