"""Rules that are about commands are asked of the same small server as the integration tests."""

from tests.integration.conftest import client, name

__all__ = ["client", "name"]
