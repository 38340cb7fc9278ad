"""Values, texts and pictures that programs trip over, drawn by a `random.Random`."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from functools import cache
from random import Random
from typing import Any

from tiny_world import picture

LONG = "9" * 5000  # Python itself refuses to read or print so many digits
ABSURD = 10**12  # of anything: more than a machine has; what lies between takes long and is nobody's mistake

# never a number, whatever is asked for
NOT_A_NUMBER: tuple[Any, ...] = ("x", "", "²", "0x10", "1,5", [], {}, [1], {"a": 1}, "nan", "½", "1e", "--")
NOT_POSITIVE: tuple[Any, ...] = (-1, -0.5, -(10**30), float("nan"), float("-inf"))
NOT_A_TEXT: tuple[Any, ...] = ([], {}, [1], {"a": 1}, ["x"])
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324, 10**9, ABSURD,
    10**400, "", " ", "x", "²", "nan", "1e400", "\n", "a\tb", "\u202egnp.", "💥", "\ud800", "a" * 5000, "../..", "/",
    "/dev/zero", "/dev/full", "level:0", "level:²", "linear:0", "linear:²", [], [[]], {}, {"": ""}, [None], ["x", "x"],
    {"_class_name": "x"}, "{{0}}", "%s%n", "$(id)", "!!python/object/apply:os.system [id]", "2020-99-99",
)  # fmt: skip
WORDS = (
    "", " ", "x", "²", "nan", "inf", "-1", "0", "1e400", LONG, "../..", "art", "art/circles/00.png", "no/such/folder",
    "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "\n", "a\tb", "💥", "\udcff", "a" * 300, "a/" * 200, "%s",
    "{0}", "$(id)", "--", "level:0", "level:-1", "level:²", "level:99999999999", "linear", "linear:", "linear:0",
    "linear:²", "linear:-1", "linear:1e9", "linear:10000000000", "linear:100:nope", "::", "top1@nan", "top1@2",
    "top0@0.9", "top9@0.9", "top²@0.9", "top1@", "budget=0", "budget=nan", "budget=-1", "budget=x", "top1@0.9,top1@0.9",
    "posterior:0", "posterior:²", "tree:0", "tree:-1", "nope:3", "5:1", "nan:3", "1:", ":", "-5:5", "0:1e9", "1:2:3",
    "circles", "circles,circles", "circles,nope", ",", "all,circles", "steps=", "=", "steps=1=2", "lr=[1", "lr={a: *x}",
    "s3://no-such-bucket-guda/x", "file:///etc", "gs://", "http://127.0.0.1:9/x", "~nobody/x", "run", "recipe.yaml",
)  # fmt: skip


def numbers(rng: Random, whole: bool) -> tuple[str, bool]:
    """A number as typed on a command line, and whether no option could accept it."""
    bad = ["x", "", "²", "1,5", "--", "1e", "0x10", "[1]", "nan", "inf", "-inf", "1e400", "-1", "-9e99"]
    bad += ["1.5", LONG] if whole else []
    if rng.random() < 0.7:
        return rng.choice(bad), True
    return rng.choice([str(ABSURD), "9" * 30] if whole else ["0", "1e308", "5e-324", "-0.0"]), False


# ---- texts ---------------------------------------------------------------------------------------------------------
def bomb() -> str:
    """Ten levels of ten aliases each: ten thousand million values in half a kilobyte."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    return "\n".join(lines) + "\n"


