"""Reading a config by the names of its fields: old and new names, what was used, what had to be assumed.

Model families name one thing in many ways (``num_hidden_layers``, ``n_layer``, ``num_layers``). A `Fields` looks a
thing up under all its names, refuses two names that disagree, remembers which fields were read, and keeps the list of
what was not in the config and had to be taken from elsewhere.
"""

import re
from collections.abc import Mapping, Sequence
from reprlib import repr as shown  # a value in a message, which may be a whole config
from typing import Any

__all__ = ["NAMES", "Fields", "shown"]

NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_attention_groups"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "head_size"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "window": ("sliding_window", "sliding_window_size", "attention_window_size"),
    "max_tokens": (
        "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_sequence_length", "n_ctx",
    ),
    "draft_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "dtype": ("dtype", "torch_dtype"),
}  # fmt: skip
"""The names under which configs hold one thing, most common first."""

_TELLING = re.compile(
    r"window|chunk_size|layer_types|block_type|block_configs|hybrid|pattern|layer_(period|offset|interval|idxs|indices)"
    r"|attention_interval|attn_every|compress|^index|sparse_attention|recurrent|loop|layer_group"
    r"|cross_attention|shared?_(layers|kv)|kv_shared|cla_|lora_rank|head_dim|kv_heads|key_value_heads|multi_query"
    r"|per_layer_config|sink"
)
"""Words of fields that shape caches."""
_SIZES = re.compile(r"mamba|ssm_|^linear_|^conv_")
"""Words of fields that shape states where they are whole numbers, and tune the computation where they are not."""
_HARMLESS = {
    "activation_sparsity_pattern", "add_full_attention_sink_bias", "add_swa_attention_sink_bias", "chunk_size",
    "chunk_size_feed_forward", "compress_rope_theta", "context_window_size", "conv_L_cache", "conv_dim_out",
    "expert_layer_offset", "expert_layer_period", "hc_sinkhorn_iters", "index_block_size", "index_local_blocks",
    "index_n_heads", "index_share_for_mtp_iteration", "index_skip_topk_offset", "index_topk", "index_topk_blocks",
    "index_topk_freq", "index_topk_pattern", "indexer_rope_interleave", "linear_attn_alpha_factor",
    "linear_attn_beta_factor", "mamba_chunk_size", "mamba_dt_rank", "max_window_layers", "mlp_layer_types",
    "moe_layer_interval", "no_rope_layer_interval", "o_lora_rank", "prefill_chunk_size", "q_lora_rank",
    "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "rms_norm_before_gate", "use_sliding_window",
    "v_head_dim",
}  # fmt: skip
"""Fields with such a word that shape none."""


class Fields:
    """A config looked up by what its fields mean.

    Parameters
    ----------
    config : mapping
        The config, or the part of it that describes the text model.
    where : str
        What to call it in messages.
    defaults : mapping, optional
        What the family's own code takes for fields that its configs leave out.
    """

    def __init__(self, config: Mapping[str, Any], *, where: str, defaults: Mapping[str, Any] | None = None) -> None:
        unnamed = [field for field in config if not isinstance(field, str)]
        if unnamed:
            raise ValueError(f"{where}: the names of fields must be strings: got {shown(unnamed[0])}")
        self.config = config
        self.where = where
        self.defaults = defaults or {}
        self.used = {field for names in NAMES.values() for field in names}
        self.assumptions: list[str] = []

    def assume(self, line: str) -> None:
        """Note something that the config does not say."""
        if line not in self.assumptions:
            self.assumptions.append(line)

    def fail(self, message: str) -> ValueError:
        """Return the error of this config with a message."""
        return ValueError(f"{self.where}: {message}")

    def raw(self, field: str) -> Any:
        """Return a field as it is, None where it is absent or null."""
        self.used.add(field)
        return self.config.get(field)

    def has(self, field: str) -> bool:
        """Return whether a field is there and not null."""
        return self.raw(field) is not None

    def flag(self, field: str) -> bool:
        """Return a field that is true or false; absent is false."""
        value = self.raw(field)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.fail(f"{field} must be true or false: got {shown(value)}")

    def count(self, meaning: str, *, low: int = 1) -> int | None:
        """Return a whole number under any of its names, or the family's default, or None.

        `meaning` is a key of `NAMES`, or a field with one name. A null or absent field is None; names that disagree
        are an error.
        """
        found = {}
        for field in NAMES.get(meaning, (meaning,)):
            value = self.raw(field)
            if value is not None:
                found[field] = self.whole(field, value, low=low)
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{field} = {value}" for field, value in found.items())
            raise self.fail(f"fields of one meaning must agree: got {listed}")
        if found:
            return next(iter(found.values()))
        names = NAMES.get(meaning, (meaning,))
        if meaning in self.defaults and not any(field in self.config for field in names):
            default: int | None = self.defaults[meaning]
            if default is not None:
                self.assume(f"{names[0]} is absent: {default}, the default of {self.defaults['family']} configs")
            return default
        return None

    def need(self, meaning: str, *, low: int = 1, why: str = "") -> int:
        """Return a whole number as `count` does; an error where there is none."""
        value = self.count(meaning, low=low)
        if value is None:
            names = " or ".join(NAMES.get(meaning, (meaning,)))
            raise self.fail(f"{names} is missing{f', which {why} needs' if why else ''}")
        return value

    def whole(self, field: str, value: Any, *, low: int = 1) -> int:
        """Return a value as an int of `low` or more, or fail naming the field."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.fail(f"{field} must be a whole number of {low} or more: got {shown(value)}")
        if value >= 2**31:
            raise self.fail(f"{field} must be less than 2^31: got {value}")
        return int(value)

    def items(self, field: str) -> list[Any] | None:
        """Return a field that is a list; absent, null or empty is None."""
        value = self.raw(field)
        if value is None or value == []:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.fail(f"{field} must be a list: got {shown(value)}")
        return list(value)

    def bits(self, field: str) -> list[bool] | None:
        """Return a field that is a list of zeros and ones; absent, null or empty is None."""
        bits = self.items(field)
        if bits is not None and any(bit not in (0, 1) for bit in bits):
            raise self.fail(f"{field} must be of zeros and ones: got {shown(bits)}")
        return None if bits is None else [bool(bit) for bit in bits]

    def names(self, field: str) -> list[str] | None:
        """Return a field that is a list of names; absent, null or empty is None."""
        names = self.items(field)
        if names is not None and not all(isinstance(name, str) for name in names):
            raise self.fail(f"{field} must be a list of names: got {shown(names)}")
        return names

    def part(self, field: str) -> "Fields | None":
        """Return a nested mapping as fields that share this one's notes; None where it is absent or null."""
        value = self.raw(field)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fail(f"{field} must be a mapping: got {shown(value)}")
        inner = Fields(value, where=f"{self.where}: {field}")
        inner.assumptions = self.assumptions
        return inner

    def not_understood(self) -> list[str]:
        """Return the fields that sound as if they shaped the cache and were not read."""
        unread = {field: value for field, value in self.config.items() if field not in self.used | _HARMLESS}
        return [
            field
            for field, value in unread.items()
            if value not in (None, False, 0, "", [], {})
            and (_TELLING.search(field) or (_SIZES.search(field) and type(value) is int))
        ]
