"""Deployments as plain values: what a TOML file or the flags of a command say.

Every field of `Deployment` is a key of its own name. Beside them stand the keys that other fields are made from:

==================  =====================================================================================
key                 value
==================  =====================================================================================
`tiers`             list of texts (``"cpu=512GiB@dram-pcie5"``) or tables: ``name``, ``capacity`` or ``blocks``,
                    ``link`` or ``up``, ``down``, ``direct``, ``admission``, ``min_tokens``
`model`             a name of the catalogue, or the path of a `config.json`: gives `bytes_per_token`
`dtype`, `tp`       format of the cache; GPUs that share its heads (default: `gpus`)
`gpu`, `gpus`       name and number of the GPUs of a replica: gives `prefill` and `decode` with `model`
`parameters`        active ones (``"70.6G"``); what the model's name says, where it is not given
`kernel_share`      share of the GPUs' peak that prefill reaches
`prefill`           a name of `kvarray.PREFILL_TIMES`, or a table: ``start``, ``per_token``, ``per_pair``
`decode`            a table: ``base``, ``per_request``, ``per_token``
`separation`        a table: ``link``, ``schedule``, ``streams``, ``layers``, ``chunk_tokens``, ``overlap_efficiency``
`target_ttft`       a duration; the field is `target_ttft_s`
==================  =====================================================================================

A link is a name of `kvarray.LINKS`, a rate, or a table: ``name`` or ``rate``, ``latency``, ``alpha``, ``fragment``,
and ``count`` of equal ones side by side, over which each block is spread, as over the links of all GPUs of a replica.
Sizes, rates and durations are texts with units (`kvarray.units`) or plain numbers of bytes, bytes per second, seconds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields as fields_of
from os import PathLike, fspath
from typing import Any, NamedTuple, TypeVar

from kvarray.arrays import as_positive_int, as_real
from kvarray.deploy.deployment import Deployment, Separation
from kvarray.deploy.hardware import KERNEL_SHARE, model_times, named_parameters
from kvarray.economics.latency import GPUS, PREFILL_TIMES, DecodeTime, PrefillTime
from kvarray.economics.model import ModelSpec
from kvarray.link import LINKS, Link
from kvarray.tier.spec import TierSpec
from kvarray.units import parse_bytes, parse_count, parse_rate, parse_seconds

_Times = TypeVar("_Times", PrefillTime, DecodeTime)

__all__ = ["KEYS", "read_deployment", "read_link", "read_tier", "read_toml"]

_MADE_FROM = ("dtype", "tp", "gpu", "gpus", "parameters", "kernel_share", "target_ttft")
KEYS = tuple(field.name for field in fields_of(Deployment) if field.name != "target_ttft_s") + _MADE_FROM
"""Every key that a deployment may have."""

_COUNTS = ("block_size", "write_at", "replicas", "prefix_blocks", "min_load_tokens", "min_prefill_tokens", "seed")


class _Model(NamedTuple):
    """What is known of the model, and what it costs on its GPUs."""

    spec: ModelSpec | None
    bytes_per_token: Any
    prefill: PrefillTime
    decode: DecodeTime


def read_toml(path: str | PathLike[str]) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is no TOML; the message begins with the path.
    """
    import tomllib

    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{fspath(path)}: {error}") from None


def read_deployment(fields: Mapping[str, Any]) -> Deployment:
    """Return the deployment that plain values describe; see `Deployment.from_dict`."""
    _check_keys("", fields, KEYS)
    if "tiers" not in fields:
        raise ValueError("tiers must be given: the memory of a replica, the fastest first")
    if not isinstance(fields["tiers"], list | tuple):
        raise TypeError(f"tiers must be a list: got {fields['tiers']!r}")
    model = _read_model(fields)
    plain = {key: value for key, value in fields.items() if key not in _MADE_FROM}
    plain |= {key: _number(key, plain[key], parse_count) for key in _COUNTS if plain.get(key) is not None}
    if "target_ttft" in fields:
        plain["target_ttft_s"] = _number("target_ttft", fields["target_ttft"], parse_seconds)
    if "separation" in plain:
        plain["separation"] = _read_separation(plain["separation"], model.spec)
    if plain.get("promote_at") == "never":
        plain["promote_at"] = None
    plain |= {
        "tiers": tuple(read_tier(item, f"tiers[{place}]") for place, item in enumerate(fields["tiers"])),
        "bytes_per_token": model.bytes_per_token,
        "prefill": model.prefill,
        "decode": model.decode,
        "model": fields.get("model", "") if model.spec is None else model.spec.name,
    }
    return Deployment(**plain)


