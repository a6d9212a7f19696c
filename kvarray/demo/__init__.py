"""The demo: five scenarios and four exercises that show what each mechanism does, in numbers one can follow by hand.

Scenarios 1 to 5 are one mechanism each (`kvarray.demo.mechanisms`), 6 to 9 compare and combine them
(`kvarray.demo.exercises`, `kvarray.demo.composition`). Everything is computed by the engine from the inputs in the
functions' signatures, and comes out the same each time. Sizes are toys on purpose: for real ones see the other
commands.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvarray.demo.composition import admit_over_tiers, admit_to_tree, sink_into, tree_over
from kvarray.demo.exercises import block_aligned, layer_interleaved, lfu_against_lru, sink_first
from kvarray.demo.mechanisms import blocks, economics, prefix, tiers, transfer
from kvarray.demo.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario", "admit_over_tiers", "admit_to_tree", "sink_into", "tree_over"]

SCENARIOS: Mapping[int, Callable[[], Scenario]] = MappingProxyType(
    dict(
        enumerate(
            (
                blocks,
                prefix,
                tiers,
                transfer,
                economics,
                lfu_against_lru,
                layer_interleaved,
                block_aligned,
                sink_first,
            ),
            start=1,
        )
    )
)
"""What to call for each scenario, by number."""
