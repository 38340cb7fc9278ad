"""The command line: `guda COMMAND`. Every command calls functions of `guda.steps` and prints what they return.

Heavy imports stay inside the commands, so that `guda --help` answers at once. A user's mistake is one line on stderr
and exit code 2.
"""

from __future__ import annotations

import io
import sys
import traceback
from contextlib import nullcontext, redirect_stdout
from typing import Annotated

import typer

from guda.cli import artifacts, evidence, experiments, publish, results, runs, scores
from guda.diffusion import distributed
from guda.errors import GudaError, OneProcess
from guda.files import write_error

app = typer.Typer(
    name="guda",
    help="Which training images shaped this picture? Group-wise attribution of diffusion models, in nats.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LAUNCHED = ("train", "fit")  # commands that `accelerate launch` may run in several processes


def _version(show: bool) -> None:
    if show:
        from guda.cli.version import build_info

        print(build_info())
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and what guda was built from."
        ),
    ] = False,
) -> None:
    if distributed.world_size() > 1 and context.invoked_subcommand not in LAUNCHED:
        raise GudaError(
            "launch-unsupported",
            f"{distributed.world_size()} processes were launched, but guda {context.invoked_subcommand} "
            f"runs in one process; use a launcher only for guda {' and guda '.join(LAUNCHED)}",
        )


for _command in (
    runs.demo, runs.check, runs.init, runs.run_, runs.train, runs.fit, runs.sample, runs.set_,
    scores.score, scores.evaluate, scores.sanity, scores.calibrate,
    scores.health, scores.likelihood, runs.plan, results.report, runs.status, runs.methods, results.figure,
    evidence.map_, evidence.exhibit, evidence.verify,
):  # fmt: skip
    app.command(name=_command.__name__.rstrip("_"))(_command)

app.add_typer(artifacts.bank, name="bank")

app.add_typer(artifacts.prompts, name="prompts")

for _command in (
    experiments.tune, experiments.ablate, experiments.reproduce, results.serve, experiments.pairs,
    publish.card, publish.push, publish.pull,
):  # fmt: skip
    app.command()(_command)


def _publish() -> None:
    """For runs in a bucket: upload what the command wrote."""
    if "guda.run.remote" in sys.modules and distributed.is_main():
        from guda.run.remote import push_all

        push_all()


def _refused(error: OSError | MemoryError) -> GudaError | None:
    """What the machine cannot do, where nothing closer to the cause has put it into words."""
    if isinstance(error, MemoryError):
        return GudaError("memory-exhausted", "out of memory; use smaller images, batches or models")
    return write_error(error, getattr(error, "filename", None) or "a file")


def main() -> None:
    try:
        with nullcontext() if distributed.is_main() else redirect_stdout(io.StringIO()):  # results are printed once
            try:
                app()
            except SystemExit as e:  # how typer ends
                if not e.code:
                    _publish()
                raise
    except GudaError as e:
        if distributed.is_main() or isinstance(e, OneProcess):
            print(e.line, file=sys.stderr, flush=True)
        distributed.leave(2)
    except BrokenPipeError:  # of `guda ... | head`
        sys.stdout = None  # or the interpreter would try to flush it once more
        distributed.leave(1)
    except Exception as e:
        if isinstance(e, OSError | MemoryError) and (refused := _refused(e)) is not None:
            print(refused.line, file=sys.stderr, flush=True)
            distributed.leave(2)
        if distributed.world_size() == 1:
            raise
        traceback.print_exc()
        distributed.leave(1)
    except SystemExit as e:
        if e.code == 130:  # typer's answer to Ctrl-C
            print("guda: stopped; nothing finished is lost, run the same command again to resume", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
