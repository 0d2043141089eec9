"""Profiles of hypothesis: few examples by default, many where asked for by ``HYPOTHESIS_PROFILE=thorough``."""

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("default", max_examples=50, **_COMMON)
settings.register_profile("thorough", max_examples=2_000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
