"""Directories that nibble quantized, in transformers: the logits are those of the dequantized model."""

import copy
import json
import os
import re

import nibble
import pytest
import safetensors.torch
import torch
import transformers
from nibble.nn import ExpertWeights, Linear4bit, LinearInt8, QuantizedWeight
from tiny_models import FP32, MIXED, check_logits, convert, dequantized, run, save

fused_experts = pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 has a module for each expert")


@pytest.mark.parametrize("name", ["Qwen3Moe", "Mixtral", "GptOss", "DeepseekV3", "GraniteMoeHybrid"])
def test_experts_embeddings_and_heads(tmp_path, name):
    plain = save(tmp_path / "plain", name)
    options = ("--to", "nf4", "--experts", "nf4", "--compute-dtype", "float32", *MIXED)
    directory = convert(tmp_path / "plain", tmp_path / "nf4", *options)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    kinds = [type(module) for module in model.modules()]
    # transformers 4 has a module for each expert of most models, or one for each parameter of all experts.
    of_experts = [
        parameter
        for module in plain.modules()
        if "Experts" in type(module).__name__
        for parameter, tensor in module.named_parameters(recurse=False)
        if tensor.dim() == 3
    ]
    assert of_experts or transformers.__version__ < "5"
    assert kinds.count(ExpertWeights) == len(of_experts)
    assert isinstance(model.lm_head, Linear4bit)
    assert isinstance(model.model.embed_tokens.weight, QuantizedWeight)
    check_logits(model, dequantized(directory))


@pytest.fixture
def nf4(tmp_path):
    save(tmp_path / "plain", "Llama")
    return convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")


