"""The state dict that save_pretrained() writes of a model with quantized weights: that of the directory it came from."""

from __future__ import annotations

import torch

from ..nn import ExpertWeights, QuantizedWeight


def stored_state(model: torch.nn.Module, tied: list[str]) -> dict[str, torch.Tensor]:
    """The tensors of `model` by their names in a checkpoint. `tied`: modules whose weight is that of another one.

    Raises NotImplementedError with one sentence for what has no such names.
    """
    prefixes = {}
    for name, module in model.named_modules():
        if isinstance(module, ExpertWeights):
            raise NotImplementedError(
                f"save_pretrained: '{name}' holds the quantized experts of a layer, which a checkpoint has as matrices "
                "of their own; copy the directory that was loaded"
            )
        if isinstance(module, QuantizedWeight):
            prefixes[f"{name}.layers.0."] = name.rpartition(".")[0] + "."
    left_out = tuple(f"{module}.weight" for module in tied) + tuple(f"{module}.SCB" for module in tied)
    state = {}
    for name, tensor in model.state_dict().items():
        if name.startswith(left_out):
            continue
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        state[name if prefix is None else prefixes[prefix] + name.removeprefix(prefix)] = tensor
    return state
