"""``foldline health``."""

from __future__ import annotations

import sys

import click

from foldline.config import ENV_FILE, Config

_HINTS = {
    "UNAVAILABLE": ": nothing answers there; foldline serve prints its addresses at its start",
    "NOT_FOUND": ": it has no such service",
}


@click.command(short_help="Exits with 0 when a server serves, else with 1.")
@click.argument("target", required=False)
@click.option("--service", default="", help="Full name of one service; all of them by default.")
@click.option("--timeout", default=2.0, show_default=True, help="Seconds to wait.")
@click.option("--config", metavar="FILE", envvar=ENV_FILE, show_envvar=True, help="TOML file of settings.")
def command(target: str | None, service: str, timeout: float, config: str | None) -> None:
    """Exits with 0 when the server at TARGET serves, else with 1.

    TARGET is HOST:PORT or unix:PATH; by default what the settings say, TCP first.
    """
    if target is None:
        settings = Config.load(file=config)
        target = settings.listen or f"unix:{settings.socket_path}"

    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # A proxy of the environment has no business with the sidecar.
    with grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout
            )
        except grpc.RpcError as error:
            click.echo(f"{target}: {error.code().name}{_HINTS.get(error.code().name, '')}", err=True)
            sys.exit(1)
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    click.echo(f"{target}: {name}")
    sys.exit(0 if name == "SERVING" else 1)
