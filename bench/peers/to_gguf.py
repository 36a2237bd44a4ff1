"""The input of llama-quantize: a model of bench/checkpoints.py as GGUF, tensor by tensor, the same bytes. As
llama.cpp's own conversion does it, norms become fp32; the rows of Q and K keep their order, and there is no tokenizer,
as neither matters to what is measured.

    to_gguf.py MODEL.safetensors OUT.gguf
"""

import json
import pathlib
import sys

import gguf
import numpy

KINDS = {"BF16": gguf.GGMLQuantizationType.BF16, "F32": gguf.GGMLQuantizationType.F32}


def tensors(path):
    """(name, kind, values) of each tensor, bf16 as the integers of its bits; read when they are used."""
    mapped = numpy.memmap(path, mode="r")
    data = 8 + int.from_bytes(mapped[:8].tobytes(), "little")
    for name, entry in json.loads(mapped[8:data].tobytes()).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = mapped[data + begin : data + end].view(numpy.uint16 if entry["dtype"] == "BF16" else numpy.float32)
            yield name, entry["dtype"], values.reshape(entry["shape"])


def main():
    path, out = map(pathlib.Path, sys.argv[1:])
    config = json.loads((path.parent / "config.json").read_text())
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for name, kind, values in tensors(path):
        if values.ndim == 1 and kind == "BF16":
            kind, values = "F32", (values.astype(numpy.uint32) << 16).view(numpy.float32)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values, raw_dtype=KINDS[kind])
    unfinished = out.with_name(out.name + ".unfinished")
    writer.write_header_to_file(unfinished)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(out)


main()
