"""Tiny models with random weights of many architectures: {class: Case}. Rows are multiples of 64 weights, for which
bitsandbytes' CPU code multiplies correctly."""

from typing import Any, NamedTuple

import torch
import transformers


class Case(NamedTuple):
    config: dict[str, Any]
    inputs: dict[str, tuple]  # name -> shape, of tokens (names in *ids) or of normal numbers


TOKENS = {"input_ids": (2, 9)}
SEQUENCES = {"input_ids": (2, 9), "decoder_input_ids": (2, 5)}
IMAGES = {"pixel_values": (2, 3, 32, 32)}

TEXT = dict(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
GROUPED = TEXT | dict(num_key_value_heads=2)
HYBRID = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, mamba_chunk_size=16)
EXPERTS = GROUPED | dict(moe_intermediate_size=64, num_experts_per_tok=2)
DEEPSEEK = EXPERTS | dict(n_routed_experts=4, n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1,
                          kv_lora_rank=64, q_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
                          num_key_value_heads=4)  # fmt: skip
GPT = dict(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
SEQ2SEQ = dict(vocab_size=128, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
               decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64,
               pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2)  # fmt: skip
IMAGE = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32,
             patch_size=8)  # fmt: skip
SPEECH = dict(vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
              conv_dim=(64, 64), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
              num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, pad_token_id=0)  # fmt: skip

CASES = {
    # decoders
    "GPT2LMHeadModel": Case(GPT, TOKENS),  # Conv1D
    "GPTJForCausalLM": Case(GPT | dict(rotary_dim=8, tie_word_embeddings=False), TOKENS),
    "GPTNeoForCausalLM": Case(TEXT | dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
                              TOKENS),  # fmt: skip
    "GPTNeoXForCausalLM": Case(TEXT, TOKENS),
    "OPTForCausalLM": Case(TEXT | dict(ffn_dim=128, word_embed_proj_dim=64), TOKENS),
    "BloomForCausalLM": Case(TEXT | dict(n_layer=2, n_head=4), TOKENS),
    "MptForCausalLM": Case(dict(vocab_size=128, d_model=64, n_heads=4, n_layers=2, max_seq_len=64), TOKENS),
    "FalconForCausalLM": Case(TEXT | dict(ffn_hidden_size=128), TOKENS),  # a Linear of its own: nothing is replaced
    "LlamaForCausalLM": Case(GROUPED, TOKENS),
    "MistralForCausalLM": Case(GROUPED, TOKENS),
    "Qwen2ForCausalLM": Case(GROUPED | dict(tie_word_embeddings=True), TOKENS),
    "Qwen3ForCausalLM": Case(GROUPED | dict(head_dim=16), TOKENS),
    "GemmaForCausalLM": Case(GROUPED | dict(head_dim=16), TOKENS),
    "Gemma2ForCausalLM": Case(GROUPED | dict(head_dim=16), TOKENS),
    "Gemma3ForCausalLM": Case(GROUPED | dict(head_dim=16), TOKENS),
    "PhiForCausalLM": Case(GROUPED, TOKENS),  # an output layer with a bias
    "Phi3ForCausalLM": Case(GROUPED, TOKENS),
    "Starcoder2ForCausalLM": Case(GROUPED, TOKENS),
    "Olmo2ForCausalLM": Case(GROUPED, TOKENS),
    "CohereForCausalLM": Case(GROUPED, TOKENS),
    "GraniteForCausalLM": Case(GROUPED, TOKENS),
    "GraniteMoeSharedForCausalLM": Case(GROUPED | dict(num_local_experts=4, shared_intermediate_size=64), TOKENS),
    # mix layers of several kinds; a default configuration has only one kind
    "Lfm2ForCausalLM": Case(GROUPED | dict(layer_types=["conv", "full_attention"], block_ff_dim=64), TOKENS),
    "BambaForCausalLM": Case(GROUPED | HYBRID | dict(attn_layer_indices=[1]), TOKENS),
    "MellumForCausalLM": Case(EXPERTS | dict(num_experts=4, head_dim=16, mlp_layer_types=["dense", "sparse"]), TOKENS),
    "GraniteMoeHybridForCausalLM": Case(GROUPED | HYBRID | dict(num_local_experts=4, shared_intermediate_size=64,
                                                                layer_types=["mamba", "attention"]),
                                        TOKENS),  # fmt: skip
    "Zamba2ForCausalLM": Case(GROUPED | dict(num_hidden_layers=4, num_key_value_heads=4, n_mamba_heads=8,
                                             mamba_d_state=16, chunk_size=16, use_shared_attention_adapter=True,
                                             adapter_rank=64, tie_word_embeddings=False,
                                             layers_block_type=["linear_attention", "hybrid"] * 2),
                              TOKENS),  # fmt: skip
    "NemotronHForCausalLM": Case(EXPERTS | dict(layers_block_type=["linear_attention", "full_attention", "mlp", "moe"],
                                                num_hidden_layers=4, mamba_num_heads=8, mamba_head_dim=16, n_groups=2,
                                                ssm_state_size=16, chunk_size=16, head_dim=16, n_routed_experts=4,
                                                moe_latent_size=64, moe_shared_expert_intermediate_size=64),
                                 TOKENS),  # fmt: skip
    "Cohere2MoeForCausalLM": Case(EXPERTS | dict(num_experts=4, head_dim=16, num_shared_experts=1,
                                                 mlp_layer_types=["dense", "sparse"]), TOKENS),  # fmt: skip
    # does without the weight of dt_proj if it is quantized
    "JambaForCausalLM": Case(EXPERTS | dict(mamba_d_state=16, mamba_dt_rank=64, num_experts=4, attn_layer_period=2,
                                            attn_layer_offset=1), TOKENS),  # fmt: skip
    "Mamba2ForCausalLM": Case(dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_heads=8, head_dim=16,
                                   expand=2, n_groups=2, state_size=16), TOKENS),  # fmt: skip
    # encoders
    "BertModel": Case(TEXT, TOKENS),
    "BertForMaskedLM": Case(TEXT, TOKENS),
    "BertForSequenceClassification": Case(TEXT, TOKENS),
    "RobertaForMaskedLM": Case(TEXT, TOKENS),
    "DistilBertForSequenceClassification": Case(dict(vocab_size=128, dim=64, hidden_dim=128, n_layers=2, n_heads=4,
                                                     max_position_embeddings=64), TOKENS),  # fmt: skip
    "DebertaV2ForSequenceClassification": Case(TEXT | dict(relative_attention=True, pos_att_type=["p2c", "c2p"],
                                                           position_buckets=16, share_att_key=True), TOKENS),
    "ModernBertForMaskedLM": Case(TEXT | dict(cls_token_id=1, sep_token_id=2), TOKENS),
    "ElectraForPreTraining": Case(TEXT | dict(embedding_size=64), TOKENS),
    "AlbertForMaskedLM": Case(TEXT | dict(embedding_size=64), TOKENS),  # layers that share their weights
    "MPNetModel": Case(TEXT, TOKENS),
    "DPRQuestionEncoder": Case(TEXT | dict(projection_dim=64), TOKENS),  # a layer that a default lacks
    # encoders with decoders
    "T5ForConditionalGeneration": Case(dict(vocab_size=128, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                                            decoder_start_token_id=0), SEQUENCES),  # fmt: skip
    "BartForConditionalGeneration": Case(SEQ2SEQ, SEQUENCES),
    "MBartForConditionalGeneration": Case(SEQ2SEQ, SEQUENCES),
    "PegasusForConditionalGeneration": Case(SEQ2SEQ, SEQUENCES),
    # images
    "ViTForImageClassification": Case(IMAGE | dict(num_labels=5), IMAGES),
    "Dinov2Model": Case(IMAGE | dict(mlp_ratio=2), IMAGES),
    "CLIPModel": Case(dict(text_config=TEXT, vision_config=IMAGE, projection_dim=64), TOKENS | IMAGES),
    "SiglipModel": Case(dict(text_config=TEXT | dict(projection_size=64), vision_config=IMAGE), TOKENS | IMAGES),
    # speech
    "WhisperForConditionalGeneration": Case(SEQ2SEQ | dict(num_mel_bins=16, max_source_positions=20,
                                                           max_target_positions=32, suppress_tokens=None,
                                                           begin_suppress_tokens=None),
                                            {"input_features": (2, 16, 40), "decoder_input_ids": (2, 5)}),  # fmt: skip
    "Wav2Vec2ForCTC": Case(SPEECH, {"input_values": (2, 800)}),
    "HubertModel": Case(SPEECH, {"input_values": (2, 800)}),
    # mixtures of experts, which stay as they are
    "MixtralForCausalLM": Case(GROUPED | dict(num_local_experts=4), TOKENS),
    "Qwen3MoeForCausalLM": Case(EXPERTS | dict(num_experts=4, head_dim=16), TOKENS),
    "OlmoeForCausalLM": Case(EXPERTS | dict(num_experts=4), TOKENS),
    "DeepseekV3ForCausalLM": Case(DEEPSEEK, TOKENS),
}

