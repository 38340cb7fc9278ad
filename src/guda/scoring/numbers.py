"""How numbers are written in the report: signed, with a real minus sign, as many decimals as the scale deserves."""

from __future__ import annotations

import math

import numpy as np

MINUS = "\N{MINUS SIGN}"


def decimals(values: np.ndarray) -> int:
    """Three significant digits for the largest value: 60 -> 1, 5 -> 2, 0.9 -> 3, 500 -> 0."""
    largest = float(np.abs(values).max(initial=0.0))
    return 1 if largest == 0 else min(max(2 - math.floor(math.log10(largest)), 0), 6)


def plain(value: float, digits: int) -> str:
    text = f"{abs(value):,.{digits}f}"
    return MINUS + text if value < 0 and float(text.replace(",", "")) else text


def signed(value: float, digits: int) -> str:
    """+12.3, −4.0, and 0.0 for what rounds to it."""
    text = plain(value, digits)
    return text if text[0] == MINUS or not float(text.replace(",", "")) else f"+{text}"


def interval(lo: float | None, hi: float | None, digits: int) -> str:
    """[10.1, 14.5], or nothing where the method has no error model or has not seen enough."""
    return "" if lo is None or hi is None or lo != lo else f"[{plain(lo, digits)}, {plain(hi, digits)}]"


def percent(value: float) -> str:
    """14 %; neither 0 % nor 100 % unless it is exactly that."""
    if 0 < value < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= value < 1 else f"{100 * value:.0f} %"


def probability(value: float) -> str:
    """61 %, on one line; an estimate is never quite 0 or 100 %."""
    text = "<1" if value < 0.005 else ">99" if value >= 0.995 else f"{100 * value:.0f}"
    return f"{text}\N{NO-BREAK SPACE}%"
