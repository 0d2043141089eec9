"""``foldline``: names the commands and turns refusals into exit codes. A command is imported when it runs."""

from __future__ import annotations

import importlib
import os
import sys

import click

from foldline.config import ConfigError
from foldline.domain.errors import FoldlineError, StoreLocked

COMMANDS = {
    "serve": "foldline.cli.serve",
    "health": "foldline.cli.health",
    "demo": "foldline.cli.demo",
}
"""Command to the module whose ``command`` it is."""

FAILED, MISCONFIGURED = 1, 2


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="foldline", message="%(prog)s %(version)s")
def cli() -> None:
    """Keeps an agent's conversation inside its model's window, and finds again what was folded away."""


def main() -> None:
    # Threads of the linear algebra beside those that serve would only wait for each other; it reads this as it loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        cli.main(prog_name="foldline")
    except ConfigError as error:
        click.echo(f"foldline: {error}", err=True)
        sys.exit(MISCONFIGURED)
    except StoreLocked as error:
        click.echo(f"foldline: {error}", err=True)
        sys.exit(FAILED)
    except FoldlineError as error:
        notes = "".join(f": {note}" for note in getattr(error, "__notes__", ()))
        click.echo(f"foldline: {error.reason}: {error.message}{notes}", err=True)
        sys.exit(FAILED)