@pytest.mark.parametrize("to", ["nf4", "fp4", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_load_of_what_bitsandbytes_reads(tmp_path, to, tied):
    save(tmp_path / "plain", "Llama", tie_word_embeddings=tied)
    directory = convert(tmp_path / "plain", tmp_path / to, "--to", to)
    model = nibble.load(directory, **FP32).eval()
    assert sum(isinstance(module, Linear4bit | LinearInt8) for module in model.modules()) == 2 * 7
    check_logits(model, dequantized(directory))


class WithSpeakers(transformers.LlamaForCausalLM):
    """Its from_pretrained() expects nothing but a model of the inherited one, like that of Qwen2.5-Omni."""

    @classmethod
    def from_pretrained(cls, *arguments, **options):
        model = super().from_pretrained(*arguments, **options)
        model.speakers = ["Chelsie"]  # fails for a tuple
        return model


def test_layers_are_in_the_mode_of_their_model(nf4):
    assert not any(module.training for module in nibble.load(nf4).modules())


@pytest.mark.parametrize("path", [str, os.fsencode])
def test_a_model_in_a_subfolder(nf4, path):
    model = nibble.load(path(nf4.parent), subfolder=nf4.name, **FP32)
    check_logits(model, nibble.load(path(nf4), **FP32))
    with pytest.raises(nibble.UsageError, match="subfolder: org/model is not a directory"):
        nibble.load("org/model", subfolder="a")


def test_a_class_that_cannot_report_what_it_loads(nf4, monkeypatch):
    monkeypatch.setattr("transformers.WithSpeakers", WithSpeakers, raising=False)
    config = (nf4 / "config.json").read_text()
    (nf4 / "config.json").write_text(config.replace("LlamaForCausalLM", "WithSpeakers"))
    model = nibble.load(nf4, **FP32).eval()
    assert model.speakers == ["Chelsie"]
    check_logits(model, dequantized(nf4))
    tensors = safetensors.torch.load_file(nf4 / "model.safetensors")
    del tensors["model.norm.weight"]
    safetensors.torch.save_file(tensors, nf4 / "model.safetensors", {"format": "pt"})
    with pytest.raises(nibble.BadInputError, match="'model.norm.weight': is missing, WithSpeakers needs it"):
        nibble.load(nf4)


def test_a_head_tied_to_quantized_embeddings(tmp_path):
    save(tmp_path / "plain", "Llama", tie_word_embeddings=True)
    options = ("--to", "nf4", "--embeddings", "nf4", "--allow-nibble-only")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", *options)
    model = nibble.load(directory, **FP32).eval()
    assert isinstance(model.lm_head, Linear4bit)
    expected = dequantized(directory)
    check_logits(model, expected)
    model.tie_weights()  # as trainers do; both have one weight already
    assert isinstance(model.lm_head, Linear4bit)
    check_logits(copy.deepcopy(model), expected)


@pytest.mark.parametrize("given", [str, transformers.AutoConfig.from_pretrained])
def test_a_config_that_is_given_gets_the_quantization(nf4, given):
    config = given(nf4)
    model = nibble.load(nf4, config=config)
    assert sum(isinstance(module, Linear4bit) and type(module) is Linear4bit for module in model.modules()) == 2 * 7
    assert isinstance(config, str) or config.quantization_config["quant_method"] == "bitsandbytes"  # as it was


def test_options_that_change_the_configuration(nf4):
    model = nibble.load(nf4, use_cache=False, attn_implementation="eager", device_map="cpu")
    assert (model.config.use_cache, model.config._attn_implementation) == (False, "eager")
    assert nibble.load(nf4, config=str(nf4), use_cache=False).config.use_cache is False
    assert nibble.load(nf4).config.use_cache is True
    with pytest.raises(TypeError, match="'use_cash'"):
        nibble.load(nf4, use_cash=False)


@pytest.mark.parametrize("options", [{"torch_dtype": torch.float32}, {"torch_dtype": torch.float16, **FP32}])
def test_the_old_name_of_dtype(nf4, options):
    assert nibble.load(nf4, **options).lm_head.weight.dtype == torch.float32


def test_a_model_in_the_cache_of_the_hub(nf4, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    repository = tmp_path / "hub/models--org--model"
    for folder in ("refs", "blobs", "snapshots/0123"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs/main").write_text("0123")
    for file in nf4.iterdir():
        (repository / "snapshots/0123" / file.name).symlink_to(file.rename(repository / "blobs" / file.name))
    for name, options in (("org/model", {}), ("org/model@0123", {}), ("org/model", {"revision": "0123"})):
        assert sum(isinstance(module, Linear4bit) for module in nibble.load(name, **options).modules()) == 2 * 7
    with pytest.raises(nibble.BadInputError, match="org/model@v2"):
        nibble.load("org/model", revision="v2")
    with pytest.raises(nibble.BadInputError, match="^org/other: no such file, and not in the hub cache .*hub"):
        nibble.load("org/other")


@pytest.mark.parametrize(
    "options",
    [["nf4", "--experts", "nf4", *MIXED], ["int8", "--experts", "int8", "--allow-nibble-only"]],
    ids=["nf4", "int8"],
)
def test_nothing_is_reported_as_unexpected_or_missing(tmp_path, options):
    save(tmp_path / "plain", "Mixtral")
    directory = convert(tmp_path / "plain", tmp_path / "quantized", "--to", *options)
    _, said = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@fused_experts
def test_experts_that_are_missing_are_named(tmp_path):
    save(tmp_path / "plain", "Mixtral")
    options = ("--to", "nf4", "--experts", "nf4", "--skip", ".*layers.1.*experts.3.*", *MIXED)
    directory = convert(tmp_path / "plain", tmp_path / "nf4", *options)
    with pytest.raises(nibble.BadInputError, match="layers.1.*the experts of its layer are 3 .*the model's are 4"):
        nibble.load(directory)


def test_other_tools_directories_are_refused(tmp_path):
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "fp8", "--to", "fp8")
    with pytest.raises(nibble.BadInputError, match="is quantized by 'compressed-tensors'"):
        nibble.load(directory)


def test_a_config_for_other_shapes_is_refused(tmp_path):
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 192}))
    with pytest.raises(nibble.BadInputError, match=r"mlp.*: is \[.*\], the model's weight is \[.*192.*\]"):
        nibble.load(directory)


def test_weights_of_layers_that_the_model_lacks_are_refused(tmp_path):
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(nibble.BadInputError, match=r"layers\.1\..*: LlamaForCausalLM has no weight of this name"):
        nibble.load(directory)


@fused_experts
def test_experts_of_other_columns_are_refused(tmp_path):
    save(tmp_path / "plain", "Mixtral")
    options = ("--to", "nf4", "--experts", "nf4", "--skip", r".*\.(w1|w3|[qkvo]_proj)\.weight", "--allow-nibble-only")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", *options)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 192}))
    with pytest.raises(nibble.BadInputError, match=r"w2.*: is \[64, 128\], the model's experts have 192 columns"):
        nibble.load(directory)


