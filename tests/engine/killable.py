"""The tiny pipeline as a program of its own: python killable.py RUN WORKERS."""

import sys

from guda import verbs
from guda.runs.run import Run

if __name__ == "__main__":
    verbs.pipeline(Run.open(sys.argv[1]), verbs.local_engine(int(sys.argv[2])))
