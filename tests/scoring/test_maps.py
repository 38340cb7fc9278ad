"""Maps against closed forms: two Gaussian models that differ in one cell; and what the noise floor leaves blank."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from test_path import SHAPE, X0, D, Gaussian, gaussian

from guda.data.images import to_uint8
from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.parts import MemoryParts
from guda.scoring.maps import Cells, make_map
from guda.scoring.plan import Plan, Settings
from guda.scoring.scorer import Scorer

TEXT = "squaredcos_cap_v2:100:epsilon"


@dataclass(frozen=True)
class Ref:
    key: str
    family: None = None

    @property
    def reference(self) -> "Ref | None":
        return None if self.key == "full" else Ref("full")


class Two:
    """A full model, and one whose mean differs in a single cell."""

    def __init__(self, shift: np.ndarray) -> None:
        self.full = gaussian(TEXT, 0.2, 0.3)
        module = Gaussian(self.full.schedule, 0.2, 0.3)
        module.m = torch.from_numpy(0.2 + shift.reshape(SHAPE))  # type: ignore[assignment]
        self.other = Denoiser(module, self.full.schedule, SHAPE)

    def base(self, ref: Ref) -> Denoiser:
        return self.full

    def identity(self, ref: Ref) -> str:
        return ref.key

    def several(self, refs: Sequence[Ref]) -> Denoiser:
        return self.full if refs[0].key == "full" else self.other


def cells(path: bool, shift: np.ndarray) -> Cells[Ref]:
    models = Two(shift)
    schedule = models.full.schedule
    plan = Plan(tuple(range(1, schedule.t_max + 2)), 0)  # every t once: no sampling of t
    scorer = Scorer(plan, Settings(16), schedule, models, MemoryParts(), 4, path=path)
    return Cells(scorer, Queries.from_arrays(to_uint8(X0.numpy()), ["q"], layout="NCHW"))


def test_a_path_map_is_the_closed_form_in_the_cell_that_differs_and_zero_elsewhere() -> None:
    shift = np.array([0.0, 0.0, -0.3, 0.0])
    mine = cells(True, shift)
    sets = [(Ref("full"), {"k": Ref("other")})]
    mine.evaluate([Ref("other")], 2)
    _, d = mine.contributions(sets, "k", 2)
    schedule = mine.scorer.schedule
    a, s, w = schedule.a, schedule.s, schedule.weights
    exact = (w * (s * a * 0.3 / (a**2 * 0.3 + s**2)) ** 2)[1 : schedule.t_max + 1].sum()
    found = make_map(d, signed=False)
    np.testing.assert_allclose(found.nats.reshape(-1), [0, 0, exact, 0], rtol=1e-9, atol=1e-18)
    assert found.clear.reshape(-1).tolist() == [False, False, True, False]


def test_an_elbo_map_has_the_sign_of_the_cell() -> None:
    shift = np.array([0.5, 0.0, 0.0, 0.5])  # towards the first cell (.9), away from the last (.1)
    mine = cells(False, shift)
    mine.evaluate([Ref("full"), Ref("other")], 40)
    _, d = mine.contributions([(Ref("full"), {"k": Ref("other")})], "k", 40)
    found = make_map(d, signed=True)
    x, schedule = mine.scorer.models.full.encode(mine.picture.images).double().numpy().reshape(-1), mine.scorer.schedule  # type: ignore[attr-defined]
    a, s, w = schedule.a, schedule.s, schedule.weights
    scale = (w * (s * a / (a**2 * 0.3 + s**2)) ** 2)[1 : schedule.t_max + 1].sum()
    exact = scale * ((x - 0.2 - shift) ** 2 - (x - 0.2) ** 2)  # the expected error differs by this alone
    assert found.stderr is not None
    assert (np.abs(found.nats.reshape(-1) - exact) <= 4 * found.stderr.reshape(-1) + 1e-12).all()
    assert found.nats.reshape(-1)[0] < 0 < found.nats.reshape(-1)[3]
    assert found.clear.reshape(-1)[1:3].tolist() == [False, False]


def test_noise_alone_is_left_blank() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((6, 8, 10, 10))
    assert make_map(noise, signed=True).clear.sum() <= 5
    squares = noise**2
    assert make_map(squares, signed=False).clear.sum() <= 5  # above zero everywhere, and nowhere above the even share
    squares[:, :, 3, 4] *= 6
    shown = make_map(squares, signed=False)
    assert shown.clear[3, 4]
    assert shown.score == pytest.approx(squares.mean(axis=0).sum())
    assert make_map(squares[:1], signed=False).stderr is None  # one round tells no error, so nothing is hidden
    assert D == 4
