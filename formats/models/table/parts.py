"""The models that auto classes put into another one, as config.json says, and the parameters that are kept in fp32."""

import contextlib
import copy
import functools
import inspect

import transformers
from builds import MADE, build
from classes import auto_classes, classes_by_type
from configurations import configs_in
from transformers import PreTrainedConfig, PreTrainedModel


def paths_in(config, above=""):
    """{id of a configuration: its path in config.json} of the configurations in one."""
    paths = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            for key, path in {id(value): above + name, **paths_in(value, f"{above}{name}.")}.items():
                paths.setdefault(key, path)
    return paths


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
    """{model_type: class} of the types of which a configuration makes another class than the auto classes do."""
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
