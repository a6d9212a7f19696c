"""Reading configs: what is recognised in real ones, what is assumed, what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarray.economics import Footprint, ModelSpec
from kvarray.economics.catalogue import catalogue_config, catalogue_names
from tests.data import data_file, data_files, published_cases
from tests.reference import economics as twin

BASE = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 128}
MLA = {**BASE, "model_type": "deepseek_v3", "kv_lora_rank": 32, "qk_rope_head_dim": 8}


def _nested(depth):
    """Lists within lists."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


def config(model_type="llama", without=(), **more):
    return {key: value for key, value in {"model_type": model_type, **BASE, **more}.items() if key not in without}


def summary(spec):
    """What was recognised, in one line: layers, kind, heads and widths; window; ratio; then states and drafts."""
    parts = []
    for stream in spec.streams:
        text = f"{stream.layers} {stream.kind} {stream.heads}x{'+'.join(map(str, stream.widths))}"
        text += f" <{stream.window}" if stream.window else ""
        text += f" /{stream.ratio}" if stream.ratio > 1 else ""
        parts.append(text)
    parts += [f"{s.layers} {s.kind} state {s.heads}x{s.width} {s.dtype}" for s in spec.states]
    parts += [f"draft {s.layers} {s.kind}" for s in spec.draft_streams]
    return "; ".join(parts)


