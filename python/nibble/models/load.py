"""nibble.load(): a transformers model from a directory that nibble or bitsandbytes quantized."""

from __future__ import annotations

import os
from typing import Any

from ..errors import BadInputError


def load(path: str | os.PathLike[str], *, compute_dtype=None, **options: Any):
    """The model of the architecture that config.json names, with nibble's layers for its quantized weights.

    Quantized tensors are mapped from the files: processes that load the same directory share them. compute_dtype: the
    type in which layers multiply; by default what config.json says. `options` go to from_pretrained().
    """
    import transformers

    from .quantizer import NibbleConfig, register

    register()
    path = os.fspath(path)
    config = transformers.AutoConfig.from_pretrained(path)
    stored = getattr(config, "quantization_config", None)
    if stored is not None:
        stored = stored if isinstance(stored, dict) else stored.to_dict()
        method = stored.get("quant_method", "bitsandbytes")
        if method not in ("nibble", "bitsandbytes"):
            raise BadInputError(f"{path}: is quantized by {method!r}; nibble loads what nibble or bitsandbytes quantized")
        four_bit = stored.get("bnb_4bit_compute_dtype") if stored.get("load_in_4bit") else None
        config.quantization_config = NibbleConfig(compute_dtype or stored.get("compute_dtype") or four_bit).to_dict()
    names = config.architectures or []
    model_class = getattr(transformers, names[0], None) if names else None
    if model_class is None:
        raise BadInputError(f"{path}: config.json names {names or 'no architecture'}, which transformers does not have")
    return model_class.from_pretrained(path, config=config, **{"dtype": "auto"} | options)
