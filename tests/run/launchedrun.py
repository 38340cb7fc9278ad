"""The command line, noting every file it publishes and by whom: python launchedrun.py LOG ARGUMENTS...

With STOPS_IN=RUN in the environment it stops at the second checkpoint (see tests/waiting.py)."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from waiting import stop_before_publishing

if __name__ == "__main__":
    log, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    replace = os.replace

    def noted(source: Any, target: Any, **options: Any) -> None:
        if "/progress/" not in str(target):  # heartbeats are rewritten by design
            with open(log, "a") as file:
                print(os.environ.get("RANK", "0"), target, file=file)
        replace(source, target, **options)

    os.replace = noted
    if "STOPS_IN" in os.environ:
        root = Path(os.environ["STOPS_IN"])
        stop_before_publishing(root, "checkpoints/*/step-*", lambda: any(root.glob("checkpoints/*/step-*")))

    from guda.cli.main import main

    main()
