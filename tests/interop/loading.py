"""Loads directories with transformers, and makes the reference: the same model, quantized while it is loaded."""

import json
import pathlib

import bitsandbytes
import bitsandbytes.nn.modules
import torch
import transformers
from transformers import BitsAndBytesConfig

# On processors with avx512_bf16, bitsandbytes 0.50.2 repacks 4-bit weights in the first forward: that rounds absmax to
# bf16 and fails for rows that are not a multiple of 32, whoever quantized them. What is asked here is what was stored.
bitsandbytes.nn.modules.has_avx512bf16 = lambda: False

# A codec for each kind of layer that bitsandbytes has. What llm_int8_skip_modules says is asked of these; other schemes
# have lists of their own, and tests of their own (test_fp8.py).
BITSANDBYTES = ["nf4", "int8"]
QUANTIZED = (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)


def quantization_config(directory):
    return json.loads((pathlib.Path(directory) / "config.json").read_text()).get("quantization_config")


def load(directory, auto=transformers.AutoModelForCausalLM, **options):
    """The model, which must account for every tensor of the directory and find all that it needs."""
    model, info = auto.from_pretrained(directory, output_loading_info=True, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs", "conversion_errors"):
        assert not info.get(kind), f"{kind}: {sorted(map(str, info[kind]))[:8]}"
    check_states(model)
    return model.eval()


def check_states(model):
    """A lost quantization state is no missing key: the layer would multiply by its codes."""
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            assert module.weight.quant_state is not None and module.weight.dtype == torch.uint8, name
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            assert module.weight.SCB is not None and module.weight.dtype == torch.int8, name


def quantize_on_the_fly(source, config, auto=transformers.AutoModelForCausalLM, **options):
    if isinstance(config, dict):
        own = ("quant_method", "_load_in_4bit", "_load_in_8bit")
        config = BitsAndBytesConfig(**{key: value for key, value in config.items() if key not in own})
    return auto.from_pretrained(source, quantization_config=config, **options).eval()


def quantized_modules(model):
    """{name: class} of the layers that bitsandbytes holds."""
    return {name: type(module).__name__ for name, module in model.named_modules() if isinstance(module, QUANTIZED)}


def first_output(model, inputs):
    """The first output of a forward pass. Several tensors, as of encoders, are put end to end."""
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**inputs)[0]
    return output.float() if isinstance(output, torch.Tensor) else torch.cat([o.float().flatten() for o in output])


def raw(tensor):
    """The bytes of a tensor: packed codes seen as numbers may be NaN and equal to nothing."""
    return tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