def read_tier(item: Any, where: str = "tier") -> TierSpec:
    """Return the tier that a text or a table describes."""
    if isinstance(item, str):
        return TierSpec.parse(item)
    keys = ("name", "capacity", "blocks", "link", "up", "down", "direct", "admission", "min_tokens")
    _check_table(where, item, keys)
    if "link" in item and "up" in item:
        raise ValueError(f"{where}.link is another word for up: give one of them")
    plain = {key: item[key] for key in ("name", "admission") if key in item}
    if "name" not in plain:
        raise ValueError(f"{where}.name must be given")
    if "capacity" in item:
        plain["capacity_bytes"] = _number(f"{where}.capacity", item["capacity"], parse_bytes)
    for key in ("blocks", "min_tokens"):
        if key in item:
            plain[key] = _number(f"{where}.{key}", item[key], parse_count)
    for key in ("link", "up", "down", "direct"):
        if key in item:
            plain["up" if key == "link" else key] = read_link(item[key], f"{where}.{key}")
    return TierSpec(**plain)


def read_link(item: Any, where: str = "link") -> Link:
    """Return the link that a name, a rate or a table describes."""
    if isinstance(item, str) and item in LINKS:
        return LINKS[item]
    if isinstance(item, str) and item[:1].isalpha():
        raise ValueError(f"{where} must be a rate or a known link: got {item!r}{_hint(item, LINKS)}")
    if not isinstance(item, Mapping):
        return Link(_number(where, item, parse_rate))
    _check_table(where, item, ("name", "rate", "latency", "alpha", "fragment", "count"))
    if ("name" in item) == ("rate" in item):
        raise ValueError(f"{where} must have a name or a rate: got {dict(item)!r}")
    named = read_link(item["name"], f"{where}.name") if "name" in item else None
    count = as_positive_int(f"{where}.count", _number(f"{where}.count", item.get("count", 1), parse_count))
    given = {
        "bytes_per_second": _number(f"{where}.rate", item["rate"], parse_rate)
        if named is None
        else named.bytes_per_second,
        "latency_s": _number(f"{where}.latency", item.get("latency", named.latency_s if named else 0.0), parse_seconds),
        "alpha_s": _number(f"{where}.alpha", item.get("alpha", named.alpha_s if named else 0.0), parse_seconds),
    }
    fragment = item.get("fragment", named.fragment_bytes if named else None)
    if fragment is not None:
        given["fragment_bytes"] = _number(f"{where}.fragment", fragment, parse_bytes) * count
    given["bytes_per_second"] = as_real(f"{where}.rate", given["bytes_per_second"]) * count
    return Link(**given, source=named.source if named else "")


def _read_separation(item: Any, model: ModelSpec | None) -> Separation | None:
    """Return how prefill is separated from decode; the layers are the model's, where it is known."""
    if item is None:
        return None
    keys = tuple(field.name for field in fields_of(Separation))
    _check_table("separation", item, keys)
    if "link" not in item:
        raise ValueError("separation.link must be given")
    plain = dict(item) | {"link": read_link(item["link"], "separation.link")}
    for key in ("streams", "layers", "chunk_tokens"):
        if key in plain:
            plain[key] = _number(f"separation.{key}", plain[key], parse_count)
    if model is not None and item.get("schedule", Separation.schedule) == "layered":
        plain.setdefault("layers", sum(stream.layers for stream in model.streams if stream.kind != "index") or None)
    return Separation(**plain)


