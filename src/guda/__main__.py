"""python -m guda, which `accelerate launch -m guda train RUN` needs."""

from guda.cli.main import main

if __name__ == "__main__":
    main()
