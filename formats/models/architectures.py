"""Which tensors transformers quantizes, for every architecture it knows: writes formats/models/architectures.jsonl.

    cd formats/models
    python architectures.py                 write the table (run by hand, about twenty minutes on two cores)
    python architectures.py --only Bert T5  print the lines of the classes whose names start so
    python architectures.py --names FILE    also write every class's stored names with the expected roles

What it says is checked against transformers in tests/interop/test_architectures.py.

Every class is built from its default configuration on the meta device (no memory, no weights), then again with each
boolean option that its constructor reads flipped, with each that is None, 0 or empty given a value, with each part that
is absent by default, and, for each kind of layer that its code names and its default lacks, with every second layer of
that kind. A build that has modules which none had before is repeated with tie_word_embeddings both ways. Each build is
put through transformers' own rule for bitsandbytes: get_modules_to_not_convert, then should_convert_module and the
exact type of the module. The union of the builds is the table; the first build wins where two contradict, and stderr
says so, as it does of a build that fails. The output depends on nothing but the version of transformers.

One file, because it is one run: build, rename, generalize and group hand their tables on and serve nothing else.

A class that puts a model of any kind into itself, such as the language model of a LLaVA, has that in "parts": the
module ("at"), the part of config.json that decides ("config"), the auto classes that are asked in turn, the class
that the default has there, types of which another class is made ("made"), and whether the last parameter of the whole
is in it. The lines of the auto classes say which class they make of which model_type.

"fp32" and "fp32_strict" are expressions that find the parameters which loading keeps in fp32: in a model of fp16, and
in one of any 16-bit type. A part has its own.

A pattern is a name with numbers between dots written as `*`. `$` stands for the largest number that the file holds
there, for roles that only the last layer has, and a number for itself, where the number decides the role.
"""

import argparse
import contextlib
import copy
import functools
import inspect
import io
import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import pkgutil
import re
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
import transformers  # noqa: E402
from torch import nn  # noqa: E402
from transformers import PreTrainedConfig, PreTrainedModel  # noqa: E402
from transformers.configuration_utils import (  # noqa: E402
    ALLOWED_ATTN_LAYER_TYPES,
    ALLOWED_MLP_LAYER_TYPES,
    SubConfigSpec,
)
from transformers.conversion_mapping import (  # noqa: E402
    get_checkpoint_conversion_mapping,
    get_model_conversion_mapping,
)
from transformers.core_model_loading import (  # noqa: E402
    GroupWeightRename,
    Inkling2IndexOffsetWeightRename,
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)
from transformers.models.auto import CONFIG_MAPPING, modeling_auto  # noqa: E402
from transformers.models.auto.auto_factory import _BaseAutoModelClass  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402
from transformers.quantizers.base import HfQuantizer, MODULES_TO_PATCH_FOR_QUANTIZATION  # noqa: E402
from transformers.quantizers.quantizers_utils import should_convert_module  # noqa: E402

# Some models tie more names than the cache of compiled expressions holds, and would compile each for each module.
re._MAXCACHE = 1 << 16

TABLE = pathlib.Path(__file__).with_name("architectures.jsonl")

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


def star(name):
    """The name with its numeric components as `*`, and those numbers."""
    parts = name.split(".")
    return ".".join("*" if p.isdigit() else p for p in parts), tuple(int(p) for p in parts if p.isdigit())


def fill(pattern, numbers):
    numbers = iter(numbers)
    return ".".join(str(next(numbers)) if p == "*" else p for p in pattern.split("."))


# ---- one build: the role of every parameter ------------------------------------------------------------------


def why_kept(model, skips, name, module):
    """Why the default rule leaves this module plain; None if it quantizes it."""
    if not isinstance(module, Conv1D) and type(module) is not nn.Linear:
        return "not exactly nn.Linear"
    if should_convert_module(name, skips):
        return None
    fp32 = list(model._keep_in_fp32_modules or [])
    if not should_convert_module(name, fp32):
        return "kept in fp32"
    tied = model.all_tied_weights_keys
    tied = [key.removesuffix(".weight") for key in set(tied) | set(tied.values())]
    if not should_convert_module(name, tied):
        return "tied weights"
    output = model.get_output_embeddings()
    if output is not None and module is output:
        return "output embeddings"
    last = list(model.named_parameters())[-1][0].removesuffix(".weight")
    return "last parameter" if not should_convert_module(name, [last]) else "output embeddings"


