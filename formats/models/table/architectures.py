"""Which tensors transformers quantizes, for every architecture it knows: writes formats/models/architectures.jsonl.

    cd formats/models/table
    python architectures.py                 write the table (run by hand, eleven minutes on two cores)
    python architectures.py --only Bert T5  print the lines of the classes whose names start so

What it says is checked against transformers: for every class by tests/interop/every_architecture.py (by hand), and for
tiny models that are quantized and run by tests/interop/test_architectures.py.

Every class is built from its default configuration on the meta device (no memory, no weights), then again with each
boolean option that its constructor reads flipped, with each that is None, 0 or empty given a value, with each part that
is absent by default, and, for each kind of layer that its code names and its default lacks, with every second layer of
that kind. A build that has modules which none had before is repeated with tie_word_embeddings both ways. Each build is
put through transformers' own rule for bitsandbytes: get_modules_to_not_convert, then should_convert_module and the
exact type of the module. The union of the builds is the table; the first build wins where two contradict, and stderr
says so, as it does of a build that fails. The output depends on nothing but the version of transformers.

classes.py, configurations.py and builds.py have what is built, roles.py, parts.py and loading_rules.py what is found in
a model, and sharing.py what lines have in common.

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
import io
import itertools
import logging
import multiprocessing
import os
import pathlib
import re
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
import transformers  # noqa: E402
from builds import build, first_build, reads_recorded, record_parts, without_timm  # noqa: E402
from classes import classes_by_type, classes_in, config_class_of, in_auto_mappings, modeling_modules  # noqa: E402
from configurations import (  # noqa: E402
    DEFAULTS,
    changed,
    configs_in,
    variants,
    with_absent_parts,
    with_other_layers,
)
from loading_rules import rules_of  # noqa: E402
from parts import kept_in_fp32, parts_of, parts_of_line  # noqa: E402
from roles import generalize, roles_of  # noqa: E402
from sharing import compact, grouped, shared  # noqa: E402
from transformers.quantizers.base import MODULES_TO_PATCH_FOR_QUANTIZATION  # noqa: E402

# Some models tie more names than the cache of compiled expressions holds, and would compile each for each module.
re._MAXCACHE = 1 << 16

TABLE = pathlib.Path(__file__).parents[1] / "architectures.jsonl"


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


def line_of(cls, config_class, complain):
    config = DEFAULTS.get(cls.__name__, config_class)()
    reads = set()
    with reads_recorded(reads):
        config, model = first_build(cls, config)
    entry = {"architecture": cls.__name__}
    entry["prefix"] = model.base_model_prefix
    if any(type(m).__name__ in MODULES_TO_PATCH_FOR_QUANTIZATION for m in model.modules()):
        entry["blocker"] = "transformers splits the fused experts of this model when it loads quantized weights"
    renames, merges = rules_of(model, complain)

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


def work(job):
    module_name, only = job
    lines, failed, notes = [], [], []
    torch.set_num_threads(1)
    without_timm()
    record_parts()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            classes = list(classes_in(module_name))
    except Exception as error:
        return [], [(module_name, f"{type(error).__name__}: {error}".split("\n")[0][:160])], []
    for cls in classes:
        if only and not any(cls.__name__.startswith(prefix) for prefix in only):
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                entry = line_of(cls, config_class_of(cls), lambda text: notes.append(f"{cls.__name__}: {text}"))
            lines.append(entry)
        except Exception as error:
            failed.append((cls.__name__, f"{type(error).__name__}: {error}".split("\n")[0][:160]))
    return lines, failed, notes


def text_of(lines):
    """The file: its head, the lines of the classes, and what the auto classes in them make."""
    rows = [{"transformers": transformers.__version__, "classes": len(lines)}, *shared(lines)]
    autos = {auto for line in lines.values() for part in line.get("parts", []) for auto in part["auto"]}
    rows += [{"auto": auto, "classes": classes_by_type(auto)} for auto in sorted(autos)]
    return "".join(compact(row) + "\n" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--out", type=pathlib.Path, default=TABLE)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()

    jobs = [(name, options.only) for name in modeling_modules()]
    lines, failed, notes = {}, {}, []
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=40) as pool:
        for done, (found, bad, said) in enumerate(pool.imap_unordered(work, jobs), 1):
            for entry in found:
                lines.setdefault(entry["architecture"], entry)
            failed.update(bad)
            notes += said
            if done % 50 == 0:
                print(f"{done} of {len(jobs)} modules, {len(lines)} classes", file=sys.stderr)
    known = in_auto_mappings()
    lines = dict(sorted(lines.items()))
    text = text_of(lines)
    if options.only:
        print(text, end="")
    else:
        options.out.write_text(text)
    for note in sorted(notes):
        print(note, file=sys.stderr)
    for name, why in sorted(failed.items()):
        print(f"failed: {name}: {why}", file=sys.stderr)
    missing = sorted(known - set(lines)) if not options.only else []
    print(f"missing from the auto mappings: {missing}", file=sys.stderr)
    covered = f"{len(known & set(lines))} of {len(known)} in the auto mappings"
    print(f"{len(lines)} classes, {covered}, {len(failed)} failed, {len(text)} bytes", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
