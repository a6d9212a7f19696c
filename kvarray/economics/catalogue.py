"""The built-in catalogue: models by the names that people type.

`models.json` beside this module is the only place with numbers of models: one row each, the fields of a config that
shape its cache as columns (what few families have is gathered in ``more``), and where they were read. A row goes
through the same reader as a `config.json`, so a model here and its config give one answer.
"""

import re
from typing import Any

__all__ = ["catalogue_config", "catalogue_names"]

_SUFFIX = re.compile(r"(instruct|chat|base|it|hf|bf16|fp8|nvfp4|awq|gptq|thinking|preview)$")


def catalogue_names() -> list[str]:
    """Return the names of the models of the catalogue, in its order.

    Examples
    --------
    >>> "Llama-3.1-70B" in catalogue_names()
    True
    """
    return [row["name"] for row in _rows()]


def catalogue_config(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a model as the catalogue spells it, and its config.

    Parameters
    ----------
    name : str
        As people type it; see `ModelSpec.from_name`.

    Returns
    -------
    name : str
    config : dict
        The fields that shape the cache, named as in a `config.json`.

    Raises
    ------
    ValueError
        If there is no such model; the nearest names are suggested.

    Examples
    --------
    >>> catalogue_config("meta-llama/Llama-3.1-8B-Instruct")[0]
    'Llama-3.1-8B'
    >>> catalogue_config("lama-3.1-8b")
    Traceback (most recent call last):
        ...
    ValueError: no model named 'lama-3.1-8b' in the catalogue; did you mean Llama-3.1-8B, Llama-3.2-1B, Llama-3-8B?
    """
    rows: dict[str, dict[str, Any]] = {}
    for row in _rows():
        for spelling in (row["name"], *row["aliases"]):
            rows.setdefault(_plain(spelling), row)
    for spelling in _spellings(name):
        if spelling in rows:
            return rows[spelling]["name"], _config(rows[spelling])
    from difflib import get_close_matches

    near = get_close_matches(_spellings(name)[0], list(rows), n=3)
    names = list(dict.fromkeys(rows[spelling]["name"] for spelling in near))
    hint = f"did you mean {', '.join(names)}?" if names else "give the path of its config.json"
    raise ValueError(f"no model named {name!r} in the catalogue; {hint}")


def _rows() -> list[dict[str, Any]]:
    import json
    from importlib.resources import files

    table = json.loads(files("kvarray.economics").joinpath("models.json").read_text(encoding="utf-8"))
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _config(row: dict[str, Any]) -> dict[str, Any]:
    fields = {field: value for field, value in row.items() if field not in ("name", "aliases", "source", "more")}
    return {**{field: value for field, value in fields.items() if value is not None}, **row["more"]}


def _plain(name: str) -> str:
    """Return a name without case and separators: "Qwen3 32B" -> "qwen332b", but "3.1" stays apart from "31"."""
    return re.sub(r"[\s_\-]+", "", name.lower())


def _spellings(name: str) -> list[str]:
    """Return a name without its organisation, then without ever more of its suffixes and of Meta's prefix."""
    spellings = [_plain(name.rsplit("/", 1)[-1])]
    while (shorter := _SUFFIX.sub("", spellings[-1])) != spellings[-1] and shorter:
        spellings.append(shorter)
    return spellings + [spelling.removeprefix("meta").removeprefix("nvidia") for spelling in spellings]
