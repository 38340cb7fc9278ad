"""One small file per unlearning operator; importing this package registers them all."""

from guda.counterfactuals.operators import retrack, shift  # noqa: F401
