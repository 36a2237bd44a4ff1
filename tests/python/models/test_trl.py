"""QLoRA with trl's SFTTrainer: the losses are those of the same training over the dequantized model."""

import os
import pathlib
import sys

import nibble
import pytest
import torch
import transformers
from tiny_models import FP32, convert, dequantized, save

# python/peers.sh puts trl and what only it needs into a folder of its own. Last: all else comes from where it did.
PACKAGES = pathlib.Path(os.environ.get("NIBBLE_TRL", pathlib.Path(__file__).parents[3] / "build/peers/trl"))
sys.path.append(str(PACKAGES.resolve()))
trl = pytest.importorskip("trl")
import datasets
import peft
import tokenizers

WORDS = [f"w{i}" for i in range(64)]
# Of losses, which fall by 0.3 in four steps. Adapters are in bf16, so a sum that differs in its last bit in fp32 may round
# one of their elements to a neighbour. With AVX2, the losses were then 3.2e-4 apart.
TOLERANCE = 1e-3


@pytest.fixture(autouse=True)
def caches(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def tokenizer():
    vocabulary = {"</s>": 0} | {word: i + 1 for i, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="</s>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>")


def losses(model, folder):
    texts = [" ".join(WORDS[7 * i % 64] for i in range(12 + extra)) for extra in range(8)]
    arguments = trl.SFTConfig(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, learning_rate=1e-2, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, bf16=False, seed=1, disable_tqdm=True,
    )  # fmt: skip
    model.is_loaded_in_8bit = True  # as nibble.load() says of its models: trl trains their adapters in bf16
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    rows = datasets.Dataset.from_dict({"text": texts})
    trainer = trl.SFTTrainer(
        model=model, args=arguments, train_dataset=rows, processing_class=tokenizer(), peft_config=lora
    )
    trainer.train()
    trainer.save_model(str(folder / "adapter"))
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    return [step["loss"] for step in trainer.state.log_history if "loss" in step]


@pytest.mark.parametrize("to", ["nf4", "int8"])
@pytest.mark.parametrize("name", ["Llama", "Mixtral"])
def test_sft(tmp_path, name, to):
    save(tmp_path / "plain", name)
    experts = ["--experts", to, "--allow-nibble-only"] if name == "Mixtral" else []
    directory = convert(tmp_path / "plain", tmp_path / to, "--to", to, *experts)
    expected = losses(dequantized(directory), tmp_path / "expected")
    found = losses(nibble.load(directory, **FP32), tmp_path / "found")
    assert len(found) == 4 and found[3] < found[0]
    assert found == pytest.approx(expected, abs=TOLERANCE)


def test_sft_over_bitsandbytes_layers(tmp_path):
    pytest.importorskip("bitsandbytes")
    from nibble import backend

    save(tmp_path / "plain", "Llama")
    directory = convert(tmp_path / "plain", tmp_path / "nf4", "--to", "nf4", "--compute-dtype", "float32")
    expected = losses(dequantized(directory), tmp_path / "expected")
    assert backend.enable()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        found = losses(model, tmp_path / "found")
    finally:
        backend.disable()
    assert found == pytest.approx(expected, abs=TOLERANCE)