def roles_of(model):
    """{stored name without a trailing .weight where it belongs to a module: (role, why)}, rank >= 2 only."""
    skips = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    roles = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    first = {id(module): name for name, module in reversed(list(modules.items()))}
    for name, tensor in model.state_dict().items():
        path, _, leaf = name.rpartition(".")
        owner = modules.get(path)
        kind = type(owner).__name__
        if tensor is None or tensor.dim() < 2:
            continue
        if leaf == "weight" and isinstance(owner, (nn.Linear, Conv1D)) and tensor.dim() == 2:
            why = why_kept(model, skips, path, owner)
            if why is None and first[id(owner)] != path:
                why = "shared module"  # named_modules() visits it once, under its first name
            roles[path] = ("kept", why) if why else ("conv1d" if isinstance(owner, Conv1D) else "linear", None)
        elif leaf == "weight" and isinstance(owner, nn.Embedding):
            roles[path] = ("embedding", None)
        elif not isinstance(owner, nn.modules.conv._ConvNd) and (
            (tensor.dim() == 3 and "expert" in (name + kind).lower())
            or ("Expert" in kind and leaf != "weight" and not leaf.endswith("bias"))
        ):
            roles[name] = ("expert", None)
        else:
            roles[name] = ("other", None)
    return roles


def generalize(roles, complain):
    """{pattern with stars: [(pattern, role)]}: one entry where the numbers do not matter, else the fewest that do."""
    groups = {}
    for name, role in roles.items():
        pattern, numbers = star(name)
        groups.setdefault(pattern, {})[numbers] = role
    table = {}
    for pattern, members in groups.items():
        if len(set(members.values())) == 1:
            table[pattern] = [(pattern, next(iter(members.values())))]
            continue
        last = max(members)
        others = {role for numbers, role in members.items() if numbers != last}
        if len(others) == 1:
            table[pattern] = [(pattern, others.pop()), (pattern.replace("*", "$"), members[last])]
            continue
        stars = len(last)
        for fixed in sorted(itertools.product([False, True], repeat=stars), key=lambda f: (sum(f), f)):
            split = {}
            for numbers, role in members.items():
                split.setdefault(tuple(n if f else "*" for n, f in zip(numbers, fixed)), set()).add(role)
            if all(len(found) == 1 for found in split.values()):
                table[pattern] = [(fill(pattern, key), found.pop()) for key, found in split.items()]
                break
    return table


# ---- the builds of one class --------------------------------------------------------------------------------


def configs_in(config, seen=None):
    """The configuration and all configurations in it."""
    seen = {} if seen is None else seen
    if id(config) not in seen:
        seen[id(config)] = config
        for value in list(vars(config).values()):
            if isinstance(value, PreTrainedConfig):
                configs_in(value, seen)
    return list(seen.values())


def paths_in(config, above=""):
    """{id of a configuration: its path in config.json} of the configurations in one."""
    paths = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            for key, path in {id(value): above + name, **paths_in(value, f"{above}{name}.")}.items():
                paths.setdefault(key, path)
    return paths


@contextlib.contextmanager
def reads_recorded(reads):
    """Collects (configuration class, attribute) for every attribute read from a configuration."""
    plain = PreTrainedConfig.__getattribute__

    def recording(self, name):
        reads.add((type(self), name))
        return plain(self, name)

    PreTrainedConfig.__getattribute__ = recording
    try:
        yield
    finally:
        PreTrainedConfig.__getattribute__ = plain


MADE = []  # (auto class, configuration, model) of each part that the latest build has put in


def record_parts():
    """Makes the auto classes note what they build, for the rest of the process."""

    def noting(plain):
        def from_config(cls, config, **options):
            model = plain(cls, config, **options)
            MADE.append((cls.__name__, config, model))
            return model

        from_config.notes = True
        return classmethod(from_config)

    for cls in auto_classes().values():
        if not hasattr(cls.from_config, "notes"):
            cls.from_config = noting(cls.from_config.__func__)


