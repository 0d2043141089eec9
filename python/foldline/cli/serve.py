"""``foldline serve``."""

from __future__ import annotations

import sys

import click

from foldline.config import ENV_FILE, Config, ConfigError


def _assignments(values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals:
            raise ConfigError(f"--set is {value!r}, allowed is KEY=VALUE, such as memory.cache_bytes=1000000")
        found[key] = text
    return found


@click.command()
@click.option("--data", metavar="DIR", help="Directory of the store.  [default: .foldline]")
@click.option("--listen", metavar="HOST:PORT", help="TCP address; empty for none.  [default: 127.0.0.1:7420]")
@click.option("--socket", metavar="PATH", help="Unix socket; empty for none.  [default: DIR/foldline.sock]")
@click.option("--config", metavar="FILE", envvar=ENV_FILE, show_envvar=True, help="TOML file of settings.")
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Any setting by its dotted key; repeatable.")
def command(
    data: str | None, listen: str | None, socket: str | None, config: str | None, sets: tuple[str, ...]
) -> None:
    """Serves until SIGTERM or SIGINT, then drains.

    Settings come from flags, else from the environment (FOLDLINE_LISTEN, FOLDLINE_MEMORY_CACHE_BYTES, …), else from
    the file, else are built in.

    Dropping a memory scope, listing one and reading the configuration need an admin key: name a file of them, one a
    line, with --set admin.keys_file=FILE. Without any, they are refused.
    """
    flags = {**_assignments(sets), "data": data, "listen": listen, "socket": socket}
    loaded = Config.load(file=config, flags=flags)

    from foldline.server.lifecycle import serve

    sys.exit(serve(loaded, click.echo))
