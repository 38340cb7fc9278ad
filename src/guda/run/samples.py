"""The query set defined by the recipe: samples of the run's own model, drawn in resumable blocks.

Unconditional models: `n` ancestral samples; class-conditional ones: `n` of the classes in turn. Text-to-image models:
one picture of every chosen object in every style that is asked about, by its evaluation prompt.
"""

from __future__ import annotations

from guda.config import QueriesConfig
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.diffusion.sampling import BLOCK, generate, sample, sample_id
from guda.errors import GudaError
from guda.files import digest
from guda.run.data import load_data, load_prompts, prompt_files, scored_groups
from guda.run.models import load_model, model_digest, model_files, run_classes, run_schedule
from guda.run.parts import Shard, Sharded
from guda.run.run import Run
from guda.run.task import Task, tick

TEXT_BLOCK = 16  # guidance doubles it, and these networks are large

TEXT_STEPS = 50


def set_name(run: Run, config: QueriesConfig) -> str:
    """Says what is in it, so that another recipe's samples are another set."""
    steps = f"-t{config.steps}" if config.steps else ""
    if run.recipe.prompts is None:
        return f"samples-s{config.seed}-n{config.n}{steps}"
    groups = "" if run.recipe.scoring.groups is None else f"-{digest(list(scored_groups(run)), 6)}"
    # which objects are left out depends on the recipe's own queries, and those may be edited
    others = "" if config.seed == run.recipe.queries.seed else f"-{digest(_objects(run, config), 6)}"
    return f"prompts-s{config.seed}-o{config.objects or 'all'}-g{config.guidance:g}{steps}{groups}{others}"


def _objects(run: Run, config: QueriesConfig) -> list[str]:
    """What the pictures show, the same for all styles. Under another seed the objects of the recipe's own queries are
    left out where enough others are there: settings are chosen on other prompts."""
    contents = load_data(run).contents
    if contents is None:
        raise GudaError(
            "contents-missing", f"{run.root}: the images have no contents, so there are no evaluation prompts"
        )
    names = sorted(set(contents))
    if config.objects is None:
        return names
    if config.objects > len(names):
        raise GudaError(
            "contents-too-few", f"queries.objects = {config.objects}, but the images show {len(names)} objects"
        )
    own = run.recipe.queries
    reported = set() if config.seed == own.seed else set(_drawn(names, own.seed, own.objects or len(names)))
    others = [name for name in names if name not in reported]
    return _drawn(others if len(others) >= config.objects else names, config.seed, config.objects)


def _asked(run: Run, config: QueriesConfig) -> list[tuple[str, str]]:
    """(style, object) of every picture."""
    data, names = load_data(run), _objects(run, config)
    there = {
        (data.groups.names[k], content) for k, content in zip(data.groups.labels, data.contents or (), strict=True)
    }
    if len({_slug(name) for name in names}) < len(names):
        raise GudaError(
            "objects-ambiguous", "two objects have names that differ by spaces and dashes only; rename one of them"
        )
    return [(style, name) for style in scored_groups(run) for name in names if (style, name) in there]


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _drawn(names: list[str], seed: int, n: int) -> list[str]:
    return sorted(generator(seed, "objects").permutation(names)[:n].tolist())


def prompt_list(run: Run, config: QueriesConfig) -> list[tuple[str, str]]:
    """(id, evaluation prompt) of every picture."""
    found = load_prompts(run).evaluation
    return [(f"{_slug(style)}/{_slug(name)}", found[style, name]) for style, name in _asked(run, config)]


def asked_classes(run: Run, indices: range) -> list[str] | None:
    """The class that each sample of a class-conditional model is drawn of, by its index; None for other models."""
    if (found := run_classes(run)) is None:
        return None
    groups = load_data(run).groups
    scored = {c for name in scored_groups(run) for c in found.of_group(groups, name)}
    every = sorted(scored, key=int)
    return [every[i % len(every)] for i in indices]


def _block(run: Run) -> int:
    return BLOCK if run.recipe.prompts is None else TEXT_BLOCK


def query_count(run: Run, config: QueriesConfig) -> int:
    """How many pictures the recipe draws."""
    return config.n if run.recipe.prompts is None else len(_asked(run, config))


def _drawn_blocks(run: Run, config: QueriesConfig) -> Sharded:
    """`images`: uint8 [block, C, H, W]."""
    # n is not part of the name: more samples keep those drawn
    name = f"samples-{digest([config.seed, config.steps, BLOCK], 8)}"
    if run.recipe.prompts is not None:
        name = set_name(run, config)
    size = _block(run)
    numbers = range(-(-query_count(run, config) // size))
    shards = [Shard(i, f"{i:05d}", f"block {i}", i * size, (i + 1) * size) for i in numbers]
    return Sharded(run, f"artifacts/{name}/*.safetensors", shards)


def average_name(run: Run) -> str:
    """The recipe's own samples as what scores are compared with: the set that `guda sample` makes, where it was run,
    else a set that is not asked about, so that scoring a picture does not change which set is the default."""
    own = set_name(run, run.recipe.queries)
    return own if run.has(f"queries/{own}/index.json") else f"average-{own}"


def has_samples(run: Run, config: QueriesConfig) -> bool:
    """Whether they are drawn, under either name."""
    name = set_name(run, config)
    return any(run.has(f"queries/{prefix}{name}/index.json") for prefix in ("", "average-"))


def sample_tasks(run: Run, config: QueriesConfig) -> list[Task]:
    if has_samples(run, config):
        return []
    told = run.recipe.prompts is not None
    steps = config.steps or (TEXT_STEPS if told else run_schedule(run).T)
    return _drawn_blocks(run, config).tasks(
        f"sample {set_name(run, config)}, {{}}", "sample", "guda.run.samples:sample_block",
        {"config": config.model_dump(mode="json")}, model_files(run, "base") + prompt_files(run),
        evals=steps * (2 if told else 1),
    )  # fmt: skip


def sample_block(run: Run, config: dict[str, object], shard: int) -> None:
    import torch

    asked, model, block = QueriesConfig.model_validate(config), load_model(run, "base"), _block(run)
    made = _drawn_blocks(run, asked)
    here = range(made.shards[shard].start, made.shards[shard].stop)
    if run.recipe.prompts is None:
        images = sample(
            model, here, seed=asked.seed, steps=asked.steps, block=block, prompts=asked_classes(run, here), tick=tick
        )
    else:
        prompts = [prompt for _, prompt in prompt_list(run, asked)[here.start : here.stop]]
        images = generate(
            model, prompts, seed=asked.seed, steps=asked.steps or TEXT_STEPS, guidance=asked.guidance, block=block,
            tick=tick,
        )  # fmt: skip
    made.write(shard, {"images": torch.from_numpy(images)}, {"model": model_digest(run, "base")})


def collect_samples(run: Run, config: QueriesConfig, name: str | None = None) -> str:
    """Publish the drawn blocks as a query set of the run; returns its name."""
    name = name or set_name(run, config)
    if not run.has(f"queries/{name}/index.json"):
        count = query_count(run, config)
        images = _drawn_blocks(run, config).concat("images")[:count]
        if run.recipe.prompts is None:
            classes = asked_classes(run, range(count))
            ids, prompts = (
                tuple(sample_id(config.seed, i) for i in range(count)),
                None if classes is None else tuple(classes),
            )
        else:
            ids, prompts = (tuple(column) for column in zip(*prompt_list(run, config), strict=True))
        Queries(ids, images, prompts, name).save(run.path("queries", name))
    return name
