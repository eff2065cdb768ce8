"""The ``mint`` command."""

import inspect
import sys
from typing import Annotated

import typer

from mint import __version__
from mint.catalog import ModelNotFound
from mint.commands.bench.command import bench
from mint.commands.service import keys, runs
from mint.commands.service.doctor import doctor
from mint.commands.service.serve import serve
from mint.commands.service.usage import usage
from mint.commands.shared.output import Mistake
from mint.commands.training.init import init
from mint.commands.training.rewards import app as rewards
from mint.commands.training.rewards import report
from mint.commands.training.watch import watch
from mint.commands.weights import checkpoints, models
from mint.commands.weights.export import export
from mint.commands.weights.sample import sample
from mint.engine.messages import UserError

app = typer.Typer(
    name="mint",
    help="RL post-training that you run yourself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (init, serve, sample, export, bench, report, watch, usage, doctor):
    app.command()(command)
app.add_typer(models.app, name="models")
app.add_typer(keys.app, name="keys")
app.add_typer(runs.app, name="runs")
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(rewards, name="rewards")

_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command("train", context_settings=_PASSED_ON, add_help_option=False)
def train_command(context: typer.Context) -> None:
    """Train a model by reinforcement learning, with settings from conf/ and the command line."""
    from mint.commands.training import train

    raise typer.Exit(train.main(context.args))


@app.command("eval", context_settings=_PASSED_ON, add_help_option=False)
def eval_command(context: typer.Context) -> None:
    """Evaluate a checkpoint or a base model on held-out prompts."""
    from mint.commands.training import evaluate

    raise typer.Exit(evaluate.main(context.args))


def _unwrap_help(commands: typer.Typer) -> None:
    """Join the lines of each paragraph of the help, which typer prints with their line breaks."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


_unwrap_help(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mint {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line. A user's mistake gives one message and exit code 2."""
    try:
        app(prog_name="mint")
    except (Mistake, UserError, ModelNotFound, ValueError, OSError) as error:
        print(f"mint: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        from mint.commands.shared.errors import report_error

        sys.exit(report_error(error))
    except SystemExit as end:
        if not isinstance(end.code, str):
            raise
        print(end.code, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
