"""How often blocks were used lately."""

__all__ = ["Frequencies"]


class Frequencies:
    """How often blocks were used lately: counters up to 15, all halved after a sample of uses [1]_.

    Counters are exact, one a row, instead of a count-min sketch; those that fall to 0 are forgotten, so there are
    never more than the sample has uses.

    Parameters
    ----------
    sample : int
        Uses, in blocks, between two halvings.

    References
    ----------
    .. [1] G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient cache admission policy", 2017.
    """

    def __init__(self, sample: int) -> None:
        self.sample = sample
        self.counts: dict[int, int] = {}
        self.uses = 0

    def record(self, row: int, blocks: int) -> None:
        """Count a use of all blocks of a row."""
        self.counts[row] = min(self.counts.get(row, 0) + 1, 15)
        self.uses += blocks

    def settle(self) -> None:
        """Halve the counters where the sample is full; called once a step."""
        while self.uses >= self.sample:
            self.uses //= 2
            self.counts = {row: count // 2 for row, count in self.counts.items() if count > 1}

    def __getitem__(self, row: int) -> int:
        """Return the counter of a row."""
        return self.counts.get(row, 0)