def build(cls, config):
    MADE.clear()
    with torch.device("meta"), transformers.initialization.no_init_weights():
        return cls(config)


def parts_of(model, complain):
    """{module: (path in config.json, auto class, class, whether it has the last parameter)} of the latest build."""
    modules = {id(module): name for name, module in reversed(list(model.named_modules()))}
    last = list(model.named_parameters())[-1][0]
    parts = {}
    for auto, config, part in MADE:
        at, path = modules.get(id(part)), paths_in(model.config).get(id(config))
        if not at or config is model.config:
            continue
        if path is None:
            complain(f"{at}, made by {auto}: no part of the configuration is its own")
            continue
        # The class of the type that config.json has: MaskFormer replaces a Swin by a model of its own, but renames
        # tensors as for a Swin.
        made = classes_by_type(auto).get(config.model_type, type(part).__name__)
        parts[at] = (path, auto, made, last.startswith(at + "."))
    return parts


def owner_of(config, path):
    """(the class of the configuration that holds the part at a path, the part's key in it)."""
    *above, name = path.split(".")
    for key in above:
        config = getattr(config, key)
    return type(config), name


def is_always_of_one_class(config, path):
    """Whether a part is of the same class whatever its model_type says: released files have types that never were."""
    owner, name = owner_of(config, path)
    spec = owner.sub_configs_defaults.get(name)
    kind = getattr(spec, "config_class", spec)
    return name != "backbone_config" and isinstance(kind, type) and issubclass(kind, PreTrainedConfig)


@functools.cache
def rewritten_types(owner, name, autos):
    """{model_type: class} of the types for which a configuration makes a part of another class than the auto classes."""
    found = {}
    bases = [base for base in owner.__mro__ if base.__module__.startswith("transformers.models.")]
    code = [vars(base)["__post_init__"] for base in bases if "__post_init__" in vars(base)]
    if not any("model_type" in inspect.getsource(function) for function in code):
        return found  # the rest would take half a minute to find that out
    mappings = [auto_classes()[auto]._model_mapping for auto in autos]
    for kind in sorted({kind for auto in autos for kind in classes_by_type(auto)}):
        try:
            part = getattr(owner(**{name: {"model_type": kind}}), name)
            made = next(mapping[type(part)] for mapping in mappings if type(part) in mapping)
        except Exception:  # not every model can be a part of every other one
            continue
        made = (made[0] if isinstance(made, (tuple, list)) else made).__name__
        if made != next(classes_by_type(auto)[kind] for auto in autos if kind in classes_by_type(auto)):
            found[kind] = made
    return found


def kept_in_fp32(model, at, inner):
    """{"fp32": ..., "fp32_strict": ...} of the modules at and below one, but for those at and below others."""
    found = {}
    for key, attribute in (("fp32", "_keep_in_fp32_modules"), ("fp32_strict", "_keep_in_fp32_modules_strict")):
        patterns = set()
        for name, module in model.named_modules():
            path = name + "."
            is_own = (not at or path.startswith(at + ".")) and not any(path.startswith(other + ".") for other in inner)
            if is_own and isinstance(module, PreTrainedModel):
                patterns |= set(getattr(type(module), attribute) or [])
        if patterns:
            found[key] = sorted(patterns)
    return found


def parts_of_line(cls, config, model, parts):
    """The parts as a line has them, the outermost first."""
    parts = {at: part for at, part in parts.items() if not is_always_of_one_class(config, part[0])}
    others = other_autos(cls, config, parts)
    lines = []
    for at, (path, auto, made, last) in sorted(parts.items(), key=lambda part: (part[0].count("."), part[0])):
        autos = (auto, *others.get(at, []))
        types = rewritten_types(*owner_of(config, path), autos)
        if len(types) > 20 and set(types.values()) == {made}:
            continue  # whatever is said, it is this one
        line = {"at": at, "config": path, "auto": list(autos), "class": made}
        line |= {"made": types} if types else {}
        line |= {"last": True} if last else {}
        inner = [other for other in parts if other.startswith(at + ".")]
        lines.append(line | kept_in_fp32(model, at, inner))
    return lines


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


