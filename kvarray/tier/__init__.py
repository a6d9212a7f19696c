"""Tiers of memory and the moves between them."""

from kvarray.tier.access import TierAccess
from kvarray.tier.cache import TieredCache
from kvarray.tier.spec import TierSpec

__all__ = ["TierAccess", "TierSpec", "TieredCache"]
