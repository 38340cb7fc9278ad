"""Whether the run's model is trained enough (scoring/trained.py), measured once and kept in RUN/trained.json.

Only of unconditional models: what a prompt says about a picture is not in the optimal denoiser of all images. Of other
models nothing is claimed.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from pydantic import ValidationError

from guda.config import Config
from guda.diffusion import distributed
from guda.diffusion.noise import generator
from guda.diffusion.schedule import FlowSchedule
from guda.errors import GudaError, NotFinite
from guda.files import digest, read_json, write_json
from guda.methods.origin import own_samples
from guda.run.data import load_data
from guda.run.models import cached_latents, has_model, load_model, model_digest
from guda.run.run import Run
from guda.scoring.trained import IMAGES, PICTURES, Trained, how_trained

FILE = "trained.json"


class _Kept(Config):
    of: str  # digest of model, data and samples
    found: Trained


def trained(run: Run) -> Trained | None:
    """None where there is no model yet, or none that can be asked."""
    if run.recipe.prompts is not None or not has_model(run):
        return None
    model = load_model(run, "base")
    if model.conditional or isinstance(model.schedule, FlowSchedule):
        return None
    data, samples = load_data(run), own_samples(run)
    of = digest([model_digest(run, "base"), data.digest, None if samples is None else samples.digest])
    path = run.path(FILE)
    try:
        if path.is_file() and (kept := _Kept.model_validate(read_json(path))).of == of:
            return kept.found
    except (GudaError, ValidationError):
        pass  # damaged: it is only a cache
    x0 = cached_latents(run, model, data).x0.float().cpu()
    some = np.sort(generator("trained", data.digest).permutation(len(x0))[:IMAGES])
    own = generator("trained", len(some)).permutation(len(some))[:PICTURES]
    drawn = None if samples is None else model.encode(samples.images[:PICTURES]).float().cpu()
    try:
        found = how_trained(model, x0[some], own, drawn, run.recipe.scoring.block)
    except NotFinite:
        return None  # scoring refuses such a network by itself
    if not distributed.is_main():
        return found
    with suppress(OSError, GudaError):  # a folder that cannot be written to has its answer all the same
        write_json(path, _Kept(of=of, found=found).model_dump(mode="json"))
    return found