def first_build(cls, config):
    """(configuration that works, model). Raises what the default configuration raises if none does."""
    try:
        return config, build(cls, config)
    except Exception as error:
        failure = error
    for other in repaired(cls, config):
        try:
            return other, build(cls, other)
        except Exception:
            continue
    raise failure


def without_timm():
    """Stands in for libraries that are not installed: the vision towers of timm, whose tensors have names of timm's
    own, and the attention kernel of natten, which has no weights."""
    from transformers.models.dinat import modeling_dinat
    from transformers.models.timm_wrapper import modeling_timm_wrapper as wrapper

    modeling_dinat.requires_backends = lambda *_: None

    def init(self, config):
        wrapper.TimmWrapperPreTrainedModel.__init__(self, config)
        self.timm_model = nn.Identity()
        self.timm_model.feature_info = None
        self.post_init()

    for cls in (wrapper.TimmWrapperModel, wrapper.TimmWrapperForImageClassification):
        cls.__init__ = init


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


def other_autos(cls, config, parts):
    """{module: [another auto class that puts a model there]}, where the kind of the language model decides."""
    found = {}
    for at, (path, auto, _, _) in parts.items():
        if auto != "AutoModelForCausalLM":
            continue
        other = copy.deepcopy(config)
        *above, name = path.split(".")
        part = other
        for parent in above:
            part = getattr(part, parent)
        setattr(part, name, transformers.T5Config())
        for part in configs_in(other):
            if hasattr(part, "use_decoder_only_language_model"):  # BLIP-2 finds this out once, when it is made
                part.use_decoder_only_language_model = False
        with contextlib.suppress(Exception):
            made = parts_of(build(cls, other), lambda _: None).get(at)
            if made and made[1] != auto:
                found[at] = [made[1]]
    return found


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
    for kind, name in sorted(reads, key=lambda r: (r[1], r[0].__name__)):
        if NOT_FLIPPED.search(name) and name not in SPECIAL:
            continue
        for part in configs_in(config):
            if type(part) is kind:
                value = vars(part).get(name)
                if isinstance(value, bool):
                    options.append((kind, name, not value))
                elif name in SPECIAL:
                    options += [(kind, name, v) for v in SPECIAL[name] if v != value]
                elif name in vars(part) and (value is None or (type(value) is not float and value in (0, []))):
                    options += [(kind, name, v) for v in PRESENT]
                break
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


# ---- names on disk ------------------------------------------------------------------------------------------


def without_lookaround(pattern):
    """(pattern without its negative lookarounds, pattern that finds what they exclude or None).

    RE2 has none. "a(?!b)c" becomes "ac" unless "abc": the same where the pattern occurs once in a name, which
    the self-check of every class's names verifies.
    """
    spans = []
    for found in re.finditer(r"\(\?<?!", pattern):
        depth, i = 0, found.start()
        while True:
            if pattern[i] == "\\":
                i += 1
            elif pattern[i] == "(":
                depth += 1
            elif pattern[i] == ")":
                depth -= 1
                if depth == 0:
                    break
            i += 1
        spans.append((found.start(), found.end(), i))
    if not spans:
        return pattern, None
    plain, excluded = pattern, []
    for start, _, end in reversed(spans):
        plain = plain[:start] + plain[end + 1 :]
    for chosen in spans:
        text = pattern
        for start, body, end in reversed(spans):
            kept = "(?:" + pattern[body:end] + ")" if (start, body, end) == chosen else ""
            text = text[:start] + kept + text[end + 1 :]
        excluded.append(text)
    return plain, "|".join(excluded)


def bounded(pattern):
    """A pattern as core_model_loading compiles it: one that ends in a letter or digit ends on a word boundary."""
    pattern = pattern.replace("*.", r".*\.")
    return pattern + r"\b" if re.search(r"[a-zA-Z0-9]$", pattern) else pattern


