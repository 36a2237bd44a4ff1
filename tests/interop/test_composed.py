"""Models that are put together from any two: what the table of architectures does not know of them stays plain, and the
directory says so. The reference is told the same list, and then quantizes the same layers to the same tensors."""

import pytest
import torch
import transformers
from loading import (
    BITSANDBYTES,
    first_output,
    load,
    quantization_config,
    quantize_on_the_fly,
    quantized_modules,
    raw,
)

IMAGE = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32,
             patch_size=8)  # fmt: skip
TEXT = dict(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)  # fmt: skip


def with_decoder(decoder):
    return transformers.VisionEncoderDecoderModel, transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**IMAGE), decoder)  # fmt: skip


def llava(text, vision):
    return transformers.LlavaForConditionalGeneration, transformers.LlavaConfig(
        text_config=text | TEXT, vision_config=vision | IMAGE, image_token_index=99,
        vision_feature_select_strategy="default")  # fmt: skip


IMAGES = {"pixel_values": (2, 3, 32, 32), "decoder_input_ids": (2, 5)}
TOKENS = {"input_ids": (2, 9)}
CASES = {
    # A head that shares the weight of the embeddings, under a name that no other tensor of the file has.
    "ViT and BERT": (*with_decoder(transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)), IMAGES),
    # Conv1D, some of which are square.
    "ViT and GPT-2": (*with_decoder(transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4,
                                                            n_positions=64, add_cross_attention=True)),
                      IMAGES),  # fmt: skip
    # Layers whose names in the file are not those in the model.
    "DINOv2 and Qwen3": (*llava(dict(model_type="qwen3", head_dim=16, num_key_value_heads=4), dict(model_type="dinov2", mlp_ratio=2)), TOKENS),
    # Layers that the default decoder lacks.
    "CLIP and Phi": (*llava(dict(model_type="phi"), dict(model_type="clip_vision_model")), TOKENS),
}  # fmt: skip


def inputs(shapes):
    made = torch.Generator().manual_seed(1)
    return {
        name: torch.randint(3, 90, shape, generator=made) if name.endswith("ids") else torch.randn(shape, generator=made)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("to", BITSANDBYTES)
@pytest.mark.parametrize("case", CASES)
def test_what_is_unknown_stays_plain(nibble, tmp_path, case, to):
    cls, config, shapes = CASES[case]
    torch.manual_seed(0)
    model = cls(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.05)
    model.save_pretrained(tmp_path / "model")
    directory = nibble.convert(tmp_path / "model", to, *(["--no-double-quant"] if to == "nf4" else []))
    ours = load(directory, cls)
    theirs = quantize_on_the_fly(tmp_path / "model", quantization_config(directory), cls)
    assert quantized_modules(ours) == quantized_modules(theirs)
    assert quantized_modules(ours)
    ours_state, theirs_state = ours.state_dict(), theirs.state_dict()
    assert ours_state.keys() == theirs_state.keys()
    assert not [key for key, value in ours_state.items() if not torch.equal(raw(value), raw(theirs_state[key]))]
    a, b = (first_output(each, inputs(shapes)) for each in (ours, theirs))
    assert torch.isfinite(a).all() and torch.equal(a, b)
