"""What becomes of every parameter of one model, and the patterns of names that say so for all its layers."""

import itertools

from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from weights_used import used_outside

USED_OUTSIDE = "weight used outside the layer"


def star(name):
    """The name with its numeric components as `*`, and those numbers."""
    parts = name.split(".")
    return ".".join("*" if p.isdigit() else p for p in parts), tuple(int(p) for p in parts if p.isdigit())


def fill(pattern, numbers):
    numbers = iter(numbers)
    return ".".join(str(next(numbers)) if p == "*" else p for p in pattern.split("."))


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
    used = used_outside(model)
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
            if why in (None, "output embeddings", "last parameter") and id(owner) in used:
                why = USED_OUTSIDE
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
        if ("kept", USED_OUTSIDE) in members.values():  # which layers do so is often an option, such as Reformer's
            table[pattern] = [(pattern, ("kept", USED_OUTSIDE))]
            continue
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
