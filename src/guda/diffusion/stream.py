"""The stream of training examples: which image, timestep, noise and flip come next, as a pure function of a seed.

Every epoch is one keyed permutation of ALL images; each place in it has its own keyed (t, eps, flip). Leaving a group
out deletes its places and changes nothing else, so two runs with the same key see the same images in the same order
with the same noise up to the left-out items: that is what coupling LOGO runs means. Deleted places move all later
images to other steps, though. An aligned run keeps the places and puts other images there, chosen by a key, with the
noise of the place: then two runs differ at no step by anything but these images.
Exposure matching: epoch e of the full model leaves out the images of one group, groups cycling through keyed
permutations; an image of several groups goes with the first of them (Groups.homes), so that all are shown as often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guda.data.groups import Groups
from guda.diffusion.noise import Key, generator
from guda.errors import GudaError

CHUNK = 256  # places whose noise is drawn together


@dataclass(frozen=True)
class Batch:
    index: np.ndarray  # int [B], into the training images
    t: np.ndarray  # int64 [B], 0..T-1
    eps: np.ndarray  # float32 [B, C, H, W]
    flip: np.ndarray  # bool [B]


class Stream:
    def __init__(
        self,
        key: Key,
        groups: Groups,
        shape: tuple[int, ...],
        T: int,
        *,
        leave_out: int | None = None,
        exposure_matched: bool = False,
        aligned: bool = False,
    ) -> None:
        self.key, self.groups, self.shape, self.T = tuple(key), groups, shape, T
        self.leave_out, self.exposure_matched, self.aligned = leave_out, exposure_matched, aligned
        self.n = groups.n_images
        self._homes = np.unique(groups.homes)
        self.seek(0, 0)

    def seek(self, epoch: int, place: int) -> None:
        """Go to a place; with `cursor` this is all the state there is."""
        self._epoch, self._place = epoch, place
        self._open()

    @property
    def cursor(self) -> tuple[int, int]:
        return self._epoch, self._place

    def left_out(self, epoch: int) -> int | None:
        """The group that this epoch does not show, or whose images (by their homes) it does not."""
        if self.leave_out is not None and not self.aligned:
            return self.leave_out
        if not self.exposure_matched:
            return None
        n = len(self._homes)
        return int(self._homes[generator(*self.key, "exposure", epoch // n).permutation(n)[epoch % n]])

    def _open(self) -> None:
        order = generator(*self.key, "order", self._epoch).permutation(self.n)
        out = self.left_out(self._epoch)
        kept = np.ones(self.n, bool)
        if self.leave_out is not None and not self.aligned:
            kept = ~self.groups.membership[order, self.leave_out]
        elif out is not None:
            kept = self.groups.homes[order] != out
        if self.leave_out is not None and self.aligned:
            order = self._substituted(order, self.leave_out)
        if not kept.any():
            raise GudaError("group-covers-all", "without the group that is left out there is no image to train on")
        self._order, self._places = order, np.flatnonzero(kept)
        self._chunk_index = -1
        self._chunk: tuple[np.ndarray, np.ndarray, np.ndarray] = (np.empty(0), np.empty(0), np.empty(0))

    def _substituted(self, order: np.ndarray, group: int) -> np.ndarray:
        """The epoch's images with others in the places of the group: the first of the place's own candidates that is
        not of the group, so that runs without other groups mostly agree on it."""
        out = self.groups.membership[:, group]
        if out.all():
            raise GudaError("group-covers-all", "without the group that is left out there is no image to train on")
        order, g = order.copy(), generator(*self.key, "substitutes", self._epoch)
        while (wrong := out[order]).any():
            candidates = g.integers(0, self.n, self.n)
            order[wrong] = candidates[wrong]
        return order

    def _noise(self, chunk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if chunk != self._chunk_index:
            g = generator(*self.key, "noise", self._epoch, chunk)
            self._chunk = (
                g.integers(0, self.T, CHUNK),
                g.standard_normal((CHUNK, *self.shape), dtype=np.float32),
                g.random(CHUNK) < 0.5,
            )
            self._chunk_index = chunk
        return self._chunk

    def take(self, size: int) -> Batch:
        """The next `size` examples, across epochs if need be."""
        parts: list[Batch] = []
        while size > 0:
            start = int(np.searchsorted(self._places, self._place))
            if start == len(self._places):
                self._epoch, self._place = self._epoch + 1, 0
                self._open()
                continue
            chunk = int(self._places[start]) // CHUNK
            stop = min(start + size, int(np.searchsorted(self._places, (chunk + 1) * CHUNK)))
            places = self._places[start:stop]
            t, eps, flip = self._noise(chunk)
            parts.append(Batch(self._order[places], t[places % CHUNK], eps[places % CHUNK], flip[places % CHUNK]))
            self._place = int(places[-1]) + 1
            size -= len(places)
        return Batch(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("index", "t", "eps", "flip")))