def test_the_share_that_is_quantized_is_printed(tmp_path, capsys):
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")
    tensors = nibble.open(directory)
    quantized = sum(tensors.info(name).bytes for name in tensors if "_proj" in name)
    share = 100 * quantized / sum(tensors.info(name).bytes for name in tensors)
    transformers.utils.logging.enable_progress_bar()
    nibble.load(directory)
    said = capsys.readouterr().err
    assert f"{directory}: 14 quantized weights with {quantized / 1e9:.3f} GB, {share:.1f} % of the bytes" in said
    transformers.utils.logging.disable_progress_bar()
    nibble.load(directory)
    assert "quantized weights" not in capsys.readouterr().err


def test_half_written_directories_are_refused(tmp_path):
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")
    file = directory / "model.safetensors"
    whole = safetensors.torch.load_file(file)
    part = next(name for name in whole if name.endswith("_proj.weight.absmax"))
    weight = part.removesuffix(".absmax")
    for missing, message in {
        part: f"model.safetensors: tensor '{weight}': .*absmax is missing",
        weight: f"model.safetensors: tensor '{weight}.*': belongs to '{weight}', which is missing",
    }.items():
        safetensors.torch.save_file({k: v for k, v in whole.items() if k != missing}, file, {"format": "pt"})
        with pytest.raises(nibble.BadInputError, match=message) as raised:
            nibble.load(directory)
        assert "\n" not in str(raised.value)
    safetensors.torch.save_file(whole, file, {"format": "pt"})
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(nibble.BadInputError, match="model.safetensors: ") as raised:
        nibble.load(directory)
    assert "\n" not in str(raised.value)
    safetensors.torch.save_file(whole, file, {"format": "pt"})
    config = (directory / "config.json").rename(tmp_path / "config.json")
    with pytest.raises(nibble.BadInputError, match="nf4: has no config.json$"):
        nibble.load(directory)
    config.rename(directory / "config.json")
    file.unlink()
    with pytest.raises(nibble.Error, match="nf4") as raised:
        nibble.load(directory)
    assert "\n" not in str(raised.value)
    with pytest.raises(nibble.Error, match="nowhere") as raised:
        nibble.load(tmp_path / "nowhere")
    assert "\n" not in str(raised.value)


def test_tensors_are_those_of_the_file(tmp_path):
    """So processes share them: no page of a quantized weight is this process' own, even after a forward."""
    save(tmp_path / "plain", "Llama", hidden_size=256, intermediate_size=512)
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4", *MIXED)
    model = nibble.load(directory).eval()
    with torch.inference_mode():
        model(torch.arange(8)[None])
    for name, tensor in model.named_parameters():
        if tensor.dtype in (torch.uint8, torch.int8):
            lines = mapping_of(tensor.data_ptr())
            assert lines[0].endswith(str(directory / "model.safetensors")), name
            assert "Anonymous:             0 kB" in lines, name


def mapping_of(address):
    """The lines of /proc/self/smaps about the mapping that has this address."""
    found = []
    for line in open("/proc/self/smaps").read().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            if found:
                return found
            begin, end = (int(text, 16) for text in match.groups())
            found = [line] if begin <= address < end else []
        elif found:
            found.append(line)
    return found


def test_peft_prepares_such_models_for_training(tmp_path):
    peft = pytest.importorskip("peft")
    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4")
    model = peft.prepare_model_for_kbit_training(nibble.load(directory))
    assert model.is_gradient_checkpointing  # which peft turns on for models that it takes to be quantized
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")).train()
    ids = torch.arange(8)[None]
    model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