def rule_of(transform, sources, targets):
    rule = {}
    plain, excluded = zip(*(without_lookaround(bounded(s)) for s in sorted(sources, key=lambda s: -len(s))))
    rule["from"] = plain[0] if len(plain) == 1 else "|".join(f"(?:{p})" for p in plain)
    rule["to"] = targets
    if any(excluded):
        rule["unless"] = "|".join(e for e in excluded if e)
    if transform.scope_prefix is not None:
        rule["scope"] = transform.scope_prefix
    return rule


def rules_of(model, complain):
    """(renames, merges) as the table stores them, in the order in which loading applies them."""
    legacy = {tuple(t.source_patterns) for t in get_checkpoint_conversion_mapping("legacy")}
    renames, merges = [], []
    for transform in get_model_conversion_mapping(model):
        if tuple(transform.source_patterns) in legacy:
            continue  # gamma, beta and the weight norm of convolutions: never a matrix
        if isinstance(transform, WeightConverter):
            merges.append(rule_of(transform, transform.source_patterns, transform.target_patterns))
        elif isinstance(transform, Inkling2IndexOffsetWeightRename):
            complain(f"rename with an index offset left out: {transform.source_patterns}")
        elif isinstance(transform, GroupWeightRename):
            # All at once if the first is found anywhere: the last first, so that no name is renamed twice.
            pairs = list(zip(transform.source_patterns, transform.target_patterns))
            when = {"when": without_lookaround(bounded(pairs[0][0]))[0]}
            renames += [rule_of(transform, [source], target) | when for source, target in reversed(pairs)]
        else:
            renames.append(rule_of(transform, transform.source_patterns, transform.target_patterns[0]))
    return renames, merges


def stored_names(model, names):
    """[(stored name, parameters it fills)]: the model's own spelling and those that saving can write."""
    stored = {name: name for name in names}
    load = get_model_conversion_mapping(model)
    for drop_prefix_changes in (True, False):
        back = [t for t in load if not (drop_prefix_changes and isinstance(t, PrefixChange))]
        legacy = {tuple(t.source_patterns) for t in get_checkpoint_conversion_mapping("legacy")}
        back = [t.reverse_transform() for t in back[::-1] if tuple(t.source_patterns) not in legacy]
        renamings = [t for t in back if isinstance(t, WeightRenaming)]
        converters = [t for t in back if isinstance(t, WeightConverter)]
        for name in names:
            found, pattern = rename_source_key(name, [], converters, reverse=True)
            if pattern is None:
                targets = [found]
            else:
                converter = next(c for c in converters if pattern in c.source_patterns)
                targets = [found.replace(converter.target_patterns[0], t) for t in converter.target_patterns]
            for target in targets:
                for renaming in renamings:
                    target, _ = renaming.rename_source_key(target)
                stored.setdefault(target.replace("*", "0"), name)
    return stored


def loaded_name(model, name, names):
    """(parameter that loading fills from a stored name, whether a conversion does it), by transformers itself."""
    load = get_model_conversion_mapping(model)
    renamings = [t for t in load if isinstance(t, WeightRenaming)]
    converters = [t for t in load if isinstance(t, WeightConverter)]
    for transform in renamings:
        if isinstance(transform, GroupWeightRename):
            transform._active = None
    result = {}
    for original in sorted(name):
        renamed, pattern = rename_source_key(original, renamings, converters, model.base_model_prefix, names)
        if renamed not in names and original in names:
            renamed, pattern = original, None
        targets = [renamed]
        if pattern is not None:
            converter = next(c for c in converters if pattern in c.source_patterns)
            targets = [renamed.replace(converter.target_patterns[0], t) for t in converter.target_patterns]
        result[original] = (renamed, pattern is not None, targets)
    return result


# ---- the line of one class ----------------------------------------------------------------------------------


def grouped(patterns):
    """Patterns as one string each per parent: a.b.{c,d}."""
    parents = {}
    for pattern in sorted(patterns):
        parent, _, leaf = pattern.rpartition(".")
        parents.setdefault(parent, []).append(leaf)
    return sorted(
        (parent + "." if parent else "") + (leaves[0] if len(leaves) == 1 else "{" + ",".join(leaves) + "}")
        for parent, leaves in parents.items()
    )


