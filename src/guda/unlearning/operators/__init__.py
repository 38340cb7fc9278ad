"""One small file per unlearning operator; importing this package registers them all."""

from guda.unlearning.operators import (  # noqa: F401
    anchors,
    ascent,
    erasediff,
    esd,
    retain,
    retrack,
    retrack_zero,
    shift,
    siss,
)
