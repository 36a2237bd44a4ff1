"""`nibble merge` against peft's own merge_and_unload(), in fp32."""

import json

import peft
import pytest
import torch
import transformers
from models import edit_config
from safetensors.torch import load_file, save_file


def llama(**changes):
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    sizes |= dict(num_key_value_heads=2, vocab_size=100, tie_word_embeddings=False, attention_bias=True)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | changes))


def classifier():
    """Its configuration says that embeddings are tied, but it has no output layer."""
    config = llama(tie_word_embeddings=True).config
    return transformers.LlamaForSequenceClassification(config)


def tied_llama():
    return llama(tie_word_embeddings=True)


def gemma3(**changes):
    """Stores its language model under other names than it has in memory."""
    text = changes | dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, head_dim=16)
    text |= dict(num_key_value_heads=2, vocab_size=100, sliding_window=16, pad_token_id=0)
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28)
    return transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(text_config=text, vision_config=vision | {"patch_size": 14}, mm_tokens_per_image=4)
    )


def paligemma():
    """Its configuration has another vocab_size at the top than its language model."""
    text = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, head_dim=16)
    text |= dict(num_key_value_heads=1, vocab_size=100, model_type="gemma", pad_token_id=0)
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28)
    vision |= dict(patch_size=14, projection_dim=64, model_type="siglip_vision_model")
    return transformers.PaliGemmaForConditionalGeneration(
        transformers.PaliGemmaConfig(text_config=text, vision_config=vision, projection_dim=64, hidden_size=64)
    )


def bert():
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=100)
    return transformers.BertForTokenClassification(transformers.BertConfig(num_labels=3, **sizes))


def whisper():
    """An encoder-decoder that ties the embeddings of its decoder alone."""
    sizes = dict(d_model=32, vocab_size=100, num_mel_bins=8, max_source_positions=16, max_target_positions=24)
    sizes |= {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 64))}
    sizes |= dict(encoder_attention_heads=2, decoder_attention_heads=2, pad_token_id=0, decoder_start_token_id=1)
    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes))


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=100, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def gpt2(n_positions=32):
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=n_positions, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


EXPERTS = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
EXPERTS |= dict(vocab_size=100, head_dim=16)


def qwen3_moe():
    config = transformers.Qwen3MoeConfig(moe_intermediate_size=48, num_experts=4, num_experts_per_tok=2, **EXPERTS)
    return transformers.Qwen3MoeForCausalLM(config)


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(num_local_experts=4, **EXPERTS))


def gpt_oss():
    sizes = EXPERTS | {"intermediate_size": 64}  # of the model itself, down_proj is square
    config = transformers.GptOssConfig(num_local_experts=4, layer_types=["full_attention"] * 2, **sizes)
    return transformers.GptOssForCausalLM(config)


def vit():
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, image_size=16, patch_size=4
    )
    return transformers.ViTForImageClassification(config)


FUSED = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

