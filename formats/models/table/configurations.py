"""The configurations with which a class is built: one that works, and others that show layers which it lacks."""

import contextlib
import copy
import inspect
import re
import sys

import transformers
from transformers import PreTrainedConfig
from transformers.configuration_utils import (
    ALLOWED_ATTN_LAYER_TYPES,
    ALLOWED_MLP_LAYER_TYPES,
    SubConfigSpec,
)
from transformers.models.auto import CONFIG_MAPPING

# Options that shape the run and not the model, and those that would fetch weights.
NOT_FLIPPED = re.compile(
    r"^_|^output_|return_dict|use_cache|torchscript|tie_word_embeddings|pretrained|timm|is_encoder_decoder|"
    r"chunk_size|gradient_checkpointing|dropout|_token_id$|^rope_|quantization_config|^dtype$|^id2label$"
)

# Options that are neither boolean nor absent by default, and yet decide which modules there are.
SPECIAL = {
    "q_lora_rank": [None, 64],
    "decoder_sparse_step": [2],
    "word_embed_proj_dim": [64],
    "moe_layer_interval": [2],
    "num_labels": [3],
}

# For options that are None, 0 or empty: sizes, numbers of modules, and lists of layers.
PRESENT = (1, [0])

# Options that show layers only together.
TOGETHER = [
    {"is_decoder": True, "add_cross_attention": True},
    {"add_adapter": True, "output_hidden_size": 64},
    {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64},
]

# Options that name the kind of each layer, and the kinds there are.
LAYER_KINDS = {"layer_types": ALLOWED_ATTN_LAYER_TYPES, "mlp_layer_types": ALLOWED_MLP_LAYER_TYPES}

# Where no default of the configuration makes the class: most are put together from any two models. Between an encoder
# and a decoder of another width, there is a projection.
WIDER = {"hidden_size": 1024, "num_attention_heads": 16}

DEFAULTS = {
    "EncoderDecoderModel": lambda: transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(**WIDER), transformers.BertConfig()),
    "SpeechEncoderDecoderModel": lambda: transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.Wav2Vec2Config(**WIDER), transformers.BertConfig()),
    "VisionEncoderDecoderModel": lambda: transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**WIDER), transformers.BertConfig()),
    "VisionTextDualEncoderModel": lambda: transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        transformers.ViTConfig(), transformers.BertConfig()),
    "EsmForProteinFolding": lambda: transformers.EsmConfig(is_folding_model=True, vocab_size=33, pad_token_id=1),
}  # fmt: skip

# What defaults lack and constructors need: {start of the class's name: {path to an option: value}}. "None" has what is
# filled in wherever it is None or absent, after a default has failed.
NEEDED = {
    "None": {
        "prediction_length": 8,
        "context_length": 16,
        "n_shared_experts": 1,
        "decoder_depth": 2,
        "decoder_num_heads": 4,
        "logit_scale_init_value": 1.0,
        "head_dim": 64,
        "num_key_value_heads": lambda part: getattr(part, "num_attention_heads", None),
        "vocab_size": 64,
        "n_routed_experts": 8,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_hidden_size": 64,
        "audio_vocab_size": 64,
        "spatial_merge_size": 2,
        "contrastive_hidden_size": 64,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 64,
        "vocabulary_map": {"<image>": 1, "<|extra_200|>": 2},
    },
    "AyaVision": {"vision_config.num_attention_heads": 16},
    "BeitForSemanticSegmentation": {"out_indices": [2, 5, 8, 11]},
    "CohereCompass": {
        "text_config.rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")
        },
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")
        },
    },
    "Dbrx": {"attn_config.rope_theta": 10000.0},
    "DeepseekOcr2": {
        "text_config.mlp_layer_types": ["dense"] + ["sparse"] * 99,
        "mlp_layer_types": ["dense"] + ["sparse"] * 99,
    },
    "Granite4Vision": {"deepstack_layer_map": [[3, 0], [7, 1]], "downsample_rate": "1/2"},
    "Lfm2Moe": {"layer_types": ["conv", "conv", "full_attention"] * 33},
    "PerceptionLM": {"vision_config.model_args": {"embed_dim": 64}},
    "PerceiverFor": {"num_cross_attention_heads": 1, "num_self_attention_heads": 1},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    "ViltForImagesAndTextClassification": {"num_images": 2},
}

BACKBONES = [["stage4"], ["stage2", "stage3", "stage4"], ["stage1", "stage2", "stage3", "stage4"]]


def configs_in(config, seen=None):
    """The configuration and all configurations in it."""
    seen = {} if seen is None else seen
    if id(config) not in seen:
        seen[id(config)] = config
        for value in list(vars(config).values()):
            if isinstance(value, PreTrainedConfig):
                configs_in(value, seen)
    return list(seen.values())