def is_tied(config):
    return bool(getattr(config, "tie_word_embeddings", False))


def table_of(cls, config, model, reads, complain):
    """({pattern: entries} of all builds, as they are untied; {pattern: why it is kept if tied, and only then};
    the parts that auto classes put in, as parts_of() has them)."""
    can_be_tied = any(hasattr(part, "tie_word_embeddings") for part in configs_in(config))
    table, tied_only, parts = {}, {}, {}

    def table_of_build(label, config, tied=None):
        try:
            config = config if tied is None else changed(config, None, "tie_word_embeddings", tied)
            model = build(cls, config)
            parts.update({at: part for at, part in parts_of(model, complain).items() if at not in parts})
            return generalize(roles_of(model), complain)
        except Exception as error:
            label += "" if tied is None else f", tied={tied}"
            complain(f"does not build with {label}: {type(error).__name__}: {str(error)[:80]!r}")
            return {}

    def add(label, config, found):
        """Patterns that no build before had, from this one, tied and not."""
        for pattern in found.keys() & table.keys():
            entries, known = found[pattern], table[pattern]
            if {(p, r[0]) for p, r in entries} != {(p, r[0]) for p, r in known}:
                roles = {r[0] for p, r in entries if p not in tied_only}
                if not roles <= {r[0] for _, r in known}:
                    complain(f"{pattern} is {sorted(roles)} with {label}, otherwise {known}")
        if found.keys() <= table.keys():
            return
        tied, untied = {}, {}
        if can_be_tied:
            tied, untied = (table_of_build(label, config, value) for value in (True, False))
        if not (tied and untied):  # only together do they say what being tied changes
            tied = untied = {}
        builds = {**tied, **found, **untied}
        for pattern in builds.keys() - table.keys():
            table[pattern] = builds[pattern]
            for one, role in tied.get(pattern, []):
                if role[0] == "kept" and (one, role) not in table[pattern]:
                    tied_only[one] = role[1]

    add("defaults", config, table_of_build("defaults", config))
    size = len(model.state_dict())
    for label, other in itertools.chain(
        with_absent_parts(config), variants(config, reads, size), with_other_layers(model, config)
    ):
        add(label, other, table_of_build(label, other))
    return table, tied_only, parts


def line_of(cls, config_class, complain, names_out):
    config = DEFAULTS.get(cls.__name__, config_class)()
    reads = set()
    with reads_recorded(reads):
        config, model = first_build(cls, config)
    entry = {"architecture": cls.__name__}
    entry["prefix"] = model.base_model_prefix
    if any(type(m).__name__ in MODULES_TO_PATCH_FOR_QUANTIZATION for m in model.modules()):
        entry["blocker"] = "transformers splits the fused experts of this model when it loads quantized weights"
    renames, merges = rules_of(model, complain)

    if names_out is not None:
        names_out += [is_tied(config), []]
        meta = model.state_dict()
        names = {n: t for n, t in meta.items() if t.dim() >= 2}
        stored = stored_names(model, list(names))
        roles = roles_of(model)
        loaded = loaded_name(model, stored, meta)
        for name, (renamed, converted, targets) in loaded.items():
            if renamed not in names:
                continue
            module = renamed.removesuffix(".weight")
            role = roles.get(renamed) or roles.get(module)
            linear = sorted(
                t.removesuffix(".weight") for t in targets
                if roles.get(t.removesuffix(".weight"), ("", ""))[0] in ("linear", "conv1d")
            )
            if converted:
                role = ("expert" if role[0] == "expert" else "other", None)
            names_out[1].append([name, role[0], module if not converted else "", linear if converted else []])

    table, tied_only, parts = table_of(cls, config, model, reads, complain)
    if parts := parts_of_line(cls, config, model, parts):
        entry["parts"] = parts
    entry |= kept_in_fp32(model, "", [part["at"] for part in parts])

    lists = {}
    for entries in table.values():
        for pattern, (role, why) in entries:
            lists.setdefault((role, why), []).append(pattern)
    for role in ("linear", "conv1d"):
        if (role, None) in lists:
            entry[role] = grouped(lists[role, None])
    kept = {why: grouped(p) for (role, why), p in sorted(lists.items(), key=lambda e: e[0][1] or "") if role == "kept"}
    if kept:
        entry["kept"] = kept
    if tied_only:
        entry["tied"] = {
            why: grouped(p for p in tied_only if tied_only[p] == why) for why in sorted(set(tied_only.values()))
        }
    for role in ("embedding", "expert", "other"):
        if (role, None) in lists:
            entry[role] = grouped(lists[role, None])
    if renames:
        entry["renames"] = renames
    if merges:
        entry["merges"] = merges
    return entry


