"""Reported faults are looked for on the same small server as the integration tests use."""

from tests.integration.conftest import client, name

__all__ = ["client", "name"]
