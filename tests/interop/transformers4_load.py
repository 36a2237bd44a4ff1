"""Run by test_transformers4.py under transformers 4: loads directories beside their plain sources.

    transformers4_load.py < JSON list of {name, source, directory}    prints a JSON object by directory
"""

import json
import sys

import architectures
import torch
import transformers
from loading import first_output, quantization_config, quantize_on_the_fly, quantized_modules


def compare(name, source, directory):
    cls = architectures.model_class(name)
    # transformers 4 loads quantized models in fp16 unless it is told to take the type that config.json declares
    ours, info = cls.from_pretrained(directory, output_loading_info=True, dtype="auto")
    theirs = quantize_on_the_fly(source, quantization_config(directory), cls, dtype="auto")
    inputs = architectures.inputs(name)
    a, b = first_output(ours.eval(), inputs), first_output(theirs, inputs)
    return {
        "keys": {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys},
        "quantized": sorted(quantized_modules(ours)),
        "quantized_on_the_fly": sorted(quantized_modules(theirs)),
        "finite": bool(torch.isfinite(a).all()),
        "largest_difference": float((a - b).abs().max()),
        "dtype": str(ours.dtype),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = {"version": transformers.__version__}
    for job in json.load(sys.stdin):
        try:
            result[job["directory"]] = compare(**job)
        except Exception as error:
            result[job["directory"]] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result))
