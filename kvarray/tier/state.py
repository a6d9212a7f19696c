"""The state of a tiered cache as arrays, for comparing, saving and loading."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvarray.link import Link
from kvarray.policies.drawn import RandomOrder
from kvarray.policies.frequency import Frequencies
from kvarray.policies.runs import Run
from kvarray.tier.cascade import Cascade, Flows
from kvarray.tier.spec import TierSpec

__all__ = ["pack_settings", "restore", "snapshot", "unpack_settings"]

_VERSION = 1


def snapshot(cascade: Cascade, pins: Mapping[int, int], leases: Sequence[tuple[float, int]]) -> dict[str, NDArray[Any]]:
    """Return all state of a cascade of plain keys, and of its pins, as arrays by name."""
    columns: dict[str, NDArray[Any]] = {
        "step": np.array(cascade.step),
        "pins": _ints([*pins.items()]).reshape(-1, 2),
        "lease_s": np.array(sorted(end for end, _ in leases), dtype=np.float64),
        "lease_key": _ints([key for _, key in sorted(leases)]),
        **{f"flows.{name}": np.array(getattr(cascade.flows, name)) for name in Flows.__slots__},
        **_counters("frequencies", cascade.frequencies),
    }
    for tier, order in enumerate(cascade.orders):
        runs = list(order.runs())
        columns |= {
            f"{tier}.key": _ints([run.row for _, run in runs]),
            f"{tier}.queue": np.array([name for name, _ in runs], dtype=np.str_),
            f"{tier}.uses": _ints([run.uses for _, run in runs]),
            f"{tier}.mark": np.array([run.mark for _, run in runs], dtype=np.float64),
            f"{tier}.weight": np.array([run.weight for _, run in runs], dtype=np.float64),
            f"{tier}.tokens": _ints([run.tokens for _, run in runs]),
            f"{tier}.pins": _ints([run.pins for _, run in runs]),
            **{f"{tier}.{name}": np.array(getattr(order, name)) for name in order.scalars},
            **{f"{tier}.{name}": _ints([g.row for g in ghosts]) for name, ghosts in order.ghosts.items()},
        }
        if order.frequencies is not None:
            columns |= _counters(f"{tier}.frequencies", order.frequencies)
        if isinstance(order, RandomOrder):
            columns[f"{tier}.generator"] = np.array(_dumps(order.rng.bit_generator.state))
    return columns


def restore(cascade: Cascade, columns: Mapping[str, NDArray[Any]]) -> tuple[dict[int, int], list[tuple[float, int]]]:
    """Fill an empty cascade with what `snapshot` returned for it, and return its pins and leases."""
    cascade.step = int(columns["step"])
    for name in Flows.__slots__:
        setattr(cascade.flows, name, columns[f"flows.{name}"].tolist())
    _recount("frequencies", cascade.frequencies, columns)
    for tier, order in enumerate(cascade.orders):
        rows = zip(
            *(
                columns[f"{tier}.{name}"].tolist()
                for name in ("key", "queue", "uses", "mark", "weight", "tokens", "pins")
            ),
            strict=True,
        )
        for key, queue, uses, mark, weight, tokens, pins in rows:
            run = Run(key, 0, 1, uses=uses, weight=weight, tokens=tokens)
            run.mark, run.pins = mark, pins
            order.restore(queue, run)
        for name in order.scalars:
            setattr(order, name, columns[f"{tier}.{name}"].item())
        for name, ghosts in order.ghosts.items():
            for key in columns[f"{tier}.{name}"].tolist():
                ghosts.push(Run(key, 0, 1))
        if order.frequencies is not None:
            _recount(f"{tier}.frequencies", order.frequencies, columns)
        if isinstance(order, RandomOrder):
            order.rng.bit_generator.state = _loads(str(columns[f"{tier}.generator"]))
    pins_by_key = dict(columns["pins"].tolist())
    return pins_by_key, list(zip(columns["lease_s"].tolist(), columns["lease_key"].tolist(), strict=True))


def _ints(values: Sequence[Any]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _counters(name: str, frequencies: Frequencies) -> dict[str, NDArray[Any]]:
    return {
        f"{name}.count": _ints(sorted(frequencies.counts.items())).reshape(-1, 2),
        f"{name}.uses": np.array(frequencies.uses),
    }


def _recount(name: str, frequencies: Frequencies, columns: Mapping[str, NDArray[Any]]) -> None:
    frequencies.counts = dict(columns[f"{name}.count"].tolist())
    frequencies.uses = int(columns[f"{name}.uses"])


def _dumps(value: object) -> str:
    import json

    return json.dumps(value)


def _loads(text: str) -> Any:
    import json

    return json.loads(text)


def pack_settings(tiers: Sequence[TierSpec], settings: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return what a cache was made of as an array of JSON text."""
    text = _dumps({"version": _VERSION, "tiers": [asdict(tier) for tier in tiers], "settings": dict(settings)})
    return {"settings": np.array(text)}


def unpack_settings(columns: Mapping[str, NDArray[Any]]) -> tuple[list[TierSpec], dict[str, Any]]:
    """Return what `pack_settings` was given.

    Raises
    ------
    ValueError
        If the arrays are not those of a cache.
    """
    try:
        packed = _loads(str(columns["settings"]))
        version, tiers, settings = packed["version"], packed["tiers"], packed["settings"]
    except (KeyError, TypeError, ValueError):
        raise ValueError("the file must be one that TieredCache.save wrote") from None
    if version != _VERSION:
        raise ValueError(f"the file must be of version {_VERSION}: got {version}")
    return [TierSpec(**{name: _unpack(name, value) for name, value in tier.items()}) for tier in tiers], settings


def _unpack(name: str, value: Any) -> Any:
    return Link(**value) if name in ("up", "down", "direct") and value is not None else value
