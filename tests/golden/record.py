"""python tests/golden/record.py [--src FOLDER] [--out FILE]: make the golden runs and write down what they are.

Without options it records the code of this repository into tests/golden/golden.json: do so only when results are meant
to change, and say so in the changelog. On a machine where the committed record is not byte for byte comparable, record
the code before a change with `--src OLD/src --out FILE`, then run `GUDA_GOLDEN=FILE pytest tests/golden`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
RECORD = HERE / "golden.json"
MEMORY = Path("/dev/shm")  # every file of a run is flushed to disk, which takes longer than making it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--src", type=Path, default=HERE.parents[1] / "src", help="the code to run")
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    given = parser.parse_args()
    sys.path.insert(0, str(given.src.resolve()))

    from goldenfiles import machine, measure
    from goldenruns import RUNS

    import guda

    assert Path(guda.__file__).is_relative_to(given.src.resolve()), guda.__file__
    runs = {}
    with tempfile.TemporaryDirectory(prefix="guda-golden-", dir=MEMORY if MEMORY.is_dir() else None) as work:
        for name, make in RUNS.items():
            folder = Path(work).resolve() / name
            folder.mkdir()
            runs[name] = measure(make(folder / "run"))
    given.out.write_text(text({"machine": machine(), "runs": runs}))
    print(f"{given.out}: {sum(len(r['digests']) for r in runs.values())} files of {', '.join(runs)}")


def text(record: dict) -> str:
    """One line per file, which is what a diff should show."""
    lines = [f'{{"machine": {json.dumps(record["machine"])},', '"runs": {']
    for i, (name, run) in enumerate(record["runs"].items()):
        lines.append(f'{"," if i else ""}"{name}": {{')
        for j, part in enumerate(("digests", "values")):
            rows = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in sorted(run[part].items())]
            lines.append(f'{"," if j else ""}"{part}": {{\n' + ",\n".join(rows) + "\n}")
        lines.append("}")
    return "\n".join([*lines, "}}", ""])


if __name__ == "__main__":
    main()