def _read_model(fields: Mapping[str, Any]) -> _Model:
    """Return the model's bytes and times: those given, and what follows from model and GPUs."""
    spec = _read_spec(fields)
    gpus = _number("gpus", fields.get("gpus", 1), parse_count)
    given_bytes = fields.get("bytes_per_token")
    if given_bytes is not None:
        kv_bytes = _number("bytes_per_token", given_bytes, parse_bytes)
    elif spec is not None:
        ranks = _number("tp", fields.get("tp", gpus), parse_count)
        kv_bytes = spec.bytes_per_token(dtype=fields.get("dtype", "bf16"), tp=ranks) * ranks
    else:
        raise ValueError("bytes_per_token must be given, or a model that has them")
    prefill = _read_prefill(fields["prefill"]) if "prefill" in fields else None
    decode = _read_decode(fields["decode"]) if "decode" in fields else None
    if "gpu" in fields:
        if fields["gpu"] not in GPUS:
            raise ValueError(f"gpu must be one of {', '.join(GPUS)}: got {fields['gpu']!r}")
        if spec is None:
            raise ValueError("gpu needs model: what it takes follows from both")
        parameters = fields.get("parameters")
        times = model_times(
            spec,
            GPUS[fields["gpu"]],
            parameters=named_parameters(spec.name)
            if parameters is None
            else _number("parameters", parameters, parse_count),
            num_gpus=gpus,
            kernel_share=fields.get("kernel_share", KERNEL_SHARE),
            bytes_per_token=kv_bytes,
        )
        prefill, decode = prefill or times[0], decode or times[1]
    if prefill is None:
        raise ValueError("prefill must be given: its time, the name of one that was measured, or a gpu with a model")
    return _Model(spec, kv_bytes, prefill, decode or DecodeTime(0.0, 0.0, 0.0))


def _read_spec(fields: Mapping[str, Any]) -> ModelSpec | None:
    name = fields.get("model")
    if not name:
        return None
    if not isinstance(name, str):
        raise TypeError(f"model must be a name or the path of a config: got {name!r}")
    if name.endswith(".json") or "gpu" in fields or "bytes_per_token" not in fields:
        return ModelSpec.from_file(name) if name.endswith(".json") else ModelSpec.from_name(name)
    return None  # a name for reports


def _read_prefill(item: Any) -> PrefillTime:
    if isinstance(item, PrefillTime):
        return item
    if isinstance(item, str):
        if item not in PREFILL_TIMES:
            raise ValueError(f"prefill must be one of {', '.join(PREFILL_TIMES)}, or a table: got {item!r}")
        return PREFILL_TIMES[item]
    return _times(PrefillTime, "prefill", item, ("start", "per_token", "per_pair"))


def _read_decode(item: Any) -> DecodeTime:
    if isinstance(item, DecodeTime):
        return item
    return _times(DecodeTime, "decode", item, ("base", "per_request", "per_token"))


def _times(kind: type[_Times], where: str, item: Any, keys: tuple[str, str, str]) -> _Times:
    """Return a time model of three durations."""
    _check_table(where, item, keys)
    first, second, third = (_number(f"{where}.{key}", item.get(key, 0.0), parse_seconds) for key in keys)
    return kind(first, second, third)


def _number(where: str, value: Any, parse: Callable[[str], Any]) -> Any:
    """Return a number as it is, and a text as `parse` reads it."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _check_table(where: str, item: Any, keys: Iterable[str]) -> None:
    if not isinstance(item, Mapping):
        raise TypeError(f"{where} must be a table of {', '.join(keys)}: got {item!r}")
    _check_keys(f"{where}.", item, keys)


def _check_keys(where: str, fields: Mapping[str, Any], keys: Iterable[str]) -> None:
    known = list(keys)
    for key in fields:
        if key not in known:
            raise ValueError(f"unknown key {where + str(key)!r}{_hint(str(key), known) or f'; known are {known}'}")


def _hint(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=3, cutoff=0.7)
    return f"; did you mean {', '.join(near)}?" if near else ""
