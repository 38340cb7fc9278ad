"""What stands beside path scores: the direction they lack, which is the ELBO difference of the same draws and costs no
evaluation, and what the average picture scores."""

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run

from guda import steps
from guda.evaluation.results import NULL, read_entry
from guda.evaluation.tables import averages_table, footer
from guda.report.page import render
from guda.run.run import Run
from guda.scoring.scores import PATH_SIGN


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    found = copy_run(tmp_path_factory.mktemp("direction") / "run")
    steps.change_scoring(found, plan="stratified")  # one plan serves both estimands, so that both see the same draws
    return found


def test_the_direction_is_the_score_of_the_other_estimand(run: Run) -> None:
    found = {}
    for estimand in ("path", "elbo"):
        steps.change_scoring(run, estimand=estimand)
        engine = Inline()
        found[estimand] = steps.score(run, SET, ["retrack", "logo"], engine)
    assert not engine.ran  # the errors were kept beside the changes
    for method, path in found["path"].items():
        elbo = found["elbo"][method]
        assert path.sign == PATH_SIGN
        assert path.elbo is not None
        np.testing.assert_allclose(path.elbo, elbo.score, atol=1e-9)
        np.testing.assert_allclose(path.elbo_stderr, elbo.stderr, atol=1e-9)
        assert elbo.elbo is None  # it is the score itself


def test_a_rule_evaluates_no_network_and_has_no_direction(run: Run) -> None:
    steps.change_scoring(run, estimand="path")
    steps.fit(run, ["posterior"], Inline())
    assert steps.score(run, SET, ["posterior"], Inline())["posterior"].elbo is None


def test_an_evaluation_of_excess_scores_has_the_averages_that_they_leave_out(run: Run) -> None:
    steps.change_scoring(run, estimand="path", excess=False)
    plain = steps.score(run, SET, ["retrack", "logo"], Inline())
    without = steps.evaluate(run, SET)
    assert without.averages is None
    assert NULL not in without.figures
    steps.change_scoring(run, excess=True)
    excess = steps.score(run, SET, ["retrack", "logo"], Inline())
    found = read_entry(run.path("evaluation.json")) if steps.evaluate(run, SET) else None
    assert found is not None
    assert found.averages is not None
    assert found.figures[f"{NULL}.lo"] <= found.figures[NULL] <= found.figures[f"{NULL}.hi"]
    assert f"Spearman {found.figures[NULL]:.2f}" in footer(found)
    assert set(found.averages) == {"logo", "retrack"}  # similarities have no constants
    for method, of in found.averages.items():
        assert tuple(of) == excess[method].groups
        mean = np.exp(np.log(plain[method].score).mean(axis=0))  # the queries are the pictures of the average
        np.testing.assert_allclose([a.mean for a in of.values()], mean, rtol=1e-9)
    table = averages_table("tiny", found)
    assert table is not None
    assert [row[0] for row in table.texts()] == list(excess["logo"].groups)
    assert 'id="averages"' in render(run, SET)
