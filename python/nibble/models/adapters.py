"""Merging of adapters into quantized weights in memory, which peft would do wrongly: it adds floats to codes.

What it does then depends on the layer and on its options: it fails inside torch, or the update is cast to int8 and lost.
peft's own code for bitsandbytes' layers is not chosen for nibble's.
"""

from __future__ import annotations

import sys

HELPER = "check_adapters_to_merge"  # with it, the merge() of every kind of adapter begins


def register() -> None:
    """Makes peft refuse such merges. To be called once."""
    from peft.tuners import tuners_utils

    original = getattr(tuners_utils, HELPER)

    def checked(module, adapter_names=None):
        _check_mergeable(module.get_base_layer())
        return original(module, adapter_names)

    for name, module in list(sys.modules.items()):
        if name.startswith("peft.") and getattr(module, HELPER, None) is original:
            setattr(module, HELPER, checked)


def _check_mergeable(layer) -> None:
    ours = sys.modules.get("nibble.nn")
    if ours is None:
        return
    weight = getattr(layer, "weight", None)
    if isinstance(layer, ours.FrozenLinear):
        shape = [layer.out_features, layer.in_features]
    elif isinstance(weight, ours.QuantizedWeight):
        shape = list(weight.shape)
    else:
        return
    raise NotImplementedError(
        f"{type(layer).__name__} {shape}: its weight is quantized, and an adapter cannot be merged into it"
    )
