"""The training images of a group that are nearest to a picture, in pixels and in the denoiser's own features.

RUN/artifacts/activations-<model>/<group>-<shard>.safetensors        activations of the group's images
RUN/artifacts/activations-<model>/nearest-<picture>-<group>.safetensors   the nearest in both spaces
"""

from __future__ import annotations

import numpy as np
import torch

from guda.data.queries import Queries
from guda.diffusion.activations import LEVELS, activations, inner_layer
from guda.files import digest, read_tensors
from guda.methods.terms import load_queries
from guda.parts import FolderParts
from guda.run.data import load_data, prompt_files
from guda.run.models import load_model, model_digest, model_files, training_inputs
from guda.run.parts import SHARD, Shard, Sharded
from guda.run.plan import run_settings
from guda.run.run import Run
from guda.run.task import Task, tick
from guda.scoring.neighbours import Neighbours, neighbours


def _folder(run: Run) -> str:
    return f"artifacts/activations-{digest([model_digest(run, 'base'), load_data(run).digest, LEVELS])}"


def _members(run: Run, group: str) -> np.ndarray:
    groups = load_data(run).groups
    return np.asarray(groups.members(groups.index(group)))


def _parts(run: Run, group: str) -> Sharded:
    n, number = len(_members(run, group)), load_data(run).groups.index(group)
    ranges = [(a, min(a + SHARD, n)) for a in range(0, n, SHARD)]
    shards = [Shard(i, f"{number:04d}-{i:05d}", f"{group} {a}..{b - 1}", a, b) for i, (a, b) in enumerate(ranges)]
    return Sharded(run, f"{_folder(run)}/*.safetensors", shards)


def _nearest(run: Run, picture: Queries, group: str) -> str:
    return f"{_folder(run)}/nearest-{picture.digest[:16]}-{load_data(run).groups.index(group):04d}.safetensors"


def neighbour_tasks(run: Run, queries: Queries, picture: str, group: str) -> list[Task]:
    parts, needs = _parts(run, group), model_files(run, "base") + prompt_files(run)
    near = _nearest(run, queries.subset([picture]), group)
    return [
        *parts.tasks(
            "activations of {}", "neighbours", "guda.methods.neighbours:make_activations", {"group": group}, needs,
            evals=len(LEVELS), bytes=4096,
        ),
        Task(
            name=f"nearest of {group} to {queries.name}/{picture}", stage="neighbours",
            fn="guda.methods.neighbours:find_neighbours",
            args={"queries": queries.name, "picture": picture, "group": group}, makes=(near,),
            needs=(*parts.files, *needs), cost=float(len(LEVELS)),
        ),
    ]  # fmt: skip


def make_activations(run: Run, group: str, shard: int) -> None:
    model, parts, members = load_model(run, "base"), _parts(run, group), _members(run, group)
    latents, prompts = training_inputs(run, model, False)
    chosen = members[parts.shards[shard].start : parts.shards[shard].stop]
    cond = model.condition(None if prompts is None else [prompts[i] for i in chosen])
    found = activations(model, latents.x0[chosen], cond, block=run_settings(run).block, tick=tick)
    parts.write(shard, {"activations": torch.from_numpy(found)})


def find_neighbours(run: Run, queries: str, picture: str, group: str) -> None:
    one, model, members = load_queries(run, queries).subset([picture]), load_model(run, "base"), _members(run, group)
    x0 = model.encode(one.images)
    latents, _ = training_inputs(run, model, False)
    mine = activations(model, x0, model.condition(one.prompts), block=run_settings(run).block)[0]
    found = [
        neighbours(x0[0].flatten().numpy(), latents.x0[members].flatten(1).numpy(), members, "pixels"),
        neighbours(mine, _parts(run, group).concat("activations"), members, "features"),
    ]
    content = {f"{f.space}.index": torch.from_numpy(f.index) for f in found}
    content |= {f"{f.space}.distance": torch.from_numpy(f.distance) for f in found}
    FolderParts(run.root).write(_nearest(run, one, group), content)


def read_neighbours(run: Run, queries: Queries, picture: str, group: str) -> list[Neighbours]:
    """In pixels (of a latent model: latents) first, then in features."""
    model = load_model(run, "base")
    names = {
        "pixels": "pixels" if model.frozen is None else "latents",
        "features": f"the model’s features ({inner_layer(model.module)[0]})",
    }
    content, _ = read_tensors(run.path(_nearest(run, queries.subset([picture]), group)))
    return [
        Neighbours(content[f"{k}.index"].numpy(), content[f"{k}.distance"].numpy(), space) for k, space in names.items()
    ]
