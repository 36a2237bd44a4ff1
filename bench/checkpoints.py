"""Synthetic checkpoints in the shapes of Llama: weights drawn from a normal distribution, written without torch.

A layer has Llama-2-7B's matrices (202.4 million weights), and the vocabulary grows with the layers (embeddings and
output layer: 65.5 million weights per layer), so that sizes differ and proportions do not: four layers are 1.07
billion weights, 2.14 GB in bf16 and 4.29 GB in fp32.
"""

import array
import functools
import json
import random
import shutil

HIDDEN, INTERMEDIATE, HEADS, VOCABULARY_PER_LAYER = 4096, 11008, 32, 8000
TYPES = {"bf16": ("BF16", 2, "bfloat16"), "fp32": ("F32", 4, "float32")}


def shapes(layers, vocabulary):
    tensors = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "lm_head.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = (HIDDEN, HIDDEN)
        tensors[f"{prefix}mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        tensors[f"{prefix}mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        tensors[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
        tensors[f"{prefix}input_layernorm.weight"] = (HIDDEN,)
        tensors[f"{prefix}post_attention_layernorm.weight"] = (HIDDEN,)
    return dict(sorted(tensors.items()))


@functools.cache
def drawn(dtype):
    """The bytes of a million weights; tensors are made of it, each from another start."""
    generator = random.Random(1)
    values = array.array("f", (generator.gauss(0, 0.02) for _ in range(1 << 20)))
    if dtype == "bf16":
        values = array.array("H", values.tobytes())[1::2]  # the upper halves
    return memoryview(values.tobytes())


def write_weights(file, count, dtype, generator):
    width = TYPES[dtype][1]
    pool = drawn(dtype)
    at = generator.randrange(len(pool) // width) * width
    left = count * width
    while left > 0:
        left -= file.write(pool[at : at + left])
        at = 0


def write_header(file, entries):
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header)


def header_of(tensors, kind, width):
    """{name: shape} as safetensors stores it."""
    entries, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        size = width
        for dimension in shape:
            size *= dimension
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    return entries, offset


def write(directory, layers, dtype, vocabulary=None):
    """A model directory; one that is there already is kept. Returns the path of its weights."""
    vocabulary = vocabulary or VOCABULARY_PER_LAYER * layers
    path = directory / "model.safetensors"
    if directory.exists():
        return path
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    kind, width, torch_name = TYPES[dtype]
    tensors = shapes(layers, vocabulary)
    generator = random.Random(2)
    with open(unfinished / path.name, "wb") as file:
        write_header(file, header_of(tensors, kind, width)[0])
        for shape in tensors.values():
            write_weights(file, shape[0] * (shape[1] if len(shape) == 2 else 1), dtype, generator)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": torch_name,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }
    (unfinished / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    unfinished.rename(directory)
    return path


def write_many(path, count):
    """A file of `count` tensors of four weights each: all header."""
    tensors = {f"model.layers.{i // 100}.block_sparse_moe.experts.{i % 100}.w1.weight": (2, 2) for i in range(count)}
    entries, size = header_of(tensors, "BF16", 2)
    with open(path, "wb") as file:
        write_header(file, entries)
        file.write(bytes(size))
