from __future__ import annotations

from dataclasses import asdict, replace

from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from guda.files import read_json, write_json
from guda.run.run import Run
from guda.scoring.settings import Settings, candidates, seconds_per_block

FILE = "probe.json"


def run_settings(run: Run) -> Settings:
    """What this run scores with; a GPU's settings come from the probe."""
    wanted = Settings(run.recipe.scoring.block)
    if not run.has(FILE):
        return wanted
    found = read_json(run.path(FILE))
    try:
        stored, asked = Settings(**found["settings"]), int(found["asked_block"])
    except (KeyError, TypeError, ValueError):
        raise GudaError("probe-damaged", f"{run.path(FILE)} is damaged; delete it and score again") from None
    # another block in the recipe is another question; the probe answers the one it was asked
    return stored if asked == wanted.block else replace(stored, block=wanted.block)


def keep(run: Run, settings: Settings, seconds: dict[str, float] | None = None) -> None:
    write_json(
        run.path(FILE),
        {"settings": asdict(settings), "asked_block": run.recipe.scoring.block, "seconds_per_block": seconds or {}},
    )


def halve_block(run: Run) -> Settings:
    """After an OutOfMemory: the same settings with half the block, kept."""
    now = run_settings(run)
    if now.block == 1:
        raise GudaError("image-out-of-memory", "even one image does not fit into memory; use a machine with more")
    smaller = replace(now, block=now.block // 2)
    keep(run, smaller)
    return smaller


def probe(run: Run, denoiser: Denoiser) -> Settings:
    """Time the candidates on this device and keep the fastest; on the CPU there is one, and nothing is written."""
    device = denoiser.device.type
    if device == "cpu" or run.has(FILE):
        return run_settings(run)
    timed = {s: seconds_per_block(denoiser.clone(), s) for s in candidates(run.recipe.scoring.block, device)}
    best = min(timed, key=lambda s: timed[s])
    keep(run, best, {s.key: v for s, v in timed.items()})
    return best
