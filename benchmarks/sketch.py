"""What a sketch costs beside a dense Gaussian projection of the same dimension, and what memory features take.

    .venv/bin/python benchmarks/sketch.py        # two minutes on one core

One block of 16 gradients of two networks (p >= 1 M), k = 4,096, one thread, both sides in one process, the fastest of
several tries each, in processor time, so that other work on the machine matters less:

sketch_speedup               the projection alone: the Gaussian matrix is there for free, which it cannot be (p k
                             numbers are 35 GB), and the sketch's places are drawn before
sketch_speedup_with_drawing  what is drawn is drawn within the block, on both sides (a sketch keeps its places after)
featurise_speedup            gradients at 10 timesteps and projection, as the methods run: Gaussian drawn, places kept

each the smaller of the two networks'. The Gaussian side is timed on PART of the coordinates and scaled to p; its work
is linear in them. peak_mb_n<n> is how far the resident set rose above where it stood before, in a process of its own,
while n images were made into features by the shard and written, as the methods do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from guda.baselines.features import ROWS, FeatureConfig, Featuriser, Sketch, make_sketch
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.mlp import ResidualMLP
from guda.diffusion.loading import make_scheduler
from guda.files import write_tensors
from guda.run.parts import SHARD

BLOCK, DIM, TRIES = 16, 4096, 5
PART = 32 * ROWS  # coordinates the Gaussian side is timed on
IMAGES = (64, 256, 1024)
CONFIG = FeatureConfig(dim=DIM, block=BLOCK)


def mlp() -> Denoiser:
    """2.1 M weights on 14x14 pixels."""
    torch.manual_seed(0)
    net = ResidualMLP(sample_size=14, width=512, depth=3)
    torch.nn.init.normal_(net.out.weight, std=0.1)
    return Denoiser.from_module(net, make_scheduler("linear:1000"))


def unet() -> Denoiser:
    """1.6 M weights on 16x16 pixels, with attention."""
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    net = UNet2DModel(
        sample_size=16, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(48, 96),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )  # fmt: skip
    return Denoiser.from_module(net, make_scheduler("linear:1000"))


NETWORKS: dict[str, Callable[[], Denoiser]] = {"mlp": mlp, "unet": unet}


def best(work: Callable[[], object], tries: int = TRIES) -> float:
    """Seconds of the fastest try, after one that does not count."""
    work()
    found = []
    for _ in range(tries):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


# ---- speed ---------------------------------------------------------------------------------------------------------


def sparse_seconds(sizes: dict[str, int]) -> tuple[float, float]:
    """A block through the sketch, its places known; and with drawing them."""
    values = {name: torch.randn(BLOCK, n) for name, n in sizes.items()}

    def work(sketch: Sketch | None = None) -> None:
        sketch = sketch or make_sketch("countsketch", sizes, DIM, 0)
        out = sketch.zeros(BLOCK)
        for name, part in values.items():
            sketch.add(out, name, part)

    kept = make_sketch("countsketch", sizes, DIM, 0)
    return best(lambda: work(kept)), best(work, 3)


def gaussian_seconds(p: int) -> tuple[float, float]:
    """The same by a dense matrix, of p coordinates: multiplication alone; and with drawing."""
    values = torch.randn(BLOCK, PART)
    matrices = [torch.randn(ROWS, DIM) for _ in range(8)]  # 128 MB: no cache holds them
    sketch = make_sketch("gaussian", {"w": PART}, DIM, 0)
    out = sketch.zeros(BLOCK)

    def multiply() -> None:
        for i, first in enumerate(range(0, PART, ROWS)):
            out.add_(values[:, first : first + ROWS] @ matrices[i % len(matrices)], alpha=DIM**-0.5)

    scale = p / PART
    return best(multiply) * scale, best(lambda: sketch.add(out, "w", values), 2) * scale


def speed(denoiser: Denoiser) -> dict[str, float]:
    features = Featuriser(denoiser, CONFIG, model="benchmark")
    sizes = features.gradients.sizes
    p = sum(sizes.values())
    x0, ids = torch.randn(BLOCK, *denoiser.shape).clamp(-1, 1), [str(i) for i in range(BLOCK)]
    sparse, sparse_drawn = sparse_seconds(sizes)
    dense, dense_drawn = gaussian_seconds(p)
    whole = best(lambda: features(x0, ids, "train"), 3)
    return {
        "weights": float(p),
        "sketch_ms": 1e3 * sparse / BLOCK,
        "gaussian_ms": 1e3 * dense / BLOCK,
        "gaussian_with_drawing_ms": 1e3 * dense_drawn / BLOCK,
        "featurise_ms": 1e3 * whole / BLOCK,
        "sketch_speedup": dense / sparse,
        "sketch_speedup_with_drawing": dense_drawn / sparse_drawn,
        "featurise_speedup": (whole - sparse + dense_drawn) / whole,
    }


# ---- memory --------------------------------------------------------------------------------------------------------


def resident(field: str) -> float:
    """MB of this process: VmRSS now, VmHWM at most. Linux; ru_maxrss would start at the parent's."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1]) / 1024


def rise(n: int) -> float:
    """MB that making features of n images adds to the process."""
    features = Featuriser(mlp(), CONFIG, model="benchmark")
    x0 = torch.randn(n, *features.denoiser.shape).clamp(-1, 1)
    before = resident("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, n, SHARD):
            here = x0[first : first + SHARD]
            found = features(here, [str(first + i) for i in range(len(here))], "train")
            write_tensors(Path(folder) / f"{first}.safetensors", {"features": found}, features.meta)
    return resident("VmHWM") - before


def memory() -> dict[str, float]:
    def measured(n: int) -> float:
        command = [sys.executable, __file__, "--rise", str(n)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])

    return {f"peak_mb_n{n}": measured(n) for n in IMAGES}


# ---- both ----------------------------------------------------------------------------------------------------------


def measure() -> dict[str, float]:
    """Everything above; of a ratio the smaller network's, and each network's under `sketch.<network>.`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        each = {name: speed(build()) for name, build in NETWORKS.items()}
    finally:
        torch.set_num_threads(threads)
    ratios = [name for name in each["mlp"] if name.endswith(("speedup", "speedup_with_drawing"))]
    found = {name: min(numbers[name] for numbers in each.values()) for name in ratios}
    found |= {f"sketch.{net}.{name}": value for net, numbers in each.items() for name, value in numbers.items()}
    return found | memory()


def main() -> None:
    if sys.argv[1:2] == ["--rise"]:
        torch.set_num_threads(1)
        print(rise(int(sys.argv[2])))
        return
    for name, value in measure().items():
        print(f"{name:40} {value:12,.1f}")


if __name__ == "__main__":
    main()
