"""A quantized directory in transformers, until the first logits: seconds and memory, as one JSON object.

    loading.py nibble|bitsandbytes DIRECTORY [--tokens 16]

Imports are made before the clock starts, and memory is what comes on top of them. peak_bytes counts pages of files that
are mapped, which processes share; own_bytes are those of this process alone.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import transformers
import transformers.models.llama.modeling_llama  # noqa: F401


def kilobytes(field, file):
    return int(re.search(rf"^{field}:\s*(\d+) kB", pathlib.Path(file).read_text(), re.M)[1]) * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("by", choices=("nibble", "bitsandbytes"))
    parser.add_argument("directory")
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    if options.by == "nibble":
        import nibble.nn
        from nibble import load
    else:
        import bitsandbytes  # noqa: F401

        load = transformers.AutoModelForCausalLM.from_pretrained
    transformers.utils.logging.disable_progress_bar()
    ids = torch.arange(options.tokens)[None]
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    before, own_before = kilobytes("VmRSS", "/proc/self/status"), kilobytes("RssAnon", "/proc/self/status")
    start = time.perf_counter()
    model = load(options.directory).eval()
    loaded = time.perf_counter()
    peak_of_load = kilobytes("VmHWM", "/proc/self/status") - before
    own_of_load = kilobytes("RssAnon", "/proc/self/status") - own_before
    with torch.inference_mode():
        logits = model(ids).logits
    done = time.perf_counter()
    with torch.inference_mode():
        model(ids)
    second = time.perf_counter() - done
    json.dump(
        {
            "load_s": loaded - start,
            "first_forward_s": done - loaded,
            "second_forward_s": second,
            "seconds": done - start,
            "peak_of_load_bytes": peak_of_load,
            "own_of_load_bytes": own_of_load,
            "peak_bytes": kilobytes("VmHWM", "/proc/self/status") - before,
            "shape": list(logits.shape),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
