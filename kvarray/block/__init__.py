"""Paged blocks: who holds them, what they hold, and which go first."""

from kvarray.block.admission import SameContent
from kvarray.block.allocator import BlockAllocator, BlockStats
from kvarray.block.events import CLEARED, REMOVED, STORED, BlockEvents
from kvarray.block.pool import Sink
from kvarray.block.table import Admission, BlockTable, Copies, TableStats

__all__ = [
    "CLEARED",
    "REMOVED",
    "STORED",
    "Admission",
    "BlockAllocator",
    "BlockEvents",
    "BlockStats",
    "BlockTable",
    "Copies",
    "SameContent",
    "Sink",
    "TableStats",
]
