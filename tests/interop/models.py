"""Tiny models with random weights, saved by transformers as everybody's are."""

import functools
import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@functools.cache
def llama(tied):
    # Rows of 128 and 344 weights: whole blocks of 64, and blocks that lie across rows.
    config = LlamaConfig(hidden_size=128, intermediate_size=344, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=512, max_position_embeddings=128, tie_word_embeddings=tied,
                         bos_token_id=1, eos_token_id=2, initializer_range=0.05)  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter[0, 3] = 1.7  # an outlier
    return model


def save_llama(directory, dtype="fp32", tied=False, **options):
    """Saves with max_shard_size and the like in `options`."""
    model = LlamaForCausalLM(llama(tied).config)
    model.load_state_dict(llama(tied).state_dict())
    model.to(DTYPES[dtype]).tie_weights()
    model.config.dtype = DTYPES[dtype]
    model.save_pretrained(directory, **options)
    return directory


def tokens(vocabulary=512, shape=(2, 12)):
    return torch.randint(3, vocabulary, shape, generator=torch.Generator().manual_seed(0))


def edit_config(directory, **changes):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps(config, indent=2))
