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

from guda.cli import artifacts, coalitions, evidence, experiments, publish, results, runs, scores
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


# (panel, command, what the list of commands says of it: one line at 80 columns)
COMMANDS = (
    ("Start", runs.demo, "Digits, end to end, with a report at the end"),
    ("Start", runs.check, "List every problem of an image folder at once"),
    ("Start", runs.init, "Create a run from grouped images and a model"),
    ("Start", runs.run_, "Do all that is missing, up to the report; cost first"),
    ("Start", runs.plan, "Estimate evaluations, time, disk and precision"),
    ("Start", runs.status, "Show what is done and what is left"),
    ("Start", runs.methods, "List every method and the unit of its scores"),
    ("Work", runs.train, "Train the full model of a run that has none"),
    ("Work", runs.fit, "Make the models without each group"),
    ("Work", runs.sample, "Draw queries from the run's model"),
    ("Work", scores.score, "Attribute pictures: a score per group, with intervals"),
    ("Work", scores.distil, "Teach a small network a method's answers: milliseconds"),
    ("Work", results.report, "Write report.html: answers, groups, how far to trust"),
    ("Work", results.serve, "Serve the pages of a run: ask, watch, compare, HTTP API"),
    ("Work", evidence.map_, "Draw where in a picture a score comes from"),
    ("Work", evidence.exhibit, "Two pages on one picture, to be filed"),
    ("Work", evidence.verify, "Check the bundle of an exhibit"),
    ("Work", coalitions.shares, "Shapley values of groups, for pictures and collections"),
    ("Work", coalitions.without, "What pictures would lose if groups left"),
    ("Work", publish.card, "Write a model card and a data sheet"),
    ("Work", runs.set_, "Change settings in the run's recipe"),
    ("Judge", scores.evaluate, "Compare every scored method with retraining"),
    ("Judge", scores.sanity, "Held-out pictures: is the right group first?"),
    ("Judge", scores.calibrate, "Answer sets: one of these groups, 95 %"),
    ("Judge", scores.health, "What the counterfactuals do to every group"),
    ("Judge", scores.likelihood, "Score with log p, and compare the ELBO with it"),
    ("Judge", experiments.pairs, "Leave two groups out together: do scores add up?"),
    ("Paper", experiments.reproduce, "Run an experiment of the paper, with its tables"),
    ("Paper", results.figure, "Draw one figure of a run: SVG, PDF or PNG"),
    ("Paper", experiments.tune, "Choose a method's settings by agreement with LOGO"),
    ("Paper", experiments.ablate, "Sweep a method's settings one at a time"),
    ("Cluster", publish.push, "Publish a bank on the Hub or in a folder"),
    ("Cluster", publish.pull, "Fetch a published bank and check it"),
)  # fmt: skip

for _panel, _command, _short in COMMANDS:
    app.command(name=_command.__name__.rstrip("_"), rich_help_panel=_panel, short_help=_short)(_command)

app.add_typer(artifacts.prompts, name="prompts", rich_help_panel="Work", short_help="Prompts of a text-to-image run")

app.add_typer(
    artifacts.bank, name="bank", rich_help_panel="Cluster", short_help="Stored models: list, add, verify, export"
)


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
