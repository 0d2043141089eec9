"""Profiles of hypothesis: few examples by default, many where asked for by ``HYPOTHESIS_PROFILE=thorough``; the log."""

import os

import structlog
from hypothesis import HealthCheck, settings

for name, examples in (("default", 50), ("thorough", 500)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# By default a traceback shows every frame's values, whole conversations, for many seconds of the thread that fails.
plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
