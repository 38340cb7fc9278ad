"""The execution settings of a run: RUN/probe.json, measured once on a GPU (see scoring/settings.py)."""

from __future__ import annotations

from dataclasses import asdict, replace

from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from guda.files import read_json, write_json
from guda.run.run import Run
from guda.scoring.settings import Settings, fastest

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
    smaller = run_settings(run).halved()
    keep(run, smaller)
    return smaller


def probe(run: Run, denoiser: Denoiser) -> Settings:
    """Time the candidates on this device and keep the fastest; on the CPU there is one, and nothing is written."""
    if denoiser.device.type == "cpu" or run.has(FILE):
        return run_settings(run)
    best, seconds = fastest(denoiser, run.recipe.scoring.block)
    keep(run, best, seconds)
    return best
