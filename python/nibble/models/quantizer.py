"""The quantizer that transformers finds under `quant_method: nibble`: from_pretrained() of what nibble converted.

Before the weights are loaded, it takes the quantized ones out of the model, so that transformers neither asks for them
nor initializes them. Afterwards it puts nibble's modules there, whose tensors are mapped from the files.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.logging import is_progress_bar_enabled
from transformers.utils.quantization_config import QuantizationConfigMixin

if TYPE_CHECKING:
    from .quantized_model import QuantizedModel

METHOD = "nibble"
DIVISIONS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Values of device_map by which transformers divides a model among devices."""


def _rescale_nothing() -> None:
    """Takes the place of RwkvModel._rescale_layers(), which overwrites weights: it halves them every few layers, and
    the forward pass then halves x, too, so that fp16 does not overflow. Codes cannot be halved so. In types with the
    range of fp32, results are the same without it; in fp16 they may overflow."""


class NibbleConfig(QuantizationConfigMixin):
    """`quantization_config` in config.json. What is quantized, and how, the tensors say themselves.

    compute_dtype: the type in which layers multiply, as a torch.dtype or its name; that of the model if it is None.
    stored: what config.json says instead, if it is bitsandbytes' own; save_pretrained() writes it again.
    """

    def __init__(
        self, compute_dtype: torch.dtype | str | None = None, stored: dict[str, Any] | None = None, **ignored: Any
    ) -> None:
        self.quant_method = METHOD
        self.stored = stored
        name = str(compute_dtype).removeprefix("torch.")
        self.compute_dtype = None if compute_dtype is None else getattr(torch, name, None)
        if compute_dtype is not None and not isinstance(self.compute_dtype, torch.dtype):
            raise ValueError(f"compute_dtype {compute_dtype!r} in quantization_config is no type of torch")

    def to_dict(self) -> dict[str, Any]:
        if self.stored is not None:
            return dict(self.stored)
        name = None if self.compute_dtype is None else str(self.compute_dtype).removeprefix("torch.")
        return {"compute_dtype": name, "quant_method": METHOD}

    to_diff_dict = to_dict


class NibbleQuantizer(HfQuantizer):
    """Loads directories that hold quantized weights in bitsandbytes' or nibble's form."""

    requires_calibration = True

    def __init__(self, quantization_config: NibbleConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self._quantized: QuantizedModel | None = None
        self._renamed: str | None = None
        self._tied: list[str] = []

    def update_dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        return torch.get_default_dtype() if dtype is None else dtype

    update_torch_dtype = update_dtype  # transformers 4

    def update_device_map(self, device_map: Any) -> Any:
        """Quantized weights are small: transformers need not divide them among devices, and has none to measure."""
        if device_map in DIVISIONS:
            return {"": torch.cuda.current_device() if torch.cuda.is_available() else "cpu"}
        return device_map

    def _process_model_before_weight_loading(
        self,
        model: torch.nn.Module,
        device_map: Any = None,
        checkpoint_files: list[str] | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> torch.nn.Module:
        from .quantized_model import QuantizedModel  # it needs the operators, which registering does not

        self._quantized = QuantizedModel(model, checkpoint_files, device_map, self.quantization_config.compute_dtype)
        self._quantized.take_out()
        return model

    def _process_model_after_weight_loading(self, model: torch.nn.Module, **kwargs: Any) -> torch.nn.Module:
        assert self._quantized is not None, "it was taken out before"
        self._quantized.put_in()
        # peft's prepare_model_for_kbit_training() asks for it before it turns gradient checkpointing on.
        model.is_loaded_in_8bit = True
        for module in model.modules():
            if hasattr(module, "_rescale_layers"):
                module._rescale_layers = _rescale_nothing
        if is_progress_bar_enabled():
            print(self._quantized.summary(), file=sys.stderr)
        self._tied, self._renamed = self._quantized.tied, self._quantized.renamed
        self._quantized = None
        return model

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def get_state_dict_and_metadata(self, model: torch.nn.Module, *args: Any) -> Any:
        if getattr(model, "_hf_peft_config_loaded", False):
            return None, {}  # adapters alone are saved
        if self._renamed:
            raise NotImplementedError(
                f"save_pretrained: '{self._renamed}' has another name in this model, which transformers changes back for "
                "plain tensors alone; copy the directory that was loaded"
            )
        from .saving import stored_state

        return stored_state(model, self._tied), {}

    @property
    def is_trainable(self) -> bool:
        return True


def register() -> None:
    """Makes transformers know the method. Does nothing the second time."""
    if METHOD not in AUTO_QUANTIZER_MAPPING:
        register_quantizer(METHOD)(NibbleQuantizer)
    if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        register_quantization_config(METHOD)(NibbleConfig)