# peft casts the parameters that have 16 bits; the routers of these models want x in their own type.
@pytest.mark.parametrize("name", ["GptOss", "Mixtral", "Qwen3Moe"])
@pytest.mark.parametrize("cast", ["prepared", torch.float16, torch.float32])
def test_casts_reach_quantized_embeddings_and_experts(tmp_path, name, cast):
    peft = pytest.importorskip("peft")
    save(tmp_path / "bf16", name)
    model = nibble.load(convert(tmp_path / "bf16", tmp_path / "mixed", "--to", "nf4", "--experts", "nf4", *MIXED))
    ids = torch.arange(12)[None]
    assert model(ids).logits.dtype == torch.bfloat16
    if cast == "prepared":
        prepared = peft.prepare_model_for_kbit_training(model)
        trained = peft.get_peft_model(prepared, peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
        loss = trained(input_ids=ids, labels=ids).loss
        loss.backward()
        assert loss.dtype == torch.float32 and all(p.grad is not None for p in trained.parameters() if p.requires_grad)
    else:
        assert model.to(cast)(ids).logits.dtype == cast


def check_outputs(directory, kind, config, *options):
    """Those of a quantized model beside those of the plain one that it stands for."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(directory / "plain")
    quantized = convert(directory / "plain", directory / "quantized", *options)
    run("dequantize", quantized, directory / "dequantized", "--to", "fp32")
    expected = getattr(transformers, kind).from_pretrained(directory / "dequantized").eval()
    ids = torch.arange(10)[None]
    inputs = {"input_ids": ids, "decoder_input_ids": ids} if config.is_encoder_decoder else {"input_ids": ids}
    if kind.startswith("WavLM"):
        inputs = {"input_values": torch.randn(1, 800)}
    with torch.inference_mode():
        found, wanted = (m(**inputs)[0] for m in (nibble.load(quantized, **FP32), expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)


# transformers' code that initializes these models looks at weights of their submodules, or at shapes and devices of
# embeddings.
@pytest.mark.parametrize("kind, config", [
    ("T5ForConditionalGeneration", transformers.T5Config(
        vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)),
    ("GPT2LMHeadModel", transformers.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4)),
    ("BertModel", transformers.BertConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)),
])  # fmt: skip
def test_other_kinds_of_models(tmp_path, kind, config):
    check_outputs(tmp_path, kind, config, "--to", "nf4", "--embeddings", "nf4", "--allow-nibble-only")


# Their forward passes use the weights of some layers, which have to stay plain. RWKV's changes weights in place.
@pytest.mark.parametrize("to", ["nf4", "int8"])
@pytest.mark.parametrize("kind, config", [
    ("MambaForCausalLM", transformers.MambaConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, state_size=16)),
    ("MobileBertForMaskedLM", transformers.MobileBertConfig(
        vocab_size=256, hidden_size=128, embedding_size=64, num_hidden_layers=2, intermediate_size=64,
        intra_bottleneck_size=64, num_feedforward_networks=2)),
    ("WavLMModel", transformers.WavLMConfig(
        vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        conv_dim=(64, 64), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)),
    ("RwkvForCausalLM", transformers.RwkvConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, attention_hidden_size=64, intermediate_size=128,
        context_length=32, rescale_every=1)),
])  # fmt: skip
def test_models_that_use_weights_outside_their_layers(tmp_path, kind, config, to):
    check_outputs(tmp_path, kind, config, "--to", to)


# CLIPModel has no embeddings that it could name, so that asking for them raises.
def test_a_model_without_embeddings_to_tie(tmp_path):
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4)
    config = transformers.CLIPConfig(
        text_config=sizes | dict(vocab_size=128, eos_token_id=2),
        vision_config=sizes | dict(image_size=32, patch_size=8),
        tie_word_embeddings=True,
    )  # fmt: skip
    transformers.CLIPModel(config).save_pretrained(tmp_path / "plain")
    model = nibble.load(convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4"))
    assert any(isinstance(module, Linear4bit) for module in model.modules())


# For InternLM3, transformers itself writes LlamaForCausalLM into config.json.
@pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 has no InternLM3")
def test_a_model_of_another_type_that_transformers_names(tmp_path):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "internlm3", vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=128,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "plain")
    model = nibble.load(convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4"))
    assert type(model).__name__ == "LlamaForCausalLM"


def test_a_compute_dtype_of_the_config_that_is_given(nf4):
    config = transformers.AutoConfig.from_pretrained(nf4)
    config.quantization_config = {"quant_method": "nibble", "compute_dtype": "float16"}
    layer = nibble.load(nf4, config=config).model.layers[0].mlp.up_proj
    assert layer.compute_dtype == torch.float16
    assert nibble.load(nf4, config=config, compute_dtype="float32").lm_head.weight.dtype == torch.bfloat16
