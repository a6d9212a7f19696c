"""What cached tokens cost in money while they are kept."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Seconds, as_amount, as_ints, check_type
from kvarray.economics.memory import Footprint

__all__ = ["MemoryPrice", "cost_per_million_tokens"]

HOURS_PER_MONTH = 730.0
"""Hours of a month as cloud price lists count them: 8760 / 12."""
_SIZES = {"MB": 1e6, "GB": 1e9, "TB": 1e12, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_TIMES = {"hour": 1.0, "h": 1.0, "day": 24.0, "month": HOURS_PER_MONTH, "year": 12 * HOURS_PER_MONTH}


@dataclass(frozen=True, slots=True)
class MemoryPrice:
    """What memory costs for a time, in whatever currency.

    Attributes
    ----------
    amount : float
        Price of one unit, from 0 to 1e60.
    unit : str
        Size and time: ``GiB-month``, ``GB-hour``, ``TB-day`` ... A month is 730 hours.

    Raises
    ------
    TypeError
        If the amount is no number, or the unit no text.
    ValueError
        If the amount is negative or too large, or the unit is none of these.

    Examples
    --------
    >>> MemoryPrice(7.3, "GB-month").per_byte_hour * 1e9
    0.01
    """

    amount: float
    unit: str

    def __post_init__(self) -> None:
        """Check the values."""
        as_amount("price", self.amount, low=0.0)
        size, _, time = check_type("the unit of a price", self.unit, str).partition("-")
        if size not in _SIZES or time not in _TIMES:
            raise ValueError(
                f"the unit of a price must be one of {', '.join(_SIZES)} by one of {', '.join(_TIMES)},"
                f" such as GiB-month: got {self.unit!r}"
            )

    @classmethod
    def parse(cls, text: str) -> "MemoryPrice":
        """Return a price written as ``0.09/GB-month``.

        Examples
        --------
        >>> MemoryPrice.parse("2.5/GiB-month")
        MemoryPrice(amount=2.5, unit='GiB-month')
        """
        amount, slash, unit = check_type("a price", text, str).partition("/")
        try:
            value = float(amount)
        except ValueError:
            slash = ""
        if not slash:
            raise ValueError(f"a price must be like 0.09/GB-month: got {text!r}")
        return cls(value, unit.strip())

    @property
    def per_byte_hour(self) -> float:
        """What one byte costs for one hour."""
        size, _, time = self.unit.partition("-")
        return self.amount / (_SIZES[size] * _TIMES[time])


def cost_per_million_tokens(
    footprint: Footprint, tokens: ArrayLike, *, price: MemoryPrice, block_size: int = 1
) -> Seconds:
    """Return what a million cached tokens cost per hour, held in sequences of each length.

    Parameters
    ----------
    footprint : Footprint
        The models; B rows.
    tokens : array_like of int, shape (K,)
        Length of the sequences, 1 or more: windows and fixed states make long ones cheaper by the token.
    price : MemoryPrice
        Price of the memory that holds them.
    block_size : int, optional
        Tokens of a block.

    Returns
    -------
    ndarray of float64, shape (B, K)
        ``1e6 / tokens x bytes of all ranks x price of a byte and hour``, in the price's currency.

    Examples
    --------
    >>> from kvarray.economics import ModelSpec
    >>> llama = Footprint.of([ModelSpec.from_name("llama-3.1-70b")])
    >>> cost_per_million_tokens(llama, [8192], price=MemoryPrice(7.3, "GB-month")).round(4)
    array([[3.2768]])
    """
    table, per_byte_hour = (
        check_type("footprint", footprint, Footprint),
        check_type("price", price, MemoryPrice).per_byte_hour,
    )
    lengths = as_ints("tokens", tokens, low=1)
    rank_bytes = table.bytes_per_sequence(lengths, block_size=block_size).astype(np.float64)
    return rank_bytes * table.tp[:, None] * (1e6 * per_byte_hour) / lengths  # of all ranks, which might not fit 64 bits
