"""A run folder with made-up scores: as many pictures as wanted, no training, every kind of answer among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.scores import Scores

SET = "samples"
METHODS = ("logo", "retrack", "similarity-pixel")


def synthetic_run(root: Path, n: int = 30, groups: int = 10, side: int = 16, channels: int = 3, seed: int = 0) -> Run:
    """Noise pictures (they do not compress: the worst case for size). Of every three pictures one has a first group
    that stands out, one has two groups that are not separated, one has no interval above zero."""
    rng = np.random.default_rng(seed)
    labels = [f"style {g}" for g in range(groups) for _ in range(4)]
    images = rng.integers(0, 256, (len(labels), channels, side, side), np.uint8)
    data = ImageData.from_arrays(images, labels, layout="NCHW")
    data.save(root / "data")
    pictures = rng.integers(0, 256, (n, channels, side, side), np.uint8)
    queries = Queries.from_arrays(pictures, ids=[f"picture-{i:04d}" for i in range(n)], name=SET, layout="NCHW")
    queries.save(root / "queries" / SET)
    recipe = Recipe.model_validate(
        {
            "name": "synthetic", "data": {"source": "arrays"}, "model": {"scheduler": "squaredcos_cap_v2:1000"},
            "training": {"steps": 1}, "methods": {m: {} for m in METHODS},
        }
    )  # fmt: skip
    sizes = dict(zip(data.groups.names, data.groups.sizes, strict=True))
    run = Run.create(root, recipe, {"data_digest": data.digest, "groups": sizes, "model": None})
    for method in METHODS:
        score = rng.normal(0, 1, (n, groups))
        for q in range(n):
            first, second = rng.choice(groups, 2, replace=False)
            if q % 3 == 0:
                score[q, first] = rng.uniform(20, 60)
            elif q % 3 == 1:
                score[q, [first, second]] = rng.uniform(20, 21, 2)
        told = {"unit": "cosine"} if method == "similarity-pixel" else {"unit": "nats"}
        more = {} if told["unit"] == "cosine" else {"stderr": score * 0 + 2, "lo": score - 4, "hi": score + 4}
        scores = Scores(method, told["unit"], "made up", queries.ids, data.groups.names, score, 240, **more)
        scores.write(run.path("scores", SET, f"{method}.parquet"))
    return run
