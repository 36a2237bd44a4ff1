#!/usr/bin/env python3
"""Whether nibble would quantize what transformers does, for every model class of transformers.

    python tests/formats/models/every_architecture.py build/release/nibble   all of them: six minutes on two cores
    ... --only Bert T5                                                       those whose names start so

Each class is built from its default configuration on the meta device and saved without weights: a file of its names,
whose bytes are a hole. `nibble convert --to nf4 --dry-run` says what it would quantize, and transformers' own rule says
what it should. Names are those of the model, and those that saving it gives them, with and without changes of prefixes.
Layers that nibble leaves plain for one of the reasons in LIMITS are no difference; they are printed. Ends with 1 if
there is a difference.
"""

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "formats/models/table"))

import architectures  # noqa: E402, F401 (first: it sets what transformers reads when it is imported)
from builds import first_build, without_timm  # noqa: E402
from classes import classes_in, config_class_of, modeling_modules  # noqa: E402
from configurations import DEFAULTS  # noqa: E402
from roles import USED_OUTSIDE, roles_of, star  # noqa: E402
from transformers.conversion_mapping import (  # noqa: E402
    get_checkpoint_conversion_mapping,
    get_model_conversion_mapping,
)
from transformers.core_model_loading import (  # noqa: E402
    GroupWeightRename,
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

# Why loading would not find the constants of a quantized layer, or why it has none.
LIMITS = re.compile("renamed by its whole name|name ends in 'weight'|not stored as a matrix|has no elements|converted")
LARGEST = 64  # rows or columns: sizes do not matter, and some models are larger than any disk


def divided(transforms):
    """The renames, and the merges and splits."""
    return [[t for t in transforms if isinstance(t, kind)] for kind in (WeightRenaming, WeightConverter)]


def saved_names(model, names, drop_prefix_changes):
    """The names that saving gives parameters, by transformers itself."""
    legacy = {tuple(t.source_patterns) for t in get_checkpoint_conversion_mapping("legacy")}
    back = [
        transform.reverse_transform()
        for transform in reversed(get_model_conversion_mapping(model))
        if not (drop_prefix_changes and isinstance(transform, PrefixChange))
        and tuple(transform.source_patterns) not in legacy
    ]
    renamings, converters = divided(back)
    stored = set()
    for name in names:
        found, pattern = rename_source_key(name, [], converters, reverse=True)
        targets = [found]
        if pattern is not None:
            converter = next(c for c in converters if pattern in c.source_patterns)
            targets = [found.replace(converter.target_patterns[0], target) for target in converter.target_patterns]
        for target in targets:
            for renaming in renamings:
                target, _ = renaming.rename_source_key(target)
            stored.add(target.replace("*", "0"))
    return stored


def loaded_names(model, stored, parameters):
    """{stored name: the parameter that loading fills from it, or None if a conversion does}, by transformers itself."""
    renamings, converters = divided(get_model_conversion_mapping(model))
    for renaming in renamings:
        if isinstance(renaming, GroupWeightRename):
            renaming._active = None
    result = {}
    for name in sorted(stored):
        renamed, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, parameters)
        if renamed not in parameters and name in parameters:
            renamed, pattern = name, None
        result[name] = None if pattern is not None else renamed
    return result


def save(directory, cls, config, shapes):
    """A directory whose weights are a hole."""
    config.architectures = [cls.__name__]
    (directory / "config.json").write_text(config.to_json_string(use_diff=False))  # save_pretrained() checks more
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(directory / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def plan_of(nibble, directory):
    """What `nibble convert --dry-run --json` says, and what is wrong."""
    command = [nibble, "convert", directory, f"{directory}-out", "--to", "nf4", "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip().replace(str(directory), "")
    plan = json.loads(done.stdout)
    return plan, " ".join(warning for warning in plan["warnings"] if "is not in the table" in warning)


def patterns(names):
    return sorted({star(name)[0] for name in names})


def compare(nibble, cls, model, roles):
    """(layers left plain for one of LIMITS, what is wrong) with each spelling of the names."""
    parameters = {name: tensor for name, tensor in model.state_dict().items() if tensor is not None}
    own = set(parameters) - set(getattr(model, "all_tied_weights_keys", ()))
    spellings = {frozenset(own)} | {frozenset(saved_names(model, own, drop)) for drop in (True, False)}
    # The table has these without their numbers, which depend on options (Reformer).
    outside = {star(name)[0] for name, role in roles.items() if role == ("kept", USED_OUTSIDE)}
    for stored in sorted(spellings, key=sorted):
        loaded = loaded_names(model, stored, parameters)
        shapes = {
            name: [min(size, LARGEST) for size in parameters[parameter].shape]
            if parameter in parameters
            else [LARGEST, LARGEST]
            for name, parameter in loaded.items()
        }
        expected = {
            name
            for name, parameter in loaded.items()
            if parameter and roles.get(parameter.removesuffix(".weight"), ("",))[0] in ("linear", "conv1d")
            and star(parameter.removesuffix(".weight"))[0] not in outside
        }
        with tempfile.TemporaryDirectory() as directory:
            save(pathlib.Path(directory), cls, model.config, shapes)
            plan, wrong = plan_of(nibble, directory)
        tensors = plan["tensors"] if plan else []
        found = {tensor["name"] for tensor in tensors if tensor["codec"] == "nf4"}
        plain = {tensor["name"]: tensor["reason"] for tensor in tensors if tensor["name"] in expected - found}
        limited = {name for name, reason in plain.items() if LIMITS.search(reason)}
        if not wrong and found != expected - limited:
            wrong = f"plain: {patterns(plain.keys() - limited)}, quantized: {patterns(found - expected)}"
        yield limited, wrong


def work(job):
    """(number of classes, lines about layers left plain for one of LIMITS, what is wrong) of a module."""
    nibble, module, only = job
    without_timm()
    tried, plain, wrong = 0, [], []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            classes = list(classes_in(module))
        except ImportError:  # of a library that is not installed
            return 0, [], []
        for cls in classes:
            if only and not any(cls.__name__.startswith(start) for start in only):
                continue
            try:
                _, model = first_build(cls, DEFAULTS.get(cls.__name__, config_class_of(cls))())
                roles = roles_of(model)
            except Exception:  # the table cannot have it, either
                continue
            tried += 1
            try:
                for limited, text in compare(nibble, cls, model, roles):
                    plain += [f"{cls.__name__}: {len(limited)} stay plain: {patterns(limited)}"] if limited else []
                    wrong += [f"{cls.__name__}: {text}"] if text else []
            except Exception as error:
                wrong.append(f"{cls.__name__}: {type(error).__name__}: {str(error)[:200]}")
    return tried, plain, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nibble")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    jobs = [(options.nibble, module, options.only) for module in modeling_modules()]
    tried = failed = 0
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=40) as pool:
        for number, plain, wrong in pool.imap_unordered(work, jobs):
            tried, failed = tried + number, failed + len(wrong)
            for text in plain + [f"DIFFERENT: {text}" for text in wrong]:
                print(text, flush=True)
    print(f"{tried} classes, {failed} differences")
    return 1 if failed or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
