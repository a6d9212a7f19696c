"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: default, ci (Hypothesis loads it on CI), nightly."""

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=100, **_COMMON)
settings.register_profile("ci", parent=settings.get_profile("ci"), max_examples=100, **_COMMON)
settings.register_profile("nightly", max_examples=5_000, derandomize=False, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "default"))
