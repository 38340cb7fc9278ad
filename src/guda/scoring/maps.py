"""Where in the picture a score comes from: the same draws, not summed over the cells.

    path    w_t |eps_full - eps_-k|^2                             of a cell, nats; never negative, so nothing cancels
    elbo    w_t (|eps - eps_-k|^2 - |eps - eps_full|^2)           of a cell, nats; positive: explained worse without k

A cell is a pixel, or of a latent model a cell of its latent; channels are summed, antithetic halves averaged, draws
weighted as the scorer does it. So a map sums to the plain score by the same draws. Of an excess score the map is that
of the nats before the ratio to (or the difference from) the average picture is taken.

The noise floor. A cell is `clear` where a t-test over the draws, paired cell by cell and as the score's own error by
strata, finds it above the floor at a false discovery rate of 5 % (Benjamini and Hochberg: a map is looked at as a
whole, and neighbouring cells err together, for which the rate still holds). The floor of an ELBO difference is zero,
on both sides. A path divergence is a sum of squares and above zero everywhere, as any two networks differ a little; its
floor is the even share, score / cells: clear cells hold more than if the change had no place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic

import numpy as np
import torch
from scipy import stats

from guda.data.queries import Queries
from guda.scoring.combine import equal_shares
from guda.scoring.estimate import difference, effective_df
from guda.scoring.scorer import M, Scorer, Set, Shares, by_reference, shard_name
from guda.scoring.terms import by_cell, kl, make_draws, measure, measure_rule
from guda.unlearning.rule import RuledDenoiser

RATE = 0.05  # of cells that are called clear, the share that may be so by chance


@dataclass(frozen=True, eq=False)
class ScoreMap:
    nats: np.ndarray  # float64 [H, W]; its sum is the plain score
    stderr: np.ndarray | None  # the same shape; None: one draw per stratum, so no error is known
    clear: np.ndarray  # bool [H, W]: above the floor; all cells where no error is known
    signed: bool  # of an ELBO difference
    name: str = ""  # of its noise band; empty: the whole score

    @property
    def score(self) -> float:
        """Nats."""
        return float(self.nats.sum())

    @property
    def caption(self) -> str:
        """What its colours say."""
        return "worse (red), better (blue)" if self.signed else "how far the model moves"

    @property
    def shown(self) -> float:
        """Nats in clear cells."""
        return float(self.nats[self.clear].sum())


def make_map(d: np.ndarray, signed: bool, grid: bool = False, name: str = "") -> ScoreMap:
    """From paired contributions [R, S, H, W], nats; `grid`: one draw per fixed t."""
    rounds, strata, *shape = d.shape
    cells = d.reshape(rounds, strata, -1).transpose(0, 2, 1)  # as many pictures as there are cells
    nats = cells.mean(axis=0).sum(axis=-1)
    above = cells if signed else cells - cells.mean(axis=1, keepdims=True)
    excess, error = difference(above, grid=grid), difference(cells, grid=grid).stderr
    if excess.stderr is None:
        clear = np.ones(len(nats), bool)
    else:
        df = effective_df(above.var(axis=0, ddof=1) / rounds, rounds) if rounds >= 2 else strata - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.nan_to_num(excess.score / excess.stderr)
        p = 2 * stats.t.sf(np.abs(t), df) if signed else stats.t.sf(t, df)
        clear = stats.false_discovery_control(p) <= RATE
    return ScoreMap(
        nats.reshape(shape), None if error is None else error.reshape(shape), clear.reshape(shape), signed, name
    )


def band_maps(d: np.ndarray, t: np.ndarray, edges: Sequence[int], signed: bool, grid: bool = False) -> list[ScoreMap]:
    """One map per noise band [edges[i], edges[i + 1]); they sum to the whole map. `t` [R, S]."""
    band = np.searchsorted(edges, t, side="right") - 1
    return [
        make_map(np.where((band == b)[:, :, None, None], d, 0.0), signed, grid, f"{edges[b]}:{edges[b + 1]}")
        for b in range(len(edges) - 1)
    ]


@dataclass(frozen=True)
class Cells(Generic[M]):
    """Squares of one picture by cell, kept as parts like the terms they sum to: one per (model, round)."""

    scorer: Scorer[M]  # whose plan, settings, models, parts and estimand
    picture: Queries  # one

    def name(self, model: M, round_: int) -> str:
        folder = "maps/" + self.scorer.folder.removeprefix("terms/")
        letter = "c" if self.scorer.path else "r"
        return f"{folder}/{shard_name(self.picture)}/{model.key}/{letter}{round_:03d}.safetensors"

    def evaluate(
        self, models: Sequence[M], rounds: int, tick: Callable[[int, int], None] = lambda *_: None
    ) -> None:  # fmt: skip
        """Every missing part; one round is held in memory at a time."""
        for r in range(rounds):
            tick(r, rounds)
            left = [m for m in self.scorer.evaluated(models) if not self.scorer.parts.has(self.name(m, r))]
            if left:
                self._evaluate(left, r)

    def _evaluate(self, models: Sequence[M], round_: int) -> None:
        scorer, settings = self.scorer, self.scorer.settings
        first = scorer.models.base(models[0])
        self.picture.check_shape(first.image_shape)
        x0, cond = first.encode(self.picture.images), first.condition(self.picture.prompts)
        draws = make_draws(first, x0, self.picture.ids, scorer.plan, round_)
        for reference, kin in by_reference(models).items():
            before = None
            if scorer.path and any(of[0].family is None for of in kin):
                with settings.active():
                    full = settings.prepare(scorer.models.several([reference]))
                    before = measure(full, draws, settings.block, cond, keep=True).predictions
            for of in kin:
                with settings.active():
                    denoiser = settings.prepare(scorer.models.several(of))
                    if scorer.path and isinstance(denoiser, RuledDenoiser):
                        squares = measure_rule(denoiser, draws, settings.block, by_cell, cond)
                    else:
                        measured = measure(denoiser, draws, settings.block, cond, before, squares=by_cell)
                        squares = measured.errors if measured.changes is None else measured.changes
                for model, own in zip(of, squares, strict=True):
                    content = {"squares": torch.from_numpy(own[0]), "t": torch.from_numpy(draws.t[0])}
                    scorer.parts.write(self.name(model, round_), content, self._header(model))

    def _header(self, model: M) -> dict[str, str]:
        return self.scorer.inputs(model, self.scorer.kind) | {"plan": self.scorer.plan.key}

    def read(self, model: M, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(t [R, S], nats [R, S, H, W]) of a model's errors or, under path, changes."""
        parts = [
            self.scorer.parts.read(self.name(model, r), self._header(model), "map-stale") for r in range(rounds)
        ]  # fmt: skip
        t = np.stack([p["t"].numpy() for p in parts])
        squares = np.stack([p["squares"].numpy() for p in parts])
        counted = kl(self.scorer.plan, self.scorer.weights(), t, np.ones(t.shape))
        return t, counted[:, :, None, None] * squares

    def contributions(
        self, sets: Sequence[Set[M]], group: str, rounds: int, shares: Shares = equal_shares
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """(t [R, S], paired nats [R, S, H, W]) of one group: the mean over sets, by `shares` of the method."""
        out: np.ndarray | None = None
        for number, (full, others) in enumerate(sets):
            t, d = self.read(others[group], rounds)
            if not self.scorer.path:
                d = d - self.read(full, rounds)[1]
            share = np.broadcast_to(shares(t, len(sets))[number], t.shape)
            out = share[:, :, None, None] * d if out is None else out + share[:, :, None, None] * d
        assert out is not None
        return t, out


@dataclass(frozen=True, eq=False)
class PictureMap:
    """The map of one picture and group: whole, and by any noise bands."""

    picture: str
    group: str
    t: np.ndarray  # [R, S]
    contributions: np.ndarray  # [R, S, H, W], nats
    signed: bool
    grid: bool = False

    @cached_property
    def whole(self) -> ScoreMap:
        return make_map(self.contributions, self.signed, self.grid)

    def bands(self, edges: Sequence[int]) -> list[ScoreMap]:
        return band_maps(self.contributions, self.t, edges, self.signed, self.grid)
