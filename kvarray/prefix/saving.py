"""The whole state of a tree as arrays by name, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvarray.policies import POLICIES
from kvarray.prefix.engine import COUNTS, Engine

__all__ = ["check_snapshot", "load_state", "state_arrays"]

_NAMES = (
    "capacity",
    "clock",
    "count_uses",
    "counts",
    "free_rows",
    "granularity",
    "locks",
    "namespace_counts",
    "namespace_free",
    "namespace_names",
    "nodes",
    "page_size",
    "pins",
    "policy",
    "refresh",
    "tokens",
    "values",
    "values_per",
)
_INTEGERS = (
    "capacity",
    "clock",
    "counts",
    "free_rows",
    "locks",
    "namespace_counts",
    "namespace_free",
    "nodes",
    "page_size",
    "pins",
    "tokens",
    "values",
)


def state_arrays(engine: Engine) -> dict[str, Any]:
    """Return the whole state as arrays."""
    names = {id(function): name for name, function in POLICIES.items()}
    pins = [(until, serial) for until, serial in sorted(engine.pins) if serial in engine.locks]
    return {
        "kind": np.array("RadixTree"),
        "page_size": np.array(engine.nodes.page_size),
        "values_per": np.array(engine.values_per),
        "capacity": np.array(engine.nodes.capacity),
        "policy": np.array(names.get(id(engine.candidates.policy), "")),
        "granularity": np.array(engine.granularity),
        "refresh": np.array(engine.refresh),
        "count_uses": np.array(engine.count_uses),
        "clock": np.array([engine.tick, engine.serial]),
        "counts": np.array([*engine.counts.values(), engine.nodes.num_compactions]),
        "locks": np.array(list(engine.locks.items()), dtype=np.int64).reshape(-1, 2),
        "pins": np.array(pins, dtype=np.int64).reshape(-1, 2),
        **engine.nodes.arrays(),
    }


def check_snapshot(snapshot: Mapping[str, Any], engine: Engine | None = None) -> None:
    """Raise `ValueError` unless a snapshot is one of a tree, and of one that fits the engine if that is given."""
    if "kind" not in snapshot or str(snapshot["kind"]) != "RadixTree":
        raise ValueError("snapshot must be what RadixTree.snapshot or save gave")
    missing = [name for name in _NAMES if name not in snapshot]
    if missing:
        raise ValueError(f"snapshot must be whole: it lacks {', '.join(missing)}")
    kinds = {name: np.asarray(snapshot[name]).dtype.kind for name in _INTEGERS}
    wrong = [name for name, kind in kinds.items() if kind != "i"]
    if wrong:
        raise ValueError(f"snapshot must be undamaged: no integers are {', '.join(wrong)}")
    if engine is None:
        return
    wanted = {"page_size": engine.nodes.page_size, "values_per": engine.values_per}
    for name, value in wanted.items():
        if snapshot[name].item() != value:
            raise ValueError(f"snapshot must be of a tree with {name}={value!r}: got {snapshot[name].item()!r}")
    if snapshot["capacity"] > engine.nodes.capacity:
        raise ValueError(
            f"snapshot must be of a capacity of {engine.nodes.capacity} or less, got {snapshot['capacity']}: "
            "reserve more first"
        )


def load_state(engine: Engine, arrays: Mapping[str, Any]) -> None:
    """Return to a state; serials of locks go on from the later one, so that none is ever given twice."""
    nodes = engine.nodes
    num_values = len(arrays["tokens"]) // nodes.value_size if nodes.value_size else 0
    if len(arrays["values"]) != num_values:
        raise ValueError(f"R8: {len(arrays['values'])} values go with the tokens of the pool, not {num_values}")
    nodes.load(dict(arrays))
    tick, serial = arrays["clock"].tolist()
    locks = dict(arrays["locks"].tolist())
    if max(locks, default=0) > serial:
        raise ValueError(f"R6: lock {max(locks)} is held, the latest given is {serial}")
    *counts, nodes.num_compactions = arrays["counts"].tolist()
    engine.tick = tick
    engine.serial = max(serial, engine.serial)
    engine.counts = dict(zip(COUNTS, counts, strict=True))
    engine.locks = locks
    engine.pins = [(until, serial) for until, serial in sorted(arrays["pins"].tolist())]
    live = nodes.live()
    lengths = nodes.columns["edge_length"][live]
    engine.cached = int(lengths.sum())
    engine.protected = int(lengths[nodes.columns["lock_count"][live] > 0].sum())
    engine.candidates.rebuild()
