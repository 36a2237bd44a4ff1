"""Linear layers whose weight is used outside the layer, as in `F.linear(x, self.proj.weight)`.

Such a layer cannot be quantized: its weight would be codes, and the model would multiply by them as if they were the
matrix. The uses are found in the source of the classes around the layers.
"""

import ast
import functools
import inspect

from torch import nn

# Reading these of a weight says nothing of its values.
FACTS = frozenset("device dim dtype element_size is_cuda is_meta ndim numel requires_grad shape size".split())

# Methods that fill weights.
FILLING = {"__init__", "_init_weights", "reset_parameters"}

# Kernels of other packages, to which a layer's weight is passed. Where they are missing, the layer is called as usual.
KERNELS = {"mamba_inner_fn", "mamba2_split_conv1d_scan_combined"}

# A few models have another way for quantized layers, and use the weight where this does not hold.
ASKS_FOR_QUANTIZED = "hasattr(self.config, '_is_quantized')"

# Classes, by module, whose use is never reached.
NEVER_REACHED = {
    "modeling_bloom.BloomAttention",  # needs the option slow_but_exact, which no checkpoint sets
    "modeling_bloom.BloomMLP",
    "modeling_deberta.DisentangledSelfAttention",  # needs query_states, which the model passes if z_steps > 1; it is 0
}


@functools.cache
def classes_of_file(path):
    """{name: its node} of the classes in a source file."""
    with open(path) as file:
        tree = ast.parse(file.read())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def methods_of(cls):
    """{name: its node}, inherited ones included."""
    found = {}
    for base in cls.__mro__:
        if base in (nn.Module, object):
            continue
        try:
            node = classes_of_file(inspect.getsourcefile(base)).get(base.__name__)
        except (TypeError, OSError):  # built in, or made while running
            continue
        for method in node.body if node else []:
            if isinstance(method, ast.FunctionDef):
                found.setdefault(method.name, method)
    return found


def path_of(node):
    """("a", "b") of the expression self.a.b, and "*" for an index; None of another."""
    if isinstance(node, ast.Name) and node.id == "self":
        return ()
    if isinstance(node, ast.Subscript):
        step, node = "*", node.value
    elif isinstance(node, ast.Attribute):
        step, node = node.attr, node.value
    else:
        return None
    before = path_of(node)
    return None if before is None else (*before, step)


def is_for_plain_layers(node, parents):
    """Whether this expression runs only in models that are not quantized."""
    while around := parents.get(node):
        if isinstance(around, ast.If) and node in around.orelse and ast.unparse(around.test) == ASKS_FOR_QUANTIZED:
            return True
        node = around
    return False


def is_used(weight, parents):
    """Whether this expression, a weight, is read, and not only a fact about it."""
    around = parents[weight]
    if not isinstance(weight.ctx, ast.Load) or (isinstance(around, ast.Attribute) and around.attr in FACTS):
        return False
    if isinstance(around, ast.Attribute):
        return isinstance(around.ctx, ast.Load)
    call = parents[around] if isinstance(around, ast.keyword) else around
    called = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    return called not in KERNELS | {"isinstance", "getattr", "hasattr"} and not called.startswith("init.")


@functools.cache
def weights_used(cls):
    """The modules, as paths from one of this class, whose weight its methods use: {("k_proj",)}."""
    if f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}" in NEVER_REACHED:
        return set()
    found = set()
    for name, method in methods_of(cls).items():
        if name in FILLING:
            continue
        parents = {child: node for node in ast.walk(method) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(method):
            is_weight = isinstance(node, ast.Attribute) and node.attr == "weight" and path_of(node.value)
            if is_weight and is_used(node, parents) and not is_for_plain_layers(node, parents):
                found.add(path_of(node.value))
    return found


def modules_at(module, path):
    if not path:
        return [module]
    step, *rest = path
    below = list(module.children()) if step == "*" else [getattr(module, step, None)]
    return [found for one in below if isinstance(one, nn.Module) for found in modules_at(one, rest)]


def used_outside(model):
    """The modules whose weight another module uses, as a set of their id()."""
    users = ((user, path) for user in model.modules() for path in weights_used(type(user)))
    return {id(used) for user, path in users for used in modules_at(user, path)}
