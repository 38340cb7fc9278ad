"""The size of the house: what a reader walks through, and how much memory `guda.attribute` takes.

    python benchmarks/house.py --label after [--src FOLDER] [--walk-only]

Writes walk_functions, walk_files (of `guda score RUN --method retrack`; tools/walk.py), walk_fit_functions,
walk_fit_files, src_lines, src_files and attribute_peak_mb to benchmarks/results/house.json, each with the suffix
.before or .after; the figures of the other label stay. attribute_peak_mb is the peak resident memory of a process that
calls `guda.attribute` by the default plan on 2,048 random pictures of 3x32x32 and three groups.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "house.json"
PICTURES = 2048


def attribute() -> None:
    """In a process of its own: attribute, and print the peak."""
    import numpy as np
    import torch
    from diffusers import DDPMScheduler, UNet2DModel

    import guda

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    net = UNet2DModel(
        sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, norm_num_groups=2,
        block_out_channels=(4, 8), down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip
    model = guda.Denoiser.from_module(net, DDPMScheduler())
    images = rng.integers(0, 256, (48, 3, 32, 32), dtype=np.uint8)
    data = guda.ImageData.from_arrays(images, [str(i % 3) for i in range(len(images))], layout="NCHW")
    pictures = rng.integers(0, 256, (PICTURES, 3, 32, 32), dtype=np.uint8)
    queries = guda.Queries.from_arrays(pictures, layout="NCHW")
    bank = guda.unlearn(model, data, operator="retain", steps=2, batch_retain=8)
    scores = guda.attribute(model, bank, queries)
    assert scores.score.shape == (PICTURES, 3)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    weights = sum(p.numel() for p in net.parameters())
    print(json.dumps({"attribute_peak_mb": kilobytes * 1024 / 1e6, "weights": weights}))


def run(src: Path, *program: str) -> dict[str, float]:
    """A Python program on the code under `src`; what it prints last, as JSON."""
    env = os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    out = subprocess.run([sys.executable, *program], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", choices=("before", "after"), default="after")
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the code to measure")
    parser.add_argument("--walk-only", action="store_true", help="keep the figure of memory, which takes minutes")
    parser.add_argument("--attribute", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attribute:
        return attribute()
    from guda.evaluation.results import DatasetEntry, read_results, write_results

    src = given.src.resolve()
    figures = run(src, str(ROOT / "tools" / "walk.py"), "--src", str(src), "--json")
    old = read_results(RESULTS).datasets["house"] if RESULTS.is_file() else None
    kept, note = (old.figures, old.note) if old else ({}, "")
    if not given.walk_only:
        memory = run(src, __file__, "--attribute")
        figures["attribute_peak_mb"] = round(memory["attribute_peak_mb"], 1)
        note = (
            f"attribute: a UNet2DModel of {memory['weights']:,.0f} random weights, 3x32x32 pictures, the default plan"
        )
    now = {f"{name}.{given.label}": float(value) for name, value in figures.items()}
    entry = DatasetEntry(
        n_queries=PICTURES, seeds=[], ceiling=None, methods={}, figures=dict(sorted((kept | now).items())), n_groups=3,
        note=note,
    )  # fmt: skip
    write_results(RESULTS, "python benchmarks/house.py --label before|after --src FOLDER", {"house": entry})
    for name, value in now.items():
        print(f"{name:28} {value:,.1f}")


if __name__ == "__main__":
    main()