# Errors.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (config(without=["num_hidden_layers"]), "num_hidden_layers or n_layer or .* is missing"),
        (config(without=["num_attention_heads"], num_key_value_heads=None), "num_attention_heads or .* is missing"),
        (config(without=["head_dim", "hidden_size"]), "hidden_size or .* is missing, which a config without head_dim"),
        (config(without=["head_dim"], hidden_size=130), "hidden_size must be a multiple of .*: got 130 and 8"),
        (config(num_hidden_layers=0), "num_hidden_layers must be a whole number of 1 or more: got 0"),
        (config(num_hidden_layers=10**6), "num_hidden_layers must be 10000 at most: got 1000000"),
        (config(head_dim=2**40), "head_dim must be less than 2.31"),
        (config(num_hidden_layers="4"), "num_hidden_layers must be a whole number .*: got '4'"),
        (config(num_key_value_heads=True), "num_key_value_heads must be a whole number"),
        (config(head_dim=-1), "head_dim must be a whole number of 1 or more: got -1"),
        (config(num_key_value_heads=3), "the attention heads must be a multiple of the key-value heads: got 8 and 3"),
        (config(n_layer=5), "fields of one meaning must agree: got num_hidden_layers = 4, n_layer = 5"),
        (config("gpt_bigcode", multi_query=True), "multi_query = true means 1 key-value head: got 2"),
        (config("gpt_bigcode", multi_query="yes"), "multi_query must be true or false: got 'yes'"),
        (config("chatglm", multi_query_attention=True), "multi_query_group_num is missing"),
        (config(layer_types=["full_attention"] * 3), "layer_types must name each of the 4 layers: got 3"),
        (config(layer_types="full"), "layer_types must be a list: got 'full'"),
        (config(layer_types=["fool_attention"] * 4), r"layer_types\[0\] must be one of .*: got 'fool_attention'"),
        (config(layer_types=["sliding_attention"] * 4), "sliding_window is missing, which the sliding layers need"),
        (config(layer_types=["chunked_attention"] * 4), "attention_chunk_size is missing, which a chunked layer"),
        (config(layer_types=["linear_attention"] * 4), "the size of the linear layers' state is missing"),
        (config(layer_types=["indexed_attention"] * 4), "index_head_dim is missing"),
        (
            config("gemma3_text", layer_types=["full_attention"] * 4, sliding_window_pattern=2, sliding_window=8),
            "layer_types and sliding_window_pattern must agree: layer 0 is full by one, sliding by the other",
        ),
        (config("qwen3_next", layer_types=["full_attention"] * 4, full_attention_interval=4), "must agree: layer 0"),
        (config("exaone4", sliding_window_pattern="LLX", sliding_window=8), "of the letters L and G: got 'LLX'"),
        (config("nobody", sliding_window=8), "sliding_window = 8, and nothing says which layers it is for"),
        (config("qwen2", use_sliding_window=True, sliding_window=8), "max_window_layers is missing"),
        (config("llama", mamba_states=7), "not understood for llama: mamba_states = 7"),
        (config("nobody", layer_group_size=4), "not understood for nobody: layer_group_size = 4"),
        (config("deci", num_key_value_heads_per_layer=[4, 2]), "num_key_value_heads_per_layer must name each layer"),
        (config("nobody", attention_window_pattern=[1, 2]), "not understood for nobody: attention_window_pattern"),
        (config("llama", cross_attention_layers=[3]), "not understood for llama: cross_attention_layers"),
        (config("t5", is_encoder_decoder=True), "t5 keeps a cache of a shape that is not modelled"),
        (config("rwkv"), "rwkv keeps a cache of a shape that is not modelled"),
        (config("nemotron_h", hybrid_override_pattern="M*X-"), "of the letters .*: got 'M[*]X-'"),
        (config("nemotron_h", hybrid_override_pattern="M*"), "must name each of the 4 layers: got 2"),
        (config("mimo_v2_flash", hybrid_layer_pattern=[0, 1, 2, 0]), "must be of zeros and ones"),
        (config("jamba", attn_layer_period=2, attn_layer_offset=2), "attn_layer_offset must be less than .* = 2"),
        (config("bamba", attn_layer_indices=[1, 4]), "attn_layer_indices must be indices of the 4 layers: got 4"),
        (config("gpt_neo"), "layer_types .or an older field.* is missing"),
        (config("recurrent_gemma"), "layer_types .or an older field.* is missing"),
        (config("bamba"), "layer_types .or an older field.* is missing"),
        (config("kimi_linear", linear_attn_config={"full_attn_layers": [4], "kda_layers": [1, 2]}), "each layer once"),
        (config("gpt_neo", attention_types=[["global", 4]]), "attention_types must be like"),
        (config("nemotron-nas", block_configs=[{}] * 4), r"block_configs\[0\] must have an attention part"),
        (config("llama4", no_rope_layers=[1, 0]), "no_rope_layers must name each of the 4 layers: got 2"),
        (config("gemma3n", num_kv_shared_layers=4), "num_kv_shared_layers must be less than the 4 layers: got 4"),
        (
            config(
                "gemma3n",
                num_kv_shared_layers=1,
                sliding_window=8,
                layer_types=["sliding_attention"] * 3 + ["full_attention"],
            ),
            "the last 1 layers share the cache of earlier ones, of which none is full",
        ),
        ({key: value for key, value in MLA.items() if key != "model_type" and key != "qk_rope_head_dim"}, "qk_rope"),
        ({**MLA, "index_head_dim": 4, "indexer_types": ["full"]}, "indexer_types must be full or shared for each"),
        (
            {**MLA, "index_head_dim": 4, "index_topk_pattern": "FS"},
            "index_topk_pattern must be F or S for each of the 4",
        ),
        ({**MLA, "index_head_dim": 4, "index_topk_pattern": ["F", "X"] * 2}, "index_topk_pattern must be F or S for"),
        ({**MLA, "index_head_dim": 4, "index_topk_pattern": 5}, "index_topk_pattern must be a list: got 5"),
        (
            {**MLA, "index_head_dim": 4, "index_topk_pattern": "FFSS", "indexer_types": ["full", "shared"] * 2},
            "indexer_types and index_topk_pattern must agree",
        ),
        ({**MLA, "use_mla": "no"}, "use_mla must be true or false: got 'no'"),
        (
            config(sparse_attention_config={"sparse_index_dim": 4, "sparse_attention_freq": ["no"] * 4}),
            r"sparse_attention_freq must be of zeros and ones: got \['no'",
        ),
        (config("qwen2", use_sliding_window="no", sliding_window=8), "use_sliding_window must be true or false"),
        (config(text_config=5), "text_config must be a mapping: got 5"),
        (config("mpt", attn_config=5), "attn_config must be a mapping: got 5"),
        (config(5), "model_type must be a string: got 5"),
        (config("smollm3", no_rope_layers=["no"] * 4), "no_rope_layers must be of zeros and ones"),
        (config(num_mtp_modules=1, mtp_hybrid_override_pattern=5), "override_pattern must be letters"),
        (
            config("nemotron-nas", block_configs=[{"attention": {"n_heads_in_group": 4, "no_op": "no"}}] * 4),
            r"block_configs\[0\]: no_op must be true or false: got 'no'",
        ),
        (
            config(
                "nemotron-nas",
                block_configs=[{"attention": {"n_heads_in_group": 4, "window_length": 8, "num_sink_tokens": "x"}}] * 4,
            ),
            "num_sink_tokens must be a whole number of 0 or more: got 'x'",
        ),
        (config(per_layer_config={"²": {"head_dim": 4}}), "per_layer_config must map layer numbers to fields"),
        ({**config(), 5: 5}, "the names of fields must be strings: got 5"),
        (config(num_nextn_predict_layers=10**9), "the draft layers must be 10000 at most: got 1000000000"),
        (config(num_mtp_modules=10**5, mtp_transformer_layers=10**5), "the draft layers must be 10000 at most"),
        (config("gpt_neo", attention_types=[[["global"], 10**9]]), "attention_types must name 10000 layers at most"),
        (config("gpt_neo", attention_types=[[["global"], 0]]), "attention_types must be a whole number of 1 or more"),
        (config(layer_types=_nested(5000)), r"layer_types must be a list of names: got \[\[\["),
        (config(layer_group_size=_nested(5000)), r"not understood for llama: layer_group_size = \[\[\["),
        ({"num_hidden_layers": 4, "attention_types": [], "layers_block_type": ["moe"] * 4}, "must keep something"),
        (config("x", compress_ratios=[4, 4], sliding_window=8, index_head_dim=4), "must name each of the 4 layers"),
        (config("x", compress_ratios=[4, 0, -1, 0], sliding_window=8), r"compress_ratios\[2\] must be a whole number"),
        (
            config("x", layer_types=["heavily_compressed_attention"] * 4),
            "compress_rates must name the ratio of",
        ),
        (config("x", compress_ratios=[0] * 4), "sliding_window is missing, which compressed attention needs"),
        (config("x", compress_ratios=[4] * 4, sliding_window=8), "index_head_dim is missing, which compressed sparse"),
        (config("qwen3_next", linear_conv_kernel_dim=1), "linear_conv_kernel_dim must be a whole number of 2 or more"),
        (config("falcon_h1", mamba_n_heads=3, mamba_d_ssm=128), "inner width 128 must be a multiple of the 3"),
        (
            config("falcon_h1", mamba_n_heads=4, mamba_d_head=8, mamba_d_ssm=128),
            "mamba_d_ssm = 128 must be 4 heads of mamba_d_head = 8",
        ),
        (config(per_layer_config=[1]), "per_layer_config must map layer numbers to fields"),
        (config(per_layer_config={"1": 4}), "per_layer_config must map layer numbers to fields"),
        (config(layer_types=[["full_attention"]] * 4), "layer_types must be a list of names"),
        ([], "a config must be a mapping of fields: got list"),
    ],
)
def test_refused(fields, message):
    with pytest.raises(ValueError, match=message) as caught:
        ModelSpec.from_dict(fields, name="mine")
    assert str(caught.value).startswith("mine: ")


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match=r"no model named 'qwen-3-32' .* did you mean Qwen3-32B"):
        ModelSpec.from_name("qwen-3-32")
    with pytest.raises(ValueError, match=r"no model named '' in the catalogue; give the path of its config.json"):
        ModelSpec.from_name("")


