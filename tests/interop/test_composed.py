"""Models that are put together from any two: what the table of architectures does not know of them stays plain, and the
directory says so. The reference is told the same list, and then quantizes the same layers to the same tensors."""

import pytest
import torch
import transformers
from architectures import IMAGE, IMAGES, TEXT, TOKENS, random_inputs, save_random
from loading import (
    BITSANDBYTES,
    first_output,
    load,
    quantization_config,
    quantize_on_the_fly,
    quantized_modules,
    raw,
)


def with_decoder(decoder):
    return transformers.VisionEncoderDecoderModel, transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**IMAGE), decoder)  # fmt: skip


def llava(text, vision):
    return transformers.LlavaForConditionalGeneration, transformers.LlavaConfig(
        text_config=text | TEXT, vision_config=vision | IMAGE, image_token_index=99,
        vision_feature_select_strategy="default")  # fmt: skip


CAPTIONS = IMAGES | {"decoder_input_ids": (2, 5)}
CASES = {
    # A head that shares the weight of the embeddings, under a name that no other tensor of the file has.
    "ViT and BERT": (*with_decoder(transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)),
                     CAPTIONS),
    # Conv1D, some of which are square.
    "ViT and GPT-2": (*with_decoder(transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4,
                                                            n_positions=64, add_cross_attention=True)),
                      CAPTIONS),  # fmt: skip
    # Layers whose names in the file are not those in the model.
    "DINOv2 and Qwen3": (*llava(dict(model_type="qwen3", head_dim=16, num_key_value_heads=4),
                                 dict(model_type="dinov2", mlp_ratio=2)), TOKENS),
    # Layers that the default decoder lacks.
    "CLIP and Phi": (*llava(dict(model_type="phi"), dict(model_type="clip_vision_model")), TOKENS),
}  # fmt: skip


@pytest.mark.parametrize("to", BITSANDBYTES)
@pytest.mark.parametrize("case", CASES)
def test_what_is_unknown_stays_plain(nibble, tmp_path, case, to):
    cls, config, shapes = CASES[case]
    save_random(cls, config, tmp_path / "model")
    directory = nibble.convert(tmp_path / "model", to, *(["--no-double-quant"] if to == "nf4" else []))
    ours = load(directory, cls)
    theirs = quantize_on_the_fly(tmp_path / "model", quantization_config(directory), cls)
    assert quantized_modules(ours) == quantized_modules(theirs)
    assert quantized_modules(ours)
    ours_state, theirs_state = ours.state_dict(), theirs.state_dict()
    assert ours_state.keys() == theirs_state.keys()
    assert not [key for key, value in ours_state.items() if not torch.equal(raw(value), raw(theirs_state[key]))]
    a, b = (first_output(each, random_inputs(shapes)) for each in (ours, theirs))
    assert torch.isfinite(a).all() and torch.equal(a, b)