# ---- what lines share ---------------------------------------------------------------------------------------

ROLES = ("linear", "conv1d", "kept", "tied", "embedding", "expert", "other")


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def flat(entry):
    """Its groups of patterns, as (role, why, group)."""
    found = set()
    for role in ROLES:
        lists = entry.get(role, {})
        for why, groups in lists.items() if isinstance(lists, dict) else [(None, lists)]:
            found.update((role, why, group) for group in groups)
    return found


def unflat(groups):
    entry = {}
    for role in ROLES:
        own = sorted((why or "", group) for r, why, group in groups if r == role)
        if own and role in ("kept", "tied"):
            entry[role] = {w: [g for why, g in own if why == w] for w in sorted({why for why, _ in own})}
        elif own:
            entry[role] = [group for _, group in own]
    return entry


def shared(lines):
    """The lines, with what one has of another replaced by a reference. A reference never leads to another.

    same_as: all of that line. base, at, without: its groups below the module `at`, but for some; own groups add to
    them. loads_as: its renames and merges.
    """
    result, roots, rules, seen = {}, {}, {}, {}
    for name in sorted(lines, key=lambda n: (len(compact(lines[n])), n)):
        entry = {k: v for k, v in lines[name].items() if k != "architecture"}
        text = compact(entry)
        if text in seen:
            result[name] = {"architecture": name, "same_as": seen[text]}
            continue
        seen[text] = name
        groups = flat(entry)
        best = (len(compact(unflat(groups))), "", "", groups, [])
        for root, other in roots.items():
            for at in {"", entry["prefix"], "model", "language_model", "model.language_model", "text_model"}:
                below = {(r, w, f"{at}.{g}" if at else g) for r, w, g in other}
                extra = below - groups
                if 3 * len(extra) > len(below):
                    continue
                own = groups - below
                without = sorted({g for _, _, g in extra})
                # `without` goes by the group alone
                own |= {g for g in groups & below if g[2] in without}
                size = len(compact(unflat(own))) + len(compact(without)) + len(root) + len(at) + 20
                if (size, root, at) < best[:3]:
                    best = (size, root, at, own, without)
        _, root, at, own, without = best
        line = {"architecture": name, "prefix": entry["prefix"]}
        line |= {key: entry[key] for key in ("blocker", "fp32", "fp32_strict", "parts") if key in entry}
        if root and best[0] < 0.8 * len(compact(unflat(groups))):
            line["base"] = root
            line |= {"at": at} if at else {}
            line |= {"without": without} if without else {}
            line |= unflat(own)
        else:
            roots[name] = groups
            line |= unflat(groups)
        loading = {k: entry[k] for k in ("renames", "merges") if k in entry}
        if loading:
            text = compact(loading)
            line |= {"loads_as": rules[text]} if text in rules else loading
            rules.setdefault(text, name)
        result[name] = line
    return [result[name] for name in sorted(result)]


# ---- all classes ---------------------------------------------------------------------------------------------


def modeling_modules():
    import transformers.models as models

    found = []
    for package in pkgutil.iter_modules(models.__path__):
        folder = pathlib.Path(models.__path__[0]) / package.name
        found += [f"transformers.models.{package.name}.{f.stem}" for f in sorted(folder.glob("modeling_*.py"))]
    return sorted(found)