def test_files_that_are_none(tmp_path):
    broken, text, binary = tmp_path / "config.json", tmp_path / "list.json", tmp_path / "binary.json"
    broken.write_text("{")
    text.write_text("[1]")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"config\.json: a config must be JSON"):
        ModelSpec.from_file(tmp_path)
    with pytest.raises(ValueError, match=r"list\.json: a config must be a mapping of fields: got list"):
        ModelSpec.from_file(text)
    with pytest.raises(ValueError, match=r"binary\.json: a config must be JSON"):
        ModelSpec.from_file(binary)
    with pytest.raises(FileNotFoundError):
        ModelSpec.from_file(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "must be JSON of a few levels"),
        ('{"a":' * 100_000, "must be JSON of a few levels"),
        ('{"head_dim": 64, "head_dim": 128}', "head_dim is stated twice, as 64 and 128"),
        ('{"text_config": {"use_mla": true, "use_mla": 1}}', "use_mla is stated twice, as True and 1"),
        ('{"head_dim": 64, "head_dim": 64}', "num_hidden_layers or .* is missing"),
        ('{"num_hidden_layers": 2}', "num_attention_heads or .* is missing"),
    ],
)
def test_files_that_are_refused_are_named_by_their_path(tmp_path, text, message):
    path = tmp_path / "a--b.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        ModelSpec.from_file(path)
    assert str(caught.value).startswith(f"{path}: ")


# Worked examples: a line for each way that families say something.


