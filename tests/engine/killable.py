"""The tiny pipeline as a program of its own: python killable.py RUN WORKERS."""

import sys

from guda import steps
from guda.run.run import Run

if __name__ == "__main__":
    steps.pipeline(Run.open(sys.argv[1]), steps.local_engine(int(sys.argv[2])))
