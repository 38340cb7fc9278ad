"""Would this model make it: a p-value that is right for fresh samples, and the same alone and in a batch."""

from __future__ import annotations

import numpy as np

from guda.scoring.origin import LEAST, Described, typical_p

STRATA, ROUNDS = 4, 2


def make(n: int, rng: np.random.Generator, shift: float = 0.0) -> Described:
    """KL terms that follow a curve along t, with what a picture has in common over its strata."""
    t = rng.integers(1, 25, (n, ROUNDS, STRATA)) + 25 * np.arange(STRATA)
    common = rng.standard_t(4, (n, 1, 1)) * 0.3 + shift
    logs = common - 0.02 * t + 1e-4 * t**2 + 0.2 * rng.standard_normal(t.shape)
    return Described(np.exp(logs), t)


def outside(n: int) -> np.ndarray:
    return np.full(n, -1)


def test_p_is_the_share_of_samples_as_far_out() -> None:
    """Timesteps that do not vary, one stratum: the distance is that of the logarithms from their mean."""
    logs = np.random.default_rng(0).standard_normal(50)
    t = np.ones((50, 1, 1), int)
    samples = Described(np.exp(logs)[:, None, None], t)
    for own in (0.1, -1.3, 2.5, 9.0):
        both = np.append(logs, own)
        expected = (np.abs(both - both.mean()) >= abs(own - both.mean()) - 1e-9).sum() / 51
        found = typical_p(samples, Described(np.full((1, 1, 1), np.exp(own)), t[:1]), outside(1))
        assert found is not None
        assert found[0] == expected


def test_fresh_samples_raise_no_more_false_alarms_than_said() -> None:
    rng = np.random.default_rng(1)
    p = []
    for _ in range(60):
        found = typical_p(make(60, rng), make(20, rng), outside(20))
        assert found is not None
        p.extend(found)
    rates = [float(np.mean(np.array(p) <= alpha)) for alpha in (0.05, 0.2, 0.5)]
    # 1,200 pictures, those of one set of samples correlated: about three standard errors
    assert np.allclose(rates, [0.05, 0.2, 0.5], atol=[0.03, 0.06, 0.08])


def test_too_large_and_too_small_errors_are_both_found() -> None:
    rng = np.random.default_rng(2)
    samples = make(100, rng)
    for shift in (5.0, -5.0):
        found = typical_p(samples, make(10, rng, shift), outside(10))
        assert found is not None
        assert (found == 1 / 101).all()


def test_one_picture_has_the_same_p_alone_in_a_batch_and_in_any_order() -> None:
    rng = np.random.default_rng(3)
    samples, pictures = make(80, rng), make(9, rng)
    whole = typical_p(samples, pictures, outside(9))
    assert whole is not None
    for q in range(9):
        alone = typical_p(samples, pictures.of(np.array([q])), outside(1))
        assert alone is not None
        assert alone[0] == whole[q]
    shuffled = typical_p(samples.of(rng.permutation(80)), pictures.of(np.arange(9)[::-1]), outside(9))
    assert shuffled is not None
    assert (shuffled[::-1] == whole).all()


def test_a_sample_is_compared_with_the_others() -> None:
    rng = np.random.default_rng(4)
    samples = make(60, rng)
    inside = typical_p(samples, samples, np.arange(60))
    others = np.arange(60) != 7
    left_out = typical_p(samples.of(others), samples.of(np.array([7])), outside(1))
    assert inside is not None
    assert left_out is not None
    assert abs(inside[7] - left_out[0]) < 1e-12  # its place among 60 either way
    assert sorted(np.round(inside * 60)) == list(range(1, 61))


def test_too_few_samples_do_not_tell() -> None:
    rng = np.random.default_rng(5)
    assert typical_p(make(LEAST - 1, rng), make(3, rng, 9.0), outside(3)) is None
    found = typical_p(make(LEAST, rng), make(3, rng, 9.0), outside(3))
    assert found is not None
    assert (found < 0.05).all()
