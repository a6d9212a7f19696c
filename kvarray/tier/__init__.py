"""Tiers of memory and the moves between them."""
