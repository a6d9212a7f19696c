"""Paged blocks: who holds them, what they hold, and which go first."""

from kvarray.block.admission import Content
from kvarray.block.allocator import BlockAllocator, BlockStats
from kvarray.block.events import CLEARED, REMOVED, STORED, BlockEvents
from kvarray.block.pool import Sink
from kvarray.block.table import Admission, BlockTable, Copies, TableStats
from kvarray.block.tokens import TokenTable

__all__ = [
    "CLEARED",
    "REMOVED",
    "STORED",
    "Admission",
    "BlockAllocator",
    "BlockEvents",
    "BlockStats",
    "BlockTable",
    "Content",
    "Copies",
    "Sink",
    "TableStats",
    "TokenTable",
]