def repaired(cls, config):
    """Configurations that may do where the default does not, the mildest change first."""
    config = copy.deepcopy(config)
    for part in configs_in(config):
        for name, value in list(vars(part).items()):
            if isinstance(value, tuple):
                setattr(part, name, list(value))
    yield config
    for start, options in NEEDED.items():
        if not cls.__name__.startswith(start):
            continue
        for path, value in options.items():
            part = config
            *parents, name = path.split(".")
            for parent in parents:
                part = getattr(part, parent, None)
            if part is not None:
                setattr(part, name, value)
    yield config
    # One after the other, as long as it fails: an option filled without need might change the model.
    for name, value in NEEDED["None"].items():
        for part in configs_in(config):
            with contextlib.suppress(Exception):
                if getattr(part, name, None) is None:
                    setattr(part, name, value(part) if callable(value) else value)
        yield config
    for features in BACKBONES:
        for part in configs_in(config):
            if hasattr(part, "backbone_config"):
                part.backbone_config = transformers.ResNetConfig(out_features=features)
                part.use_timm_backbone = False
        yield config


def changed(config, kind, name, value):
    """A copy with the option set in every configuration of that class; None if it refuses."""
    config = copy.deepcopy(config)
    done = False
    for part in configs_in(config):
        if kind is None or type(part) is kind:
            if kind is None and not hasattr(part, name):
                continue
            setattr(part, name, value)
            done = True
    return config if done else None


def with_absent_parts(config):
    """(label, configuration) with all parts that are absent by default, then with each alone. All come first: whose
    parameter is the last depends on them, and a layer that is the last in some models is like others in the table."""
    absent = [
        (type(part), name, kind)
        for part in configs_in(config)
        for name, kind in type(part).sub_configs_defaults.items()
        if vars(part).get(name) is None
    ]
    for several in [absent] * (len(absent) > 1) + [[one] for one in absent]:
        other = config
        with contextlib.suppress(Exception):
            for owner, name, kind in several:
                other = changed(other, owner, name, default_part(kind))
            yield ", ".join(name for _, name, _ in several), other


def default_part(kind):
    """The configuration that a class has for one of its parts if config.json says nothing else of it."""
    if not isinstance(kind, SubConfigSpec):
        return kind()
    options = {name: value for name, value in kind.init_kwargs.items() if name != "model_type"}
    return CONFIG_MAPPING[kind.model_type](**options)


def with_other_layers(model, config):
    """(label, configuration) for each kind of layer that the model's code names, or of MLPs, and no layer has: every
    second layer is of that kind."""
    files = {type(module).__module__ for module in model.modules()}
    code = "".join(inspect.getsource(sys.modules[f]) for f in sorted(files) if f.startswith("transformers.models."))
    parts = {type(part): part for part in configs_in(config)}
    for config_class, part in sorted(parts.items(), key=lambda item: item[0].__name__):
        for name, allowed in LAYER_KINDS.items():
            kinds = vars(part).get(name)
            if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
                continue
            for kind in allowed:
                # Code often asks for "sparse" alone, and other layers are dense.
                is_named = kind in ALLOWED_MLP_LAYER_TYPES or f'"{kind}"' in code
                if kind in kinds or not is_named:
                    continue
                mixed = [kind if i % 2 == 0 else own for i, own in enumerate(kinds)]
                try:
                    other = changed(config, config_class, name, mixed)
                except Exception:  # a configuration that checks its options
                    continue
                yield f"{name} with {kind}", other


def variants(config, reads, size):
    """(label, configuration) with one option changed. The number falls with the size of the model."""
    options = []
    parts = configs_in(config)
    kinds = {type(part) for part in parts}
    for kind, name in sorted(reads, key=lambda r: (r[1], r[0].__name__)):
        if NOT_FLIPPED.search(name) and name not in SPECIAL:
            continue
        for part in parts:
            # A model may copy a part into a configuration of another class, from which it then reads.
            if type(part) is kind or (kind not in kinds and name in vars(part)):
                kind, value = type(part), vars(part).get(name)
                if isinstance(value, bool):
                    options.append((kind, name, not value))
                elif name in SPECIAL:
                    options += [(kind, name, v) for v in SPECIAL[name] if v != value]
                elif name in vars(part) and (value is None or (type(value) is not float and value in (0, []))):
                    options += [(kind, name, v) for v in PRESENT]
                break
    # Each once. What is flipped comes first, because large models have the first few alone.
    options = [option for i, option in enumerate(options) if option not in options[:i]]
    options.sort(key=lambda option: not isinstance(option[2], bool))
    for kind, name, value in options[: max(20, 100000 // max(size, 1))]:
        try:
            other = changed(config, kind, name, value)
        except Exception:
            continue
        if other is not None:
            yield f"{name}={value}", other
    for together in TOGETHER:
        other = copy.deepcopy(config)
        parts = [part for part in configs_in(other) if all(hasattr(part, name) for name in together)]
        for part in parts:
            for name, value in together.items():
                setattr(part, name, value)
        if parts:
            yield ", ".join(together), other
