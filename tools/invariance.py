"""What users change and results must not: torch threads, block size, the Python interpreter.

    python tools/invariance.py [--write]

Measures the terms of a small random U-Net on 8 pictures with 1 and 2 threads and several block sizes, and prints their
largest relative difference and one digest of the terms with one thread. Run under another interpreter with the same
torch, the digest must be the same.
"""

from __future__ import annotations

import argparse
import json
import platform

from warm import TOOLS  # first: it sets the threads and the path  # noqa: F401


def terms(threads: int, block: int) -> object:
    """float64 [8, 6]: squared errors, one round."""
    import numpy as np
    import torch
    from diffusers import DDPMScheduler, UNet2DModel

    from guda.diffusion.denoiser import Denoiser
    from guda.scoring.plan import stratified
    from guda.scoring.terms import make_draws, squared_errors

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = UNet2DModel(
        sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, norm_num_groups=8, attention_head_dim=8,
        block_out_channels=(32, 64), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip
    model = Denoiser.from_module(net, DDPMScheduler())
    x0 = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (8, 3, 32, 32)).astype(np.float32))
    plan = stratified(model.schedule, 6, 0)
    return squared_errors(model, make_draws(model, x0, [f"q{i}" for i in range(len(x0))], plan, 0), block)


def main() -> None:
    import numpy as np

    from guda.files import digest_arrays

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results/hardening.json")
    given = parser.parse_args()
    one = np.asarray(terms(1, 16))
    others = {(threads, block): np.asarray(terms(threads, block)) for threads in (1, 2) for block in (4, 16, 64)}
    apart = {key: float((abs(found - one) / one).max()) for key, found in others.items()}
    figures = {
        "threads_relative_difference": max(v for (threads, _), v in apart.items() if threads == 2),
        "block_relative_difference": max(v for (threads, _), v in apart.items() if threads == 1),
        "same_threads_differences": float(digest_arrays(one) != digest_arrays(others[1, 16])),
        "same_two_threads_differences": float(digest_arrays(others[2, 16]) != digest_arrays(np.asarray(terms(2, 16)))),
    }
    print(json.dumps({"python": platform.python_version(), "digest": digest_arrays(one)[:16]} | figures))
    if given.write:
        from hardening import record

        record("invariance", figures, f"python tools/invariance.py --write; terms {digest_arrays(one)[:16]}")


if __name__ == "__main__":
    main()
