"""What a model draws while it is trained: a sheet of 16 pictures, now and then, as PNG.

    FOLDER/<model>-<step>.png

The pictures start from the same keyed noise every time, so sheets show the same pictures becoming better, and a
training that is interrupted writes identical files. They are drawn by a copy of the network with the weights that
would be scored (the EMA): nothing of the training is touched. 16 pictures of 25 steps cost as much as two or three
training steps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.sampling import ddim, initial_noise
from guda.files import atomic_path

SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)  # of the training

SHEET = 16  # pictures

STEPS = 25  # of each

SIDE = 64  # pixels that a picture has on the sheet at least


class Preview:
    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def due(self, step: int, steps: int) -> bool:
        return step in {max(1, round(share * steps)) for share in SHARES}

    def draw(self, model: Denoiser, step: int) -> Path:
        """`model`: a copy of the one that is trained."""
        from PIL import Image

        noise = initial_noise(model.shape, 0, range(SHEET))
        images = ddim(model, noise, steps=min(STEPS, model.schedule.T), block=SHEET)
        sheet, path = _sheet(images), self.folder / f"{self.name}-{step:08d}.png"
        with atomic_path(path) as tmp:
            Image.fromarray(sheet).save(tmp, format="PNG")
        return path


def _sheet(images: np.ndarray) -> np.ndarray:
    """uint8 [n, C, H, W] -> [4 H', 4 W'] or [4 H', 4 W', 3], enlarged by whole numbers."""
    n, c, h, w = images.shape
    side, scale = int(n**0.5), max(1, -(-SIDE // max(h, w)))
    grid = images.reshape(side, side, c, h, w).transpose(0, 3, 1, 4, 2).reshape(side * h, side * w, c)
    large = grid.repeat(scale, axis=0).repeat(scale, axis=1)
    return np.ascontiguousarray(large[..., 0] if c == 1 else large)
