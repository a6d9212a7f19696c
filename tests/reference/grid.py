"""A sweep as a loop: every combination is a deployment, replayed by itself and added up request by request."""

from itertools import product

from kvarray import replay
from kvarray.grid import QUANTILES, Grid


def combinations(axes):
    """Every combination of the values of axes as a mapping, the last axis running fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def row(trace, deployment, rate_scale=1.0):
    """What one deployment comes to."""
    result = replay(trace, deployment, rate_scale=rate_scale)
    rows = [i for i, counts in enumerate(result.is_counted.tolist()) if counts]

    def counted(column):
        values = column.tolist()
        return [values[i] for i in rows]

    times = sorted(counted(result.ttft_s))
    number = len(rows)
    found = {
        "hit_rate": result.hit_rate(),
        "loaded_bytes": sum(counted(result.loaded_bytes)),
        "saved_s": sum(counted(result.saved_s)),
        "gain_s": sum(counted(result.gain_s)),
        "mean_ttft_s": sum(times) / number if rows else 0.0,
        "max_ttft_s": times[-1] if rows else 0.0,
        "throughput_ceiling": result.throughput_ceiling or float("inf"),
    }
    for unit in ("token", "block", "full_block", "request"):
        found[f"{unit}_hit_rate"] = result.hit_rate(unit)
        found[f"hit_{unit}s"] = result.hits[unit]
        found[f"{unit}s"] = result.totals[unit]
    for share in QUANTILES:
        needed = max(-(-share * number // 100), 1)  # so many requests have no longer
        found[f"ttft_p{share}_s"] = times[needed - 1] if rows else 0.0
    for name in ("queue_s", "load_s", "prefill_s", "transfer_s", "decode_s"):
        found[name] = sum(counted(getattr(result, name)))
    if deployment.target_ttft_s is not None:
        found["share_within_target"] = sum(t <= deployment.target_ttft_s for t in times) / number if rows else 0.0
    up = dict.fromkeys(deployment.tier_names[1:], 0)
    for way, moved in result.link_loaded_bytes.items():
        up[way.split("->")[0]] += moved
    for k, name in enumerate(deployment.tier_names):
        found[f"hit_tokens_{name}"] = sum(counted(result.hit_tokens[:, k]))
        found[f"written_bytes_{name}"] = result.written_bytes.tolist()[k]
        if k:
            found[f"up_bytes_{name}"] = up[name]
    return found


def sweep(trace, base, axes):
    """The rows of a grid, one after the other."""
    found = []
    for values in combinations(axes):
        alone = Grid(base, {name: [value] for name, value in values.items()})
        found.append(row(trace, alone.deployment(0), alone.rate_scale(0)))
    return found
