"""nibble.load(): a transformers model from a directory that nibble or bitsandbytes quantized."""

from __future__ import annotations

import os
from typing import Any

from ..checkpoint import open_checkpoint
from ..errors import BadInputError


def load(path: str | os.PathLike[str], *, compute_dtype=None, **options: Any):
    """The model of the architecture that config.json names, with nibble's layers for its quantized weights.

    Quantized tensors are mapped from the files: processes that load the same directory share them. compute_dtype: the
    type in which layers multiply; by default what config.json says. `options` go to from_pretrained().
    """
    import transformers
    import transformers.quantizers.auto  # before nibble's quantizer, which its end may import (registration.py)

    from .quantizer import NibbleConfig, register

    register()
    path = os.fspath(path)
    open_checkpoint(path).close()  # first, because what transformers says of a path that has no model is long
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "config.json")):
        raise BadInputError(f"{path}: has no config.json")
    config = transformers.AutoConfig.from_pretrained(path)
    stored = getattr(config, "quantization_config", None)
    if stored is not None:
        stored = stored if isinstance(stored, dict) else stored.to_dict()
        method = stored.get("quant_method", "bitsandbytes")
        if method not in ("nibble", "bitsandbytes"):
            raise BadInputError(f"{path}: is quantized by {method!r}; nibble loads what nibble or bitsandbytes quantized")
        four_bit = stored.get("bnb_4bit_compute_dtype") if stored.get("load_in_4bit") else None
        wanted = compute_dtype or stored.get("compute_dtype") or four_bit
        config.quantization_config = NibbleConfig(wanted).to_dict()
        if method == "bitsandbytes":
            config.quantization_config["stored"] = stored
    names = config.architectures or []
    model_class = getattr(transformers, names[0], None) if names else None
    if model_class is None:
        raise BadInputError(f"{path}: config.json names {names or 'no architecture'}, which transformers does not have")
    return model_class.from_pretrained(path, config=config, **{"dtype": "auto"} | options)