def spoil_text(rng: Random, text: str, yaml: bool) -> tuple[bytes, bool, str]:
    """Another text in place of a good one: its bytes, whether it is known to be bad, and what it is."""
    data = text.encode()
    depth = rng.choice([200, 5_000, 100_000])
    choices: list[tuple[str, bytes, bool]] = [
        ("empty", b"", True),
        ("blank", b"\n \n", True),
        ("cut", data[: rng.randrange(1, max(2, len(data) // 3))], False),
        ("nul", data[:20] + b"\0" + data[20:], True),
        ("latin", b"name: \xff\xfe\xe4\n" + data, True),
        ("utf16", text.encode("utf-16"), False),
        ("nested", b"[" * depth, True),
        ("nested objects", b'{"a":' * depth + b"1" + b"}" * depth, True),
        ("long number", b'{"seed": ' + LONG.encode() + b"}", True),
        ("binary", bytes(rng.randrange(256) for _ in range(300)), True),
        ("a list", b"[1, 2, 3]", True),
        ("a word", b"word", True),
        ("null", b"null", True),
        ("one line", b"x" * 200_000, True),
        ("flip", bytes(b ^ (rng.randrange(1, 256) if rng.random() < 0.004 else 0) for b in data), False),
    ]
    if yaml:
        choices += [
            ("bomb", bomb().encode(), True),
            ("bomb in it", (text + bomb()).encode(), True),
            ("own alias", b"data: &a\n  source: *a\n", True),
            ("endless list", b"name: &a [*a]\n", True),
            ("bad date", (text + "when: 2020-99-99\n").encode(), True),
            ("bad date in place", text.replace("tiny", "2020-13-45 99:99:99").encode(), True),
            ("python tag", (text + "x: !!python/object/apply:os.system [touch owned]\n").encode(), True),
            ("odd tag", (text + "x: !nope y\n").encode(), True),
            ("binary tag", (text + "x: !!binary '\xff'\n").encode(), True),
            ("sexagesimal", (text + "x: " + ":".join(["59"] * 3000) + "\n").encode(), True),
            ("long int", text.replace("steps: 20", f"steps: {LONG}").encode(), True),
            ("tab", text.replace("  ", "\t").encode(), True),
            ("two documents", (text + "---\n" + text).encode(), True),
            ("list as key", b"? [a, b]\n: 1\n" + data, True),
            ("merge", b"<<: 3\n" + data, True),
            ("float key", b"1.5: x\n" + data, True),
        ]
    name, found, bad = rng.choice(choices)
    return found, bad, name


# ---- pictures ------------------------------------------------------------------------------------------------------
def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int = 8, colour: int = 0, rows: bytes = b"\0" * 9, extra: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = _chunk(b"IHDR", header) + extra + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def saved(rng: Random, kind: str, mode: str = "L", **options: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.fromarray(picture(rng.randrange(3), rng.randrange(99))).convert(mode).save(out, kind, **options)
    return out.getvalue()


SUFFIX = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "TIFF": "tiff"}
MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"), "JPEG": ("L", "RGB", "CMYK"), "WEBP": ("RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB"), "GIF": ("L", "P"), "TIFF": ("1", "L", "F", "I;16", "CMYK", "LAB", "YCbCr", "RGBA"),
}  # fmt: skip


def _frames(rng: Random, kind: str) -> bytes:
    from PIL import Image

    more = [Image.fromarray(picture(g, 1)).convert("RGB") for g in range(3)]
    return saved(rng, kind, "RGB", save_all=True, append_images=more)


@cache
def _long_text() -> bytes:
    """A chunk of a PNG with a text of 200 MB."""
    return _chunk(b"zTXt", b"a\0\0" + zlib.compress(b"\0" * 200_000_000, 1))


def spoil_picture(rng: Random) -> tuple[str, bytes, bool, str]:
    """File name, bytes, whether it is known to be bad among 8x8 grey PNGs, and what it is."""
    kind = rng.choice(list(SUFFIX))
    good = saved(rng, kind)
    huge = rng.choice([60_000, 2**31 - 1, 100_000])
    what = rng.choice(
        ["cut", "flip", "huge", "mode", "animated", "none", "html", "bomb", "text", "zero", "odd", "another name"]
    )
    name = f"z.{SUFFIX[kind]}"
    if what == "cut":
        share = rng.random()
        return name, good[: int(share * len(good))], share < 0.5, f"{kind} cut to {share:.0%}"
    if what == "flip":
        flipped = bytes(b ^ (rng.randrange(1, 256) if rng.random() < 0.02 else 0) for b in good)
        return name, flipped, False, f"{kind} with flipped bytes"
    if what == "huge":
        headers = {
            "z.png": png(huge, huge),
            "z.bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 62, 0, 0, 54, 40, huge, huge, 1, 24, 0, 0, 0, 0, 0, 0),
            "z.gif": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b"\x2c\0\0\0\0\xff\xff\xff\xff\0\2\0;",
        }
        name = rng.choice(list(headers))
        return name, headers[name], True, f"{name} of {huge} pixels"
    if what == "mode":
        mode = rng.choice(MODES[kind])
        return name, saved(rng, kind, mode), mode in ("I;16", "I", "F"), f"{kind} in mode {mode}"
    if what == "animated":
        kind = rng.choice(["GIF", "WEBP", "PNG", "TIFF"])
        return f"z.{SUFFIX[kind]}", _frames(rng, kind), True, f"animated {kind}"
    if what == "bomb":
        return "z.png", png(8, 8, rows=b"\0" * 72, extra=_long_text()), False, "PNG whose text unpacks to 200 MB"
    if what == "zero":
        return "z.png", png(0, 0), True, "PNG of 0x0"
    if what == "odd":
        return "z.png", png(8, 8, rng.choice([3, 5, 64]), rng.choice([1, 5, 9])), True, "PNG of an impossible kind"
    if what == "another name":
        other = rng.choice(list(SUFFIX))
        return name, saved(rng, other), False, f"{other} named {name}"
    texts = {"none": b"", "html": b"<html><script>alert(1)</script>", "text": b"%!PS\n(/etc/passwd) (r) file\n"}
    return name, texts[what], True, f"{what} named {name}"
