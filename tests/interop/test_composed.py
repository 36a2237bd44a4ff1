"""Models that are put together from others: config.json says which, and nibble takes the layers of each from the table.
They are the layers that transformers quantizes by itself, and their tensors are the same."""

import json

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
from models import edit_config


T5 = dict(model_type="t5", vocab_size=128, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
          decoder_start_token_id=0)  # fmt: skip
QFORMER = TEXT | dict(encoder_hidden_size=64, cross_attention_frequency=1)
SWIN = dict(image_size=64, patch_size=4, embed_dim=64, depths=[1] * 4, num_heads=[1, 2, 4, 8], window_size=2)
DINO = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=28, patch_size=14,
            out_features=["stage1", "stage2"], reshape_hidden_states=False)  # fmt: skip
GEMMA = TEXT | dict(num_hidden_layers=6, head_dim=16, num_key_value_heads=2, vocab_size_per_layer_input=128,
                    hidden_size_per_layer_input=64, per_layer_config={"05": {"head_dim": 32}})  # fmt: skip


def with_decoder(decoder):
    return transformers.VisionEncoderDecoderModel, transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**IMAGE), decoder)  # fmt: skip


def llava(text, vision):
    return transformers.LlavaForConditionalGeneration, transformers.LlavaConfig(
        text_config=text | TEXT, vision_config=vision | IMAGE, image_token_index=99,
        vision_feature_select_strategy="default")  # fmt: skip


def blip(cls, text):
    return cls, cls.config_class(vision_config=IMAGE, qformer_config=QFORMER, text_config=text, num_query_tokens=4,
                                 image_token_index=99)  # fmt: skip


CAPTIONS = IMAGES | {"decoder_input_ids": (2, 5)}
CASES = {
    # A head that shares the weight of the embeddings, under a name that no other tensor of the file has.
    "ViT and BERT": (*with_decoder(transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)),
                     CAPTIONS),
    # Conv1D, some of which are square.
    "ViT and GPT-2": (*with_decoder(transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4,
                                                            n_positions=64, add_cross_attention=True)),
                      CAPTIONS),  # fmt: skip
    # A projection between an encoder and a decoder of other widths.
    "ViT and wider BERT": (*with_decoder(transformers.BertConfig(**TEXT | dict(hidden_size=128), is_decoder=True,
                                                                 add_cross_attention=True)),
                           CAPTIONS),  # fmt: skip
    "CLIP and RoBERTa": (transformers.VisionTextDualEncoderModel,
                         transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
                             transformers.CLIPVisionConfig(**IMAGE), transformers.RobertaConfig(**TEXT),
                             projection_dim=64),
                         TOKENS | IMAGES),  # fmt: skip
    # Layers whose names in the file are not those in the model.
    "DINOv2 and Qwen3": (*llava(dict(model_type="qwen3", head_dim=16, num_key_value_heads=4),
                                 dict(model_type="dinov2", mlp_ratio=2)), TOKENS),
    "DPT of DINOv2": (transformers.DPTForDepthEstimation,
                      transformers.DPTConfig(backbone_config=transformers.Dinov2Config(**DINO), hidden_size=64,
                                             backbone_out_indices=None, neck_hidden_sizes=[64] * 2,
                                             reassemble_factors=[2, 1], fusion_hidden_size=64, image_size=28,
                                             patch_size=14),
                      {"pixel_values": (2, 3, 28, 28)}),  # fmt: skip
    "UperNet of Swin": (transformers.UperNetForSemanticSegmentation,
                        transformers.UperNetConfig(
                            backbone_config=transformers.SwinConfig(
                                **SWIN, out_features=["stage1", "stage2", "stage3", "stage4"]),
                            hidden_size=64, auxiliary_in_channels=256, pool_scales=[1, 2]),
                        {"pixel_values": (1, 3, 64, 64)}),  # fmt: skip
    # A Swin of MaskFormer's own.
    "MaskFormer of Swin": (transformers.MaskFormerForInstanceSegmentation,
                           transformers.MaskFormerConfig(
                               backbone_config=transformers.SwinConfig(
                                   **SWIN, out_features=["stage1", "stage2", "stage3", "stage4"]),
                               decoder_config=transformers.DetrConfig(
                                   d_model=64, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=128,
                                   decoder_ffn_dim=128, encoder_attention_heads=4, decoder_attention_heads=4,
                                   num_queries=5),
                               fpn_feature_size=64, mask_feature_size=64),
                           None),  # fmt: skip
    # Layers that the default decoder lacks.
    "CLIP and Phi": (*llava(dict(model_type="phi"), dict(model_type="clip_vision_model")), TOKENS),
    "BLIP-2 with T5": (*blip(transformers.Blip2ForConditionalGeneration, T5), None),
    "InstructBLIP with Llama": (*blip(transformers.InstructBlipForConditionalGeneration,
                                      TEXT | dict(model_type="llama")), None),  # fmt: skip
    # Towers that the default lacks.
    "Gemma 4 with a tower": (transformers.Gemma4ForConditionalGeneration,
                             transformers.Gemma4Config(
                                 text_config=GEMMA,
                                 vision_config=IMAGE | dict(num_key_value_heads=4, head_dim=16)),
                             TOKENS),  # fmt: skip
}  # fmt: skip


@pytest.mark.parametrize("to", BITSANDBYTES)
@pytest.mark.parametrize("case", CASES)
def test_layers_are_those_of_the_parts(nibble, tmp_path, case, to):
    cls, config, shapes = CASES[case]
    save_random(cls, config, tmp_path / "model")
    directory = nibble.convert(tmp_path / "model", to, *(["--no-double-quant"] if to == "nf4" else []))
    ours = load(directory, cls)
    by_default = quantization_config(directory) | {"llm_int8_skip_modules": None}
    theirs = quantize_on_the_fly(tmp_path / "model", by_default, cls)
    assert quantized_modules(ours) == quantized_modules(theirs)
    assert quantized_modules(ours)
    ours_state, theirs_state = ours.state_dict(), theirs.state_dict()
    assert ours_state.keys() == theirs_state.keys()
    assert not [key for key, value in ours_state.items() if not torch.equal(raw(value), raw(theirs_state[key]))]
    if shapes is None:
        return  # they take more than tokens and images, or transformers fails
    a, b = (first_output(each, random_inputs(shapes)) for each in (ours, theirs))
    assert torch.isfinite(a).all()
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # convolutions may add in another order


# Files on the hub say of a part that it is of the type of the whole. transformers does not look at it there.
@pytest.mark.parametrize("to", BITSANDBYTES)
def test_types_that_do_not_count(nibble, tmp_path, to):
    cls = transformers.Qwen3VLForConditionalGeneration
    config = transformers.Qwen3VLConfig(
        text_config=TEXT | dict(head_dim=16, num_key_value_heads=2),
        vision_config=dict(depth=2, hidden_size=64, intermediate_size=128, num_heads=4, out_hidden_size=64,
                           deepstack_visual_indexes=[0]),
    )  # fmt: skip
    save_random(cls, config, tmp_path / "model")
    saved = json.loads((tmp_path / "model/config.json").read_text())
    edit_config(tmp_path / "model", vision_config=saved["vision_config"] | {"model_type": saved["model_type"]})
    directory = nibble.convert(tmp_path / "model", to)
    by_default = quantization_config(directory) | {"llm_int8_skip_modules": None}
    theirs = quantize_on_the_fly(tmp_path / "model", by_default, cls)
    assert quantized_modules(load(directory, cls)) == quantized_modules(theirs)