CASES = {
    "plain": (llama, dict(target_modules=["q_proj", "down_proj"])),
    "all-linear": (llama, dict(target_modules="all-linear", r=4)),
    "patterns": (
        llama,
        dict(
            target_modules=["q_proj", "k_proj", "up_proj"],
            rank_pattern={"^model.layers.0.self_attn.q_proj": 2, "up_proj": 16},
            alpha_pattern={"layers.1.*k_proj": 3, "up_proj": 40},
        ),
    ),
    "rslora": (llama, dict(target_modules=["q_proj"], use_rslora=True, r=5, lora_alpha=7)),
    "layers": (llama, dict(target_modules=["q_proj"], layers_to_transform=[1])),
    "dora": (llama, dict(target_modules=["q_proj", "down_proj"], use_dora=True)),
    "dora-rslora": (llama, dict(target_modules=["v_proj"], use_dora=True, use_rslora=True)),
    "lora-bias": (llama, dict(target_modules=["q_proj"], lora_bias=True)),
    "bias-all": (llama, dict(target_modules=["q_proj"], bias="all")),
    "bias-lora-only": (llama, dict(target_modules=["q_proj"], bias="lora_only")),
    "modules-to-save": (llama, dict(target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"])),
    "modules-to-save-without-a-head": (classifier, dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "modules-to-save-of-positions": (
        lambda: gpt2(n_positions=128),
        dict(target_modules=["c_attn"], modules_to_save=["wpe"], fan_in_fan_out=True),
    ),
    "untied-embeddings": (tied_llama, dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "untied-output": (tied_llama, dict(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "untied-both": (tied_llama, dict(target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"])),
    "untied-gpt2": (lambda: gpt2(n_positions=128), dict(target_modules=["c_attn"], modules_to_save=["wte"])),
    "untied-gemma3": (gemma3, dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "untied-whisper": (whisper, dict(target_modules=["q_proj"], modules_to_save=["proj_out"])),
    "untied-decoder": (whisper, dict(target_modules=["q_proj"], modules_to_save=["decoder"])),
    "tied-by-peft": (
        tied_llama,
        dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    ),
    "tied-t5": (t5, dict(target_modules=["q"], modules_to_save=["lm_head"], ensure_weight_tying=True)),
    "renamed-norms": (gemma3, dict(target_modules=["q_proj"], modules_to_save=["input_layernorm"])),
    "renamed-biases": (lambda: gemma3(attention_bias=True), dict(target_modules=["q_proj"], bias="all", lora_bias=True)),
    "head-with-a-bias": (bert, dict(target_modules=["query"], bias="all", task_type="TOKEN_CLS")),
    "embedding": (llama, dict(target_modules=["embed_tokens", "q_proj"])),
    "embedding-dora": (llama, dict(target_modules=["embed_tokens"], use_dora=True)),
    "head": (llama, dict(target_modules=["lm_head"])),
    "tokens": (llama, dict(target_modules=["q_proj"], trainable_token_indices=[7, 3])),
    "tokens-by-module": (
        llama,
        dict(target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [1, 5], "lm_head": [7]}),
    ),
    "tokens-tied": (
        lambda: llama(tie_word_embeddings=True),
        dict(target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [1, 5], "lm_head": [1, 5]}),
    ),
    "velora": (llama, dict(target_modules=["q_proj"], velora_config={"num_groups": 8})),
    "mica": (llama, dict(target_modules=["q_proj"], init_lora_weights="mica")),
    "conv1d": (gpt2, dict(target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "conv1d-dora": (gpt2, dict(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, use_dora=True)),
    "conv2d": (vit, dict(target_modules=["projection", "query"])),
    "conv2d-dora": (vit, dict(target_modules=["projection"], use_dora=True)),
    "experts": (
        qwen3_moe,
        dict(target_modules=["q_proj"], target_parameters=FUSED, rank_pattern={"experts.down_proj": 4}),
    ),
    "mixtral": (mixtral, dict(target_modules=["q_proj"], target_parameters=FUSED)),
    "gpt-oss": (gpt_oss, dict(target_modules=["q_proj"], target_parameters=FUSED)),
}


def run(nibble, *arguments):
    done = nibble.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done


def fails(nibble, *arguments):
    """The one line that says why the input is bad."""
    done = nibble.run(*arguments)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "" and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    return done.stderr


def train(model):
    """Every trained number becomes a random one: B and others begin with zeros."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or "lora_" in name:
            with torch.no_grad():
                parameter.add_(torch.randn_like(parameter) * 0.05)


def make(folder, model, **config):
    """Base and adapter on disk, and peft's merge in fp32."""
    torch.manual_seed(0)
    base = model()
    base.save_pretrained(folder / "base")
    adapted = peft.get_peft_model(base, peft.LoraConfig(**config))
    train(adapted)
    adapted.save_pretrained(folder / "adapter")
    merged = adapted.merge_and_unload()
    merged.save_pretrained(folder / "expected")
    return load_file(folder / "expected" / "model.safetensors")


def compare(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = value.abs().max().item()
        assert torch.allclose(found[name], value, rtol=0, atol=4e-6 * max(scale, 1e-3)), name


@pytest.mark.parametrize("case", CASES)
def test_equals_peft(case, nibble, tmp_path):
    model, config = CASES[case]
    expected = make(tmp_path, model, **config)
    base = load_file(tmp_path / "base" / "model.safetensors")
    assert any(not torch.equal(value, expected[name]) for name, value in base.items())
    run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "fp32")
    compare(load_file(tmp_path / "out" / "model.safetensors"), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_bases_are_rounded_once(dtype, nibble, tmp_path):
    torch.manual_seed(0)
    base = llama().to(dtype)
    base.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(base.float(), peft.LoraConfig(target_modules=["q_proj", "lm_head"]))
    train(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    expected = {name: value.to(dtype) for name, value in adapted.merge_and_unload().state_dict().items()}
    to = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", to)
    found = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    different = sum((found[name] != value).sum().item() for name, value in expected.items())
    run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out4", "--to", "nf4")
    assert torch.equal(load_file(tmp_path / "out4" / "model.safetensors")["lm_head.weight"], found["lm_head.weight"])
    assert different <= 1e-3 * sum(value.numel() for value in expected.values())  # ties that fp32 decides otherwise


def test_a_quantized_result_loads_and_says_what_survives(nibble, tmp_path):
    sizes = dict(hidden_size=128, intermediate_size=256)
    expected = make(tmp_path, lambda: llama(**sizes), target_modules=["q_proj", "up_proj"])
    report = json.loads(
        run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "nf4", "--json").stdout
    )
    run(nibble, "convert", tmp_path / "expected", tmp_path / "quantized", "--to", "nf4")
    run(nibble, "convert", tmp_path / "base", tmp_path / "base4", "--to", "nf4")
    for folder in ("out", "quantized", "base4"):
        run(nibble, "dequantize", tmp_path / folder, tmp_path / f"{folder}-plain", "--to", "fp32")
    out, quantized, base = (
        load_file(tmp_path / f"{folder}-plain" / "model.safetensors") for folder in ("out", "quantized", "base4")
    )
    plain = load_file(tmp_path / "base" / "model.safetensors")
    assert len(report["updates"]) == 4
    for update in report["updates"]:
        name = update["tensor"]
        dw, left = expected[name] - plain[name], out[name] - base[name]
        assert update["update_norm"] == pytest.approx(dw.norm().item(), rel=1e-4)
        assert update["ratio"] == pytest.approx((left.norm() / dw.norm()).item(), rel=1e-3)
        assert update["cosine"] == pytest.approx(((left * dw).sum() / left.norm() / dw.norm()).item(), rel=1e-3)
        assert (out[name] != quantized[name]).float().mean() < 0.01  # as if peft's merge had been quantized
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model.model.layers[0].self_attn.q_proj).__name__ == "Linear4bit"


@pytest.mark.parametrize("to", ["nf4", "int8"])
def test_a_quantized_base(to, nibble, tmp_path):
    make(tmp_path, llama, target_modules=["q_proj"], use_dora=True)
    run(nibble, "convert", tmp_path / "base", tmp_path / "quantized", "--to", to)
    run(nibble, "dequantize", tmp_path / "quantized", tmp_path / "plain", "--to", "fp32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").merge_and_unload().state_dict()
    run(nibble, "merge", tmp_path / "quantized", tmp_path / "adapter", tmp_path / "out", "--to", "fp32")
    compare(load_file(tmp_path / "out" / "model.safetensors"), expected)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    # What has no update keeps its codes.
    run(nibble, "merge", tmp_path / "quantized", tmp_path / "adapter", tmp_path / "again", "--to", to)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("quantized", "again"))
    assert before.keys() == after.keys()
    for name, value in before.items():
        if "q_proj" not in name and name.endswith(".weight"):
            assert torch.equal(value, after[name]), name


def test_an_adapter_for_another_base(nibble, tmp_path):
    make(tmp_path, llama, target_modules=["q_proj"])
    llama(hidden_size=32).save_pretrained(tmp_path / "other")
    line = fails(nibble, "merge", tmp_path / "other", tmp_path / "adapter", tmp_path / "out", "--to", "bf16")
    assert "that is for a matrix 64 x 64, but 'model.layers.0.self_attn.q_proj.weight' of" in line
    assert not (tmp_path / "out").exists()


def check_logits_of_the_trained_model(kind, folder):
    base = kind.from_pretrained(folder / "base")
    trained = peft.PeftModel.from_pretrained(base, folder / "adapter").eval()
    ids = torch.arange(16)[None]
    with torch.inference_mode():
        expected, found = trained(ids).logits, kind.from_pretrained(folder / "out").eval()(ids).logits
    assert torch.allclose(found, expected, rtol=0, atol=2e-5 * expected.abs().max().item())


OF_ONE_LAYER = {
    "lora-of-embeddings": dict(target_modules=["embed_tokens", "q_proj"]),
    "dora-of-embeddings": dict(target_modules=["embed_tokens"], use_dora=True),
    "lora-of-the-output": dict(target_modules=["lm_head", "q_proj"]),
    "lora-of-both": dict(target_modules=["lm_head", "embed_tokens"]),
    "lora-beside-a-copy": dict(target_modules=["embed_tokens"], modules_to_save=["lm_head"]),
    "rows-of-the-output": dict(target_modules=["q_proj"], trainable_token_indices={"lm_head": [7]}),
    "different-rows": dict(
        target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [1], "lm_head": [7]}
    ),
    "rows-of-embeddings": dict(target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [1]}),
}


@pytest.mark.parametrize("stored", ["once", "twice"])
@pytest.mark.parametrize("case", OF_ONE_LAYER)
def test_tied_layers_are_what_the_trained_model_has(case, stored, nibble, tmp_path):
    """peft's own merge adds what is for one of the two layers to both."""
    make(tmp_path, tied_llama, **OF_ONE_LAYER[case])
    if stored == "twice":
        file = tmp_path / "base" / "model.safetensors"
        state = load_file(file)
        save_file(state | {"lm_head.weight": state["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})
    run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "fp32")
    check_logits_of_the_trained_model(transformers.LlamaForCausalLM, tmp_path)
    tied = json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]
    assert tied == (case == "rows-of-embeddings")


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_the_weight_that_is_saved_beside_its_lora_is_that_of_both_layers(target, nibble, tmp_path):
    make(tmp_path, tied_llama, target_modules=[target])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    state = load_file(file)
    name = next(name for name in state if name.endswith("base_layer.weight"))
    save_file(state | {name: state[name] + 0.1 * torch.randn_like(state[name])}, file, {"format": "pt"})
    run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "fp32")
    check_logits_of_the_trained_model(transformers.LlamaForCausalLM, tmp_path)


def store_every_tied_weight(model, directory):
    """As older versions of transformers did."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    save_file(state, directory / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("model, module", [(t5, "shared"), (tied_llama, "embed_tokens")])
def test_rows_of_a_weight_that_is_stored_several_times(model, module, nibble, tmp_path):
    make(tmp_path, model, target_modules=["q_proj", "q"], trainable_token_indices={module: [1, 5]})
    base = type(model()).from_pretrained(tmp_path / "base")
    store_every_tied_weight(base, tmp_path / "base")
    if model is tied_llama:
        edit_config(tmp_path / "base", architectures=["UnknownForCausalLM"])
    run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "fp32")
    found = load_file(tmp_path / "out" / "model.safetensors")
    weights = [value for name, value in found.items() if value.shape == base.get_input_embeddings().weight.shape]
    before = base.get_input_embeddings().weight
    assert len(weights) == (4 if model is t5 else 2) and not torch.equal(weights[0], before)
    assert all(torch.equal(value, weights[0]) for value in weights)


@pytest.mark.parametrize("saved", [dict(modules_to_save=["lm_head"]), dict(trainable_token_indices=[3, 7])], ids=str)
def test_embeddings_saved_in_their_wrappers(saved, nibble, tmp_path):
    torch.manual_seed(0)
    base = llama()
    base.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], **saved))
    train(adapted)
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    names = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert any("token_adapter.base_layer" in name or "modules_to_save" in name for name in names)
    adapted.merge_and_unload().save_pretrained(tmp_path / "expected")
    run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "fp32")
    compare(*(load_file(tmp_path / folder / "model.safetensors") for folder in ("out", "expected")))


# Of PaliGemma, nibble stores lm_head.weight under the name that older versions of transformers expect, peft does not.
UNTIED = {case: CASES[case] for case in CASES if case.startswith("untied")}
UNTIED["untied-paligemma"] = (paligemma, dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"]))


@pytest.mark.parametrize("case", UNTIED)
def test_untied_layers_are_loaded_as_such(case, nibble, tmp_path):
    """config.json says it where transformers looks, and both layers have the type that they had in common."""
    model, config = UNTIED[case]
    make(tmp_path, model, **config)
    base = type(model()).from_pretrained(tmp_path / "base").bfloat16()
    base.save_pretrained(tmp_path / "base")
    run(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "nf4")
    loaded = type(base).from_pretrained(tmp_path / "out")
    peft_model = type(base).from_pretrained(tmp_path / "expected").bfloat16()
    for layer in ("get_input_embeddings", "get_output_embeddings"):
        found, by_peft = (getattr(of, layer)().weight for of in (loaded, peft_model))
        assert found.dtype == torch.bfloat16 and torch.equal(found, by_peft)


NO_HEAD = "its output layer may be tied to its embeddings"
TIED = "changes the embeddings of"


@pytest.mark.parametrize(
    "model, config, why",
    [
        (tied_llama, dict(modules_to_save=["embed_tokens"]), TIED),
        (tied_llama, dict(modules_to_save=["lm_head"]), NO_HEAD),
        (t5, dict(modules_to_save=["shared"]), TIED),
        (t5, dict(modules_to_save=["lm_head"]), NO_HEAD),
        (t5, dict(target_modules=["shared"]), TIED),
    ],
)
def test_tied_layers_that_cannot_be_untied(nibble, tmp_path, model, config, why):
    make(tmp_path, model, **dict(target_modules=["q_proj", "q"]) | config)
    if model is tied_llama:
        edit_config(tmp_path / "base", architectures=["UnknownForCausalLM"])
    assert why in fails(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "bf16")


@pytest.mark.parametrize(
    "config, why",
    [
        (peft.LoHaConfig(target_modules=["q_proj"]), "peft_type is LOHA: only LORA can be merged"),
        (peft.LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa"), "init_lora_weights is pissa"),
        (peft.LoraConfig(target_modules=["q_proj"], alora_invocation_tokens=[1]), "alora_invocation_tokens is"),
    ],
)
def test_what_cannot_be_merged_is_named(config, why, nibble, tmp_path):
    model = llama()
    model.save_pretrained(tmp_path / "base")
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    assert why in fails(nibble, "merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out", "--to", "bf16")