# Models that use the weights of some layers themselves. If transformers quantizes all that it would, NF4 fails in the
# first forward pass of each. int8 fails in Mamba, WavLM and DETR, and is wrong in MobileBERT and LayoutLMv3.
WITH_USES_OUTSIDE = {
    "MambaForCausalLM": Case(dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, state_size=16), TOKENS),
    "MobileBertForMaskedLM": Case(dict(vocab_size=128, hidden_size=128, embedding_size=64, num_hidden_layers=2,
                                       intermediate_size=64, intra_bottleneck_size=64, num_feedforward_networks=2,
                                       tie_word_embeddings=False), TOKENS),  # fmt: skip
    "WavLMModel": Case(SPEECH, {"input_values": (2, 800)}),
    "LayoutLMv3Model": Case(TEXT | dict(coordinate_size=12, shape_size=8, input_size=32, patch_size=8),
                            TOKENS),  # fmt: skip
    "DetrForSegmentation": Case(
        dict(d_model=64, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=5,
             encoder_attention_heads=8, decoder_attention_heads=8, use_timm_backbone=False,
             use_pretrained_backbone=False, backbone=None,
             backbone_config=transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[1] * 4,
                                                       layer_type="basic",
                                                       out_features=["stage1", "stage2", "stage3", "stage4"])),
        {"pixel_values": (1, 3, 64, 64)}),
}  # fmt: skip
EVERY_CASE = CASES | WITH_USES_OUTSIDE


def model_class(name):
    return getattr(transformers, name)


def save(name, directory, **changes):
    cls = model_class(name)
    save_random(cls, cls.config_class(**EVERY_CASE[name].config | changes), directory)


def save_random(cls, config, directory):
    torch.manual_seed(0)
    model = cls(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.05)
    model.save_pretrained(directory)


def inputs(name):
    return random_inputs(EVERY_CASE[name].inputs)


def random_inputs(shapes):
    generator = torch.Generator().manual_seed(1)
    return {key: torch.randint(3, 30, shape, generator=generator) if key.endswith("ids")
            else torch.randn(shape, generator=generator) for key, shape in shapes.items()}  # fmt: skip
