"""How the numbers of a cache are stored: bits each, and the scales of quantised groups.

A vector of one head and token (a key, a value, a latent) is the unit that is packed and scaled: its numbers fill
whole bytes, and a group never reaches over its end. The block formats of the hardware come with their groups
(``mxfp8``, ``mxfp4``: 32 numbers share one byte; ``nvfp4``: 16); for the plain ones (``fp8``, ``int8``, ``int4`` ...)
groups are a choice, and without one the scales are per tensor and cost nothing worth counting.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvarray.arrays import as_positive_int

__all__ = ["KVDtype", "kv_dtype", "takes_groups"]


@dataclass(frozen=True, slots=True)
class KVDtype:
    """A number format of the cache; made by `kv_dtype`.

    Attributes
    ----------
    name : str
        The format as asked for.
    bits : int
        Bits of one number.
    group_size : int or None
        Numbers that share a scale; None where no scales are stored with the cache.
    scale_bits : int
        Bits of one scale.
    """

    name: str
    bits: int
    group_size: int | None = None
    scale_bits: int = 0

    def vector_bytes(self, width: int) -> int:
        """Return the bytes of one vector of `width` numbers, its scales included.

        Examples
        --------
        >>> kv_dtype("int4", group_size=32).vector_bytes(128)  # 64, and 4 scales of 2 bytes
        72
        """
        scales = 0 if self.group_size is None else -(-width // self.group_size)
        return -(-width * self.bits // 8) + -(-scales * self.scale_bits // 8)


_PLAIN: Mapping[str, int] = {
    "fp32": 32, "float32": 32, "float": 32,
    "bf16": 16, "bfloat16": 16, "fp16": 16, "float16": 16, "half": 16,
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "float8_e4m3fn": 8, "float8_e5m2": 8, "int8": 8, "uint8": 8,
    "fp6": 6, "int6": 6, "int5": 5, "fp4": 4, "int4": 4, "uint4": 4, "int3": 3, "int2": 2,
}  # fmt: skip
_GROUPED: Mapping[str, KVDtype] = {
    "mxfp8": KVDtype("mxfp8", 8, 32, 8),
    "mxfp6": KVDtype("mxfp6", 6, 32, 8),
    "mxfp4": KVDtype("mxfp4", 4, 32, 8),
    "nvfp4": KVDtype("nvfp4", 4, 16, 8),
}


def takes_groups(number_format: KVDtype) -> bool:
    """Return whether a plain format may be grouped: one of 8 bits or fewer without groups of its own.

    Examples
    --------
    >>> takes_groups(kv_dtype("int4")), takes_groups(kv_dtype("bf16")), takes_groups(kv_dtype("mxfp4"))
    (True, False, False)
    """
    return number_format.bits <= 8 and number_format.group_size is None


def kv_dtype(name: str, *, group_size: int | None = None, scale_dtype: str = "fp16") -> KVDtype:
    """Return a number format by name.

    Parameters
    ----------
    name : str
        ``fp32``, ``bf16``, ``fp16``, ``fp8``, ``int8``, ``int4`` ... (PyTorch's long names too), or ``mxfp8``,
        ``mxfp4``, ``nvfp4``, which bring their groups along.
    group_size : int, optional
        Numbers that share a scale. Only for formats of 8 bits and fewer without groups of their own.
    scale_dtype : str, optional
        Format of the scales; counts only with `group_size`. A zero point beside each scale is as many bits again:
        say ``fp32`` for an fp16 scale and an fp16 zero point.

    Returns
    -------
    KVDtype

    Raises
    ------
    ValueError
        If a name is unknown (the nearest are suggested), or the format takes no groups.

    Examples
    --------
    >>> kv_dtype("bf16").vector_bytes(128), kv_dtype("nvfp4").vector_bytes(128)
    (256, 72)
    >>> kv_dtype("bfloat")
    Traceback (most recent call last):
        ...
    ValueError: dtype must be a number format that is known: got 'bfloat'; did you mean float, bfloat16, float32?
    """
    if group_size is None:
        return _GROUPED[name] if name in _GROUPED else KVDtype(name, _bits("dtype", name))
    group_size = as_positive_int("group_size", group_size)
    if name in _GROUPED:
        own = _GROUPED[name].group_size
        raise ValueError(f"group_size must not be given for {name}, whose groups are of {own}: got {group_size}")
    bits = _bits("dtype", name)
    if bits > 8:
        raise ValueError(f"group_size must go with a format of 8 bits or fewer: got {group_size} for {name}")
    return KVDtype(name, bits, group_size, _bits("scale_dtype", scale_dtype))


def _bits(argument: str, name: str) -> int:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be the name of a number format: got {name!r}")
    if name in _PLAIN:
        return _PLAIN[name]
    from difflib import get_close_matches

    known = [*_PLAIN, *_GROUPED] if argument == "dtype" else list(_PLAIN)
    near = get_close_matches(name.lower(), known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise ValueError(f"{argument} must be a number format that is known: got {name!r}; {hint}")