READ = [
        (config(), "4 full 2x16+16"),
        (config(num_key_value_heads=None), "4 full 8x16+16"),
        (config(without=["head_dim"]), "4 full 2x16+16"),
        (config(v_head_dim=8), "4 full 2x16+8"),
        ({"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 32}, "2 full 4x8+8"),
        ({"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 4, "n_embd": 32, "multi_query": True}, "2 full 1x8+8"),
        ({"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 4, "n_embd": 32, "multi_query": False}, "2 full 4x8+8"),
        (config("falcon", multi_query=True, num_key_value_heads=8), "4 full 1x16+16"),
        (config("falcon", new_decoder_architecture=True, multi_query=True), "4 full 2x16+16"),
        (config("falcon", multi_query=False, num_key_value_heads=None), "4 full 8x16+16"),
        (config("RefinedWeb", without=["num_key_value_heads"], n_head_kv=4), "4 full 4x16+16"),
        (config("deci", num_key_value_heads_per_layer=[4, 2, 2, 1]), "1 full 4x16+16; 2 full 2x16+16; 1 full 1x16+16"),
        (config("hunyuan_v1_moe", use_mla=False, kv_lora_rank=32), "4 full 2x16+16"),
        (config("qwen", max_position_embeddings=32768, seq_length=8192), "4 full 2x16+16"),
        (config("qwen2_vl", text_config={}), "4 full 2x16+16"),
        (
            {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2,
             "attn_config": {"attn_type": "multiquery_attention"}},
            "2 full 1x8+8",
        ),
        (
            config("chatglm", multi_query_attention=True, multi_query_group_num=1, num_key_value_heads=None),
            "4 full 1x16+16",
        ),
        (config("chatglm", multi_query_attention=False, num_key_value_heads=None), "4 full 8x16+16"),
        (
            {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2, "attn_config": {"kv_n_heads": 2}},
            "2 full 2x8+8",
        ),
        ({"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2, "attn_config": {}}, "2 full 4x8+8"),
        ({"model_type": "llava", "text_config": config()}, "4 full 2x16+16"),
        ({"model_type": "omni", "thinker_config": {"text_config": config()}}, "4 full 2x16+16"),
        # latents and indexers
        (MLA, "4 latent 1x32+8"),
        ({**MLA, "index_head_dim": 4}, "4 latent 1x32+8; 4 index 1x4"),
        (
            {**MLA, "index_head_dim": 4, "indexer_types": ["full", "shared"] * 2},
            "4 latent 1x32+8; 2 index 1x4",
        ),
        ({**MLA, "index_head_dim": 4, "index_topk_pattern": "FSSF"}, "4 latent 1x32+8; 2 index 1x4"),
        ({**MLA, "index_head_dim": 4, "index_topk_pattern": ["F", "S", "S", "S"]}, "4 latent 1x32+8; 1 index 1x4"),
        (
            {**MLA, "index_head_dim": 4, "index_topk_freq": 2, "index_skip_topk_offset": 2},
            "4 latent 1x32+8; 3 index 1x4",
        ),
        (
            {
                **MLA,
                "index_head_dim": 4,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "deepseek_sparse_attention"] * 2,
            },
            "2 latent_sliding 1x32+8 <8; 2 latent 1x32+8; 2 index 1x4",
        ),
        (
            config(
                "minimax_m3",
                sparse_attention_config={"sparse_attention_freq": [0, 1, 1, 1], "sparse_index_dim": 4},
            ),
            "4 full 2x16+16; 3 index 1x4",
        ),
        # windows
        (config("mistral", sliding_window=8), "4 sliding 2x16+16 <8"),
        (config("mistral", sliding_window=None), "4 full 2x16+16"),
        (config("mistral"), "4 sliding 2x16+16 <4096"),
        (config("qwen2", sliding_window=8, use_sliding_window=False, max_window_layers=1), "4 full 2x16+16"),
        (
            config("qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=1),
            "1 full 2x16+16; 3 sliding 2x16+16 <8",
        ),
        (config("qwen3_moe", sliding_window=8, use_sliding_window=True), "4 sliding 2x16+16 <8"),
        (config("gemma2", sliding_window=8), "2 sliding 2x16+16 <8; 2 full 2x16+16"),
        (config("gemma3_text", sliding_window=8, num_hidden_layers=7), "6 sliding 2x16+16 <8; 1 full 2x16+16"),
        (config("gemma3_text", sliding_window=8, sliding_window_pattern=4), "3 sliding 2x16+16 <8; 1 full 2x16+16"),
        (config("exaone4", sliding_window=8, sliding_window_pattern="LG"), "2 sliding 2x16+16 <8; 2 full 2x16+16"),
        (config("exaone4", sliding_window=8, sliding_window_pattern="LLG"), "2 sliding 2x16+16 <8; 2 full 2x16+16"),
        (config("cwm", sliding_window=8), "1 full 2x16+16; 3 sliding 2x16+16 <8"),
        (config("afmoe", sliding_window=8, global_attn_every_n_layers=2), "2 sliding 2x16+16 <8; 2 full 2x16+16"),
        (config("llama4_text", attention_chunk_size=8), "3 chunked 2x16+16 <8; 1 full 2x16+16"),
        (config("llama4_text", attention_chunk_size=8, no_rope_layers=[0, 1, 1, 0]),
         "2 full 2x16+16; 2 chunked 2x16+16 <8"),
        (config("llama4_text", attention_chunk_size=None), "4 full 2x16+16"),
        (config("smollm3", sliding_window=None), "4 full 2x16+16"),
        (
            config("smollm3", sliding_window=8, use_sliding_window=True, no_rope_layers=[1, 1, 1, 0]),
            "3 full 2x16+16; 1 sliding 2x16+16 <8",
        ),
        (
            config(
                "mimo_v2_flash", hybrid_layer_pattern=[0, 1, 1, 1], sliding_window=8, v_head_dim=12,
                swa_num_key_value_heads=4, swa_head_dim=16, swa_v_head_dim=10,
            ),
            "1 full 2x16+12; 3 sliding 4x16+10 <8",
        ),
        (
            config(
                "step3p5", without=["num_key_value_heads"], num_attention_groups=2, sliding_window=8,
                layer_types=["full_attention"] + ["sliding_attention"] * 3,
                attention_other_setting={"num_attention_groups": 4, "head_dim": 8},
            ),
            "1 full 2x16+16; 3 sliding 4x8+8 <8",
        ),
        (
            config(
                "gemma4_text", sliding_window=8, global_head_dim=32,
                num_global_key_value_heads=1, attention_k_eq_v=True,
                layer_types=["sliding_attention"] * 3 + ["full_attention"],
                num_kv_shared_layers=0,
            ),
            "3 sliding 2x16+16 <8; 1 full 1x32+32",
        ),
        (
            config("gemma4_text", sliding_window=8, num_global_key_value_heads=1, attention_k_eq_v=False,
                   num_hidden_layers=2),
            "1 sliding 2x16+16 <8; 1 full 2x512+512",
        ),
        (config("gemma4_text", sliding_window=8, per_layer_config={"03": {"head_dim": 32}}, global_head_dim=None),
         "3 sliding 2x16+16 <8; 1 full 2x32+32"),
        (config("gpt_neo", attention_types=[[["global", "local"], 2]], window_size=8),
         "2 full 2x16+16; 2 sliding 2x16+16 <8"),
        (
            config(
                "nemotron-nas", num_key_value_heads=None,
                block_configs=[{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}},
                               {"attention": {"n_heads_in_group": 8, "window_length": 8}},
                               {"attention": {"replace_with_linear": True}}],
            ),
            "1 full 2x16+16; 1 sliding 1x16+16 <8",
        ),
        # sharing
        (
            config(
                "gemma3n_text", sliding_window=8, num_kv_shared_layers=2,
                layer_types=["sliding_attention", "full_attention"] * 2,
            ),
            "1 sliding 2x16+16 <8; 1 full 2x16+16",
        ),
        (config("hunyuan", use_cla=True, cla_share_factor=2), "2 full 2x16+16"),
        ({**MLA, "model_type": "longcat_flash", "num_layers": 3, "num_hidden_layers": None}, "6 latent 1x32+8"),
        # hybrids
        (
            config("qwen3_next", full_attention_interval=2, dtype="bfloat16", linear_num_key_heads=2,
                   linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6, linear_conv_kernel_dim=4,
                   mamba_ssm_dtype="float32"),
            "2 full 2x16+16; 2 linear state 4x48 float32; 2 conv state 2x48 bfloat16; 2 conv state 4x18 bfloat16",
        ),
        (
            config("kimi_linear", dtype="bfloat16", kv_lora_rank=32, qk_rope_head_dim=8,
                   linear_attn_config={"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 2, "head_dim": 8,
                                       "short_conv_kernel_size": 4}),
            "1 latent 1x32+8; 3 linear state 2x64 fp32; 3 conv state 2x72 bfloat16",
        ),
        (
            config("minimax_text_01", attn_type_list=[0, 0, 0, 1], dtype="bfloat16"),
            "1 full 2x16+16; 3 linear state 8x256 bfloat16",
        ),
        (
            config("jamba", attn_layer_period=4, attn_layer_offset=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
                   torch_dtype="bfloat16"),
            "1 full 2x16+16; 3 mamba state 256x16 bfloat16; 3 conv state 256x3 bfloat16",
        ),
        (
            config("bamba", attn_layer_indices=[2], mamba_n_heads=8, mamba_d_head=32, mamba_d_state=16, mamba_d_conv=4,
                   mamba_n_groups=1, dtype="float32"),
            "1 full 2x16+16; 3 mamba state 8x512 float32; 3 conv state 8x96 float32; 3 conv state 1x96 float32",
        ),
        (
            config("nemotron_h", hybrid_override_pattern="M*-E", mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=16,
                   n_groups=2, conv_kernel=4, dtype="bfloat16", mamba_ssm_cache_dtype="float32"),
            "1 full 2x16+16; 1 mamba state 4x128 float32; 1 conv state 4x24 bfloat16; 1 conv state 2x96 bfloat16",
        ),
        (
            config("falcon_h1", num_hidden_layers=1, mamba_n_heads=4, mamba_d_ssm=32, mamba_d_head="auto",
                   mamba_d_state=16, mamba_d_conv=4, mamba_n_groups=1, dtype="bfloat16"),
            "1 full 2x16+16; 1 mamba state 4x128 bfloat16; 1 conv state 4x24 bfloat16; 1 conv state 1x96 bfloat16",
        ),
        (
            config("recurrent_gemma", block_types=["recurrent", "recurrent", "attention"], attention_window_size=8,
                   lru_width=64, conv1d_width=4, dtype="bfloat16"),
            "1 sliding 2x16+16 <8; 3 linear state 64x1 fp32; 3 conv state 64x3 bfloat16",
        ),
        (
            config("lfm2", full_attn_idxs=[1], conv_L_cache=3, dtype="bfloat16"),
            "1 full 2x16+16; 3 conv state 128x2 bfloat16",
        ),
        (
            config("lfm2", layer_types=["conv", "conv", "full_attention", "conv"], conv_L_cache=3, conv_dim=64,
                   conv_dim_out=64, conv_bias=False, conv_use_xavier_init=True, dtype="bfloat16"),
            "1 full 2x16+16; 3 conv state 64x2 bfloat16",
        ),
        (
            {"model_type": "falcon_mamba", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16,
             "expand": 16, "state_size": 4, "conv_kernel": 4, "dtype": "bfloat16"},
            "2 mamba state 16x4 bfloat16; 2 conv state 16x3 bfloat16",
        ),
        (
            {"model_type": "mamba2", "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8, "state_size": 16,
             "conv_kernel": 4, "n_groups": 1, "expand": 2, "hidden_size": 16, "dtype": "bfloat16"},
            "2 mamba state 4x128 bfloat16; 2 conv state 4x24 bfloat16; 2 conv state 1x96 bfloat16",
        ),
        # compressed
        (
            config("deepseek_v4", num_key_value_heads=1, compress_ratios=[0, 4, 128, 0], sliding_window=8,
                   index_head_dim=4, num_nextn_predict_layers=0),
            "4 sliding 1x16 <8; 1 compressed 1x16 /4; 1 index 1x4 /4; 1 compressed 1x16 /128;"
            " 1 compressor state 1x512 fp32; 1 compressor state 1x128 fp32; 1 compressor state 1x4096 fp32",
        ),
        (
            config("deepseek_v4", num_key_value_heads=1, sliding_window=8, index_head_dim=4, num_nextn_predict_layers=0,
                   layer_types=["sliding_attention"] * 3 + ["heavily_compressed_attention"],
                   compress_rates={"heavily_compressed_attention": 2}),
            "4 sliding 1x16 <8; 1 compressed 1x16 /2; 1 compressor state 1x64 fp32",
        ),
        # drafts
        (config("glm4_moe", num_nextn_predict_layers=2), "4 full 2x16+16; draft 2 full"),
        (config("minimax_m2", use_mtp=True, num_mtp_modules=3, mtp_transformer_layers=1),
         "4 full 2x16+16; draft 3 full"),
        (config("minimax_m2", use_mtp=False, num_mtp_modules=3, mtp_transformer_layers=1), "4 full 2x16+16"),
        ({**MLA, "index_head_dim": 4, "num_nextn_predict_layers": 1},
         "4 latent 1x32+8; 4 index 1x4; draft 1 latent; draft 1 index"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "recognised"), READ)
def test_recognised(fields, recognised):
    assert summary(ModelSpec.from_dict(fields)) == recognised


def test_assumptions_say_what_the_config_does_not():
    assert ModelSpec.from_dict(config()).assumptions == ()
    assert ModelSpec.from_dict(config("gemma2", without=["head_dim"])).assumptions == (
        "sliding_window is absent: 4096, the default of gemma2 configs",
        "no field lists the layers: 1 in 2 is full attention, as in the code of gemma2",
        "head_dim is absent: 256, the default of gemma2 configs",
    )
    (line,) = ModelSpec.from_dict(config("nobody")).assumptions
    assert line == "model_type nobody is not one that is known: the config is read by its fields alone"
    (line,) = ModelSpec.from_dict(config(without=["model_type"])).assumptions
    assert line.startswith("model_type is absent")


# Real configs, published figures, the catalogue.

RECOGNISED = {
    "MiniMaxAI--MiniMax-M2.5": "62 full 8x128+128; draft 3 full",
    "Qwen--Qwen3-235B-A22B": "94 full 4x128+128",
    "Qwen--Qwen3-32B": "64 full 8x128+128",
    "Qwen--Qwen3.5-27B": "16 full 4x256+256; 48 linear state 48x16384 float32; 48 conv state 16x768 bfloat16;"
    " 48 conv state 48x384 bfloat16; draft 1 full",
    "THUDM--chatglm3-6b": "28 full 2x128+128",
    "bigcode--gpt_bigcode-santacoder": "24 full 1x128+128",
    "deepseek-ai--DeepSeek-V3.2": "61 latent 1x512+64; 61 index 1x128; draft 1 latent; draft 1 index",
    "deepseek-ai--DeepSeek-V3": "61 latent 1x512+64; draft 1 latent",
    "deepseek-ai--DeepSeek-V4-Flash": "43 sliding 1x512 <128; 21 compressed 1x512 /4; 21 index 1x128 /4;"
    " 20 compressed 1x512 /128; 21 compressor state 1x16384 fp32; 21 compressor state 1x4096 fp32;"
    " 20 compressor state 1x131072 fp32; draft 1 sliding",
    "defaults--ai21labs--Jamba-v0.1": "4 full 8x128+128; 28 mamba state 8192x16 bf16; 28 conv state 8192x3 bf16",
    "defaults--google--gemma-3n-E4B-text": "16 sliding 2x256+256 <512; 4 full 2x256+256",
    "google--gemma-2-9b": "21 sliding 8x256+256 <4096; 21 full 8x256+256",
    "google--gemma-3-1b-it": "22 sliding 1x256+256 <512; 4 full 1x256+256",
    "google--gemma-4-26B-A4B": "25 sliding 8x256+256 <1024; 5 full 2x512+512",
    "meta-llama--Llama-2-7b": "32 full 32x128+128",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "36 chunked 8x128+128 <8192; 12 full 8x128+128",
    "meta-llama--Meta-Llama-3.1-70B": "80 full 8x128+128",
    "meta-llama--Meta-Llama-3.1-8B": "32 full 8x128+128",
    "microsoft--phi-2": "32 full 32x80+80",
    "mistralai--Mistral-7B-v0.1": "32 sliding 8x128+128 <4096",
    "mistralai--Mixtral-8x7B-v0.1": "32 full 8x128+128",
    "moonshotai--Kimi-K2-Instruct": "61 latent 1x512+64",
    "nvidia--Nemotron-H-56B-Base-8K": "10 full 8x128+128; 54 mamba state 256x16384 bfloat16;"
    " 54 conv state 256x192 bfloat16; 54 conv state 8x1536 bfloat16",
    "openai--gpt-oss-20b": "12 sliding 8x64+64 <128; 12 full 8x64+64",
    "openai--gpt2": "12 full 12x64+64",
    "zai-org--GLM-5": "78 latent 1x512+64; 78 index 1x128; draft 1 latent; draft 1 index",
}


@pytest.mark.parametrize("path", data_files("configs", "*.json"))
def test_real_configs_are_recognised(path):
    spec = ModelSpec.from_file(path)
    assert "not one that is known" not in " ".join(spec.assumptions)
    assert spec.bytes_per_token() > 0
    if path.stem in RECOGNISED:
        assert summary(spec) == RECOGNISED[path.stem]
    for tokens in (1, 1000, 9000):
        assert spec.bytes_per_sequence(tokens) == twin.bytes_per_sequence(spec, tokens)


@pytest.mark.parametrize("case", published_cases("kv_bytes"))
def test_published_bytes_per_token(case):
    for name, expected in case["points"].items():
        spec = ModelSpec.from_file(data_file(f"configs/{name}.json"))
        assert spec.bytes_per_token(dtype="bf16") == expected, name


CATALOGUED = {  # files of `configs/` and the names that people type for them
    "meta-llama--Meta-Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B-Instruct",
    "meta-llama--Meta-Llama-3.1-70B": "llama 3.1 70b",
    "meta-llama--Llama-2-7b": "Llama-2-7b-hf",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "Llama-4-Scout-17B-16E-Instruct",
    "mistralai--Mistral-7B-v0.1": "mistralai/Mistral-7B-v0.1",
    "mistralai--Mixtral-8x7B-v0.1": "mixtral-8x7b-instruct",
    "Qwen--Qwen3-32B": "Qwen/Qwen3-32B-FP8",
    "Qwen--Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen--Qwen3.5-27B": "Qwen3.5-27B",
    "deepseek-ai--DeepSeek-V3": "deepseek-v3",
    "deepseek-ai--DeepSeek-V3.2": "DeepSeek-V3.2",
    "deepseek-ai--DeepSeek-V4-Flash": "deepseek v4 flash",
    "moonshotai--Kimi-K2-Instruct": "Kimi-K2-Instruct",
    "zai-org--GLM-5": "glm-5",
    "openai--gpt-oss-20b": "openai/gpt-oss-20b",
    "openai--gpt2": "gpt2",
    "google--gemma-2-9b": "gemma-2-9b-it",
    "google--gemma-3-1b-it": "gemma-3-1b-it",
    "google--gemma-4-26B-A4B": "gemma-4-26b-a4b",
    "nvidia--Nemotron-H-56B-Base-8K": "nemotron-h-56b",
    "MiniMaxAI--MiniMax-M2.5": "minimax-m2.5",
}


@pytest.mark.parametrize(("stem", "name"), CATALOGUED.items())
def test_the_catalogue_says_what_the_config_says(stem, name):
    ours, real = ModelSpec.from_name(name), ModelSpec.from_file(data_file(f"configs/{stem}.json"))
    assert summary(ours) == summary(real)
    assert ours.num_heads == real.num_heads


def test_every_model_of_the_catalogue_is_read_without_a_guess():
    names = catalogue_names()
    assert len(set(names)) == len(names)
    for name in names:
        spec = ModelSpec.from_name(name)
        assert spec.name == name
        assert spec.num_heads
        assert spec.max_tokens
        for line in spec.assumptions:
            assert "absent" not in line, (name, line)
            assert "known" not in line, (name, line)
        assert catalogue_config(name.lower().replace("-", " "))[0] == name


# Properties.


@st.composite
def listed_configs(draw):
    """Configs that list their layers, with windows, latents and sharing."""
    kinds = st.sampled_from(("full_attention", "sliding_attention", "chunked_attention"))
    layers = draw(st.lists(kinds, min_size=1, max_size=8))
    fields = config(
        "nobody",
        num_hidden_layers=len(layers),
        layer_types=layers,
        num_key_value_heads=draw(st.sampled_from((1, 2, 4))),
        head_dim=draw(st.integers(1, 64)),
        sliding_window=draw(st.integers(1, 30)),
        attention_chunk_size=draw(st.integers(1, 30)),
    )
    if draw(st.booleans()):
        fields["v_head_dim"] = draw(st.integers(1, 64))
    if draw(st.booleans()):
        fields.update(kv_lora_rank=draw(st.integers(1, 64)), qk_rope_head_dim=draw(st.integers(1, 16)))
    shared = draw(st.integers(0, len(layers) - 1))
    if set(layers[len(layers) - shared :]) <= set(layers[: len(layers) - shared]):
        fields["num_kv_shared_layers"] = shared
    return fields


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.floats(), st.sampled_from(("", "full", "x", "auto")),
    st.lists(st.one_of(st.none(), st.integers(-1, 4), st.just("full_attention"), st.just([]), st.just({})), max_size=4),
    st.dictionaries(st.sampled_from(("0", "head_dim", "x")), st.one_of(st.none(), st.integers(-1, 4)), max_size=2),
)  # fmt: skip


@given(st.sampled_from(READ), st.data())
def test_junk_is_read_or_refused_but_never_a_crash(case, data):
    fields = dict(case[0])
    for field in data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
        inner = case[0][field]
        if isinstance(inner, dict) and inner and data.draw(st.booleans()):
            fields[field] = {**inner, data.draw(st.sampled_from(sorted(inner))): data.draw(JUNK)}
        else:
            fields[field] = data.draw(JUNK)
    try:
        spec = ModelSpec.from_dict(fields)
    except ValueError as error:
        message = str(error)
        assert message.startswith("config")
    else:
        assert spec.streams or spec.states


@given(listed_configs(), st.integers(1, 60))
def test_configs_that_list_their_layers_agree_with_the_twin(fields, tokens):
    spec = ModelSpec.from_dict(json.loads(json.dumps(fields)))
    assert spec.bytes_per_sequence(tokens) == twin.config_bytes(fields, tokens)
    assert Footprint.of([spec]).bytes_per_sequence([tokens])[0, 0] == twin.bytes_per_sequence(spec, tokens)