def classes_in(module_name):
    module = __import__(module_name, fromlist=["x"])
    for name in sorted(set(getattr(module, "__all__", []))):
        cls = getattr(module, name, None)
        if not isinstance(cls, type) or not issubclass(cls, PreTrainedModel):
            continue
        if not re.search("PreTrained|Pretrained", name) or name in in_auto_mappings():
            yield cls


def config_class_of(cls):
    found = cls.config_class
    return found if isinstance(found, type) and found is not PreTrainedConfig else None


@functools.cache
def auto_classes():
    """{name: auto class}."""
    found = {name: cls for name, cls in vars(modeling_auto).items() if isinstance(cls, type)}
    return {name: cls for name, cls in found.items() if issubclass(cls, _BaseAutoModelClass)}


def classes_by_type(auto):
    """{model_type: the class that an auto class makes of such a configuration}."""
    names = auto_classes()[auto]._model_mapping._model_mapping
    return {kind: name if isinstance(name, str) else name[0] for kind, name in sorted(names.items())}


def work(job):
    module_name, only, with_names = job
    lines, failed, notes, names = [], [], [], {}
    torch.set_num_threads(1)
    without_timm()
    record_parts()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            classes = list(classes_in(module_name))
    except Exception as error:
        return [], [(module_name, f"{type(error).__name__}: {error}".split("\n")[0][:160])], [], {}
    for cls in classes:
        if only and not any(cls.__name__.startswith(prefix) for prefix in only):
            continue
        found = [] if with_names else None
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                entry = line_of(cls, config_class_of(cls), lambda text: notes.append(f"{cls.__name__}: {text}"), found)
            lines.append(entry)
            if found is not None:
                names[cls.__name__] = found
        except Exception as error:
            failed.append((cls.__name__, f"{type(error).__name__}: {error}".split("\n")[0][:160]))
    return lines, failed, notes, names


def in_auto_mappings():
    names = set()
    for name, mapping in vars(modeling_auto).items():
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"):
            for value in mapping.values():
                names.update(value if isinstance(value, (tuple, list)) else [value])
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--out", type=pathlib.Path, default=TABLE)
    parser.add_argument("--names")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()

    jobs = [(name, options.only, options.names is not None) for name in modeling_modules()]
    lines, failed, notes, names = {}, {}, [], {}
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=40) as pool:
        for done, (found, bad, said, stored) in enumerate(pool.imap_unordered(work, jobs), 1):
            for entry in found:
                lines.setdefault(entry["architecture"], entry)
            failed.update(bad)
            notes += said
            names.update(stored)
            if done % 50 == 0:
                print(f"{done} of {len(jobs)} modules, {len(lines)} classes", file=sys.stderr)
    known = in_auto_mappings()
    lines = {name: line for name, line in sorted(lines.items())}
    text = io.StringIO()
    covered = [name for name in lines if name in known]
    head = {"transformers": transformers.__version__, "classes": len(lines)}
    text.write(json.dumps(head, separators=(",", ":")) + "\n")
    for entry in shared(lines):
        text.write(json.dumps(entry, separators=(",", ":"), ensure_ascii=True) + "\n")
    for auto in sorted({auto for line in lines.values() for part in line.get("parts", []) for auto in part["auto"]}):
        text.write(compact({"auto": auto, "classes": classes_by_type(auto)}) + "\n")
    if options.only:
        print(text.getvalue(), end="")
    else:
        options.out.write_text(text.getvalue())
    if options.names:
        with open(options.names, "w") as out:
            for name in sorted(names):
                out.write(json.dumps([name, names[name]], separators=(",", ":")) + "\n")
    for note in sorted(notes):
        print(note, file=sys.stderr)
    for name, why in sorted(failed.items()):
        print(f"failed: {name}: {why}", file=sys.stderr)
    missing = sorted(known - set(lines)) if not options.only else []
    print(f"missing from the auto mappings: {missing}", file=sys.stderr)
    print(f"{len(lines)} classes, {len(covered)} of {len(known)} in the auto mappings, {len(failed)} failed, "
          f"{len(text.getvalue())} bytes", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
