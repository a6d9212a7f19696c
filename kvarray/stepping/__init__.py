"""A whole trace through one mechanism, request by request."""

from kvarray.stepping.policy import step_policy, step_requests
from kvarray.stepping.prefix import PrefixSteps, step_prefix

__all__ = [
    "PrefixSteps",
    "step_policy",
    "step_prefix",
    "step_requests",
]
