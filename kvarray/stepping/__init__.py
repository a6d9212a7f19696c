"""A whole trace through one mechanism, request by request."""

from kvarray.stepping.prefix import PrefixSteps, step_prefix

__all__ = [
    "PrefixSteps",
    "step_prefix",
]
