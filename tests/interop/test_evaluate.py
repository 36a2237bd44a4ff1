"""python -m nibble.evaluate: its statistics against definitions written out, its report on tiny models and MiniLM."""

import copy
import functools
import math

import numpy
import pytest
import torch
import transformers
from conftest import ROOT
from evaluation import (CONTEXT, TEXT, VOCABULARY, fails, llama, minilm, printed, process, report,  # noqa: F401
                        tokenizer, variant)
from loading import quantize_on_the_fly
from nibble import layer_error, token_statistics
from nibble.token_statistics import TokenStatistics, mean_and_error, percentile, token_values
from transformers import BitsAndBytesConfig, LlamaForCausalLM


def log_softmax(logits):
    logits = numpy.asarray(logits, dtype=numpy.float64)
    shifted = logits - logits.max()
    return shifted - math.log(numpy.exp(shifted).sum())


def plain(reference, test, targets):
    """llama.cpp's figures again, a token at a time, in sums as it keeps them."""
    nll, nll_ref, kld, p_diff, same = [], [], [], [], 0
    for ref, own, target in zip(reference.tolist(), test.tolist(), targets.tolist()):
        p, q = log_softmax(ref), log_softmax(own)
        nll.append(-q[target])
        nll_ref.append(-p[target])
        kld.append(sum(math.exp(a) * (a - b) for a, b in zip(p, q) if a > -math.inf))
        p_diff.append(math.exp(q[target]) - math.exp(p[target]))
        same += int(numpy.argmax(ref) == numpy.argmax(own))
    count = len(nll)

    def mean_and_uncertainty(values):
        mean = sum(values) / count
        return mean, math.sqrt((sum(v * v for v in values) / count - mean * mean) / (count - 1))

    mean, error = mean_and_uncertainty(nll)
    mean_ref, error_ref = mean_and_uncertainty(nll_ref)
    products = sum(a * b for a, b in zip(nll, nll_ref)) / count
    shared = (products - mean * mean_ref) / (count - 1)
    square, square_error = mean_and_uncertainty([v * v for v in p_diff])
    share = same / count
    return {
        "perplexity": (math.exp(mean), math.exp(mean) * error),
        "perplexity_reference": (math.exp(mean_ref), math.exp(mean_ref) * error_ref),
        "ln_ratio": (mean - mean_ref, math.sqrt(error**2 + error_ref**2 - 2 * shared)),
        "kld": mean_and_uncertainty(kld),
        "p_diff": mean_and_uncertainty(p_diff),
        "p_diff_rms": (math.sqrt(square), square_error / (2 * math.sqrt(square))),
        "same_top": (share, math.sqrt(share * (1 - share) / (count - 1))),
        "difference": (math.exp(mean) - math.exp(mean_ref), math.sqrt(
            (math.exp(mean) * error) ** 2 + (math.exp(mean_ref) * error_ref) ** 2
            - 2 * math.exp(mean + mean_ref) * shared)),
        "correlation": shared / (error * error_ref),
        "values": kld,
    }  # fmt: skip


def agree(ours, theirs, tolerance=1e-9):
    for name, expected in theirs.items():
        if name == "correlation":
            assert ours[name] == pytest.approx(expected, rel=tolerance, abs=tolerance)
        elif name != "values":
            found = ours[name]["mean"], ours[name]["error"]
            assert found == pytest.approx(expected, rel=tolerance, abs=tolerance), name
    values = numpy.array(theirs["values"])
    for name, percent in (("max", 100), ("p99.9", 99.9), ("p99", 99), ("median", 50), ("p1", 1), ("min", 0)):
        assert ours["kld"][name] == pytest.approx(numpy.percentile(values, percent), rel=tolerance, abs=1e-12), name


def test_one_token_by_hand():
    # P = (1/2, 1/2), Q = (1/4, 3/4), and the second token comes
    values = token_values(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, math.log(3)]], dtype=torch.float64),
                          torch.tensor([1]))  # fmt: skip
    expected = {"nll_ref": math.log(2), "nll": math.log(4 / 3), "kld": math.log(4 / 3) / 2, "p_diff": 0.25, "same": 0}
    assert {name: value.item() for name, value in values.items()} == pytest.approx(expected, rel=1e-14)


def test_two_tokens_by_hand():
    assert mean_and_error(torch.tensor([1.0, 3.0] * 8, dtype=torch.float64)) == (2.0, math.sqrt(1 / 15))
    assert mean_and_error(torch.tensor([1.0, 3.0], dtype=torch.float64)) == (2.0, 0.0)
    assert percentile(torch.tensor([0.0, 1.0, 2.0, 10.0]), 50.0) == 1.5
    assert percentile(torch.tensor([0.0, 1.0, 2.0, 10.0]), 90.0) == pytest.approx(0.3 * 2 + 0.7 * 10)


def test_a_token_that_is_excluded():
    """Models pad their vocabulary with logits of -inf: such a token has no share in the divergence."""
    logits = torch.tensor([[1.0, 2.0, -math.inf]])
    values = token_values(logits, logits, torch.tensor([0]))
    assert values["kld"].item() == 0.0
    values = token_values(logits, torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([0]))
    p, q = log_softmax([1.0, 2.0]), log_softmax([1.0, 2.0, 3.0])
    assert values["kld"].item() == pytest.approx(sum(math.exp(a) * (a - b) for a, b in zip(p, q)))


@pytest.mark.parametrize("spread", [1e-3, 0.3, 10.0])
def test_statistics_are_those_of_the_definitions(monkeypatch, spread):
    generator = torch.Generator().manual_seed(0)
    reference = 4 * torch.randn(700, 50, generator=generator)
    test = reference + spread * torch.randn(700, 50, generator=generator)
    targets = torch.randint(50, (700,), generator=generator)
    monkeypatch.setattr(token_statistics, "CHUNK", 50 * 33)  # parts of 33 tokens, the last one shorter
    statistics = TokenStatistics()
    statistics.add(reference[:200], test[:200], targets[:200])
    statistics.add(reference[200:], test[200:], targets[200:])
    # The plain sums subtract squares, which costs digits where the spread is small.
    agree(statistics.summary(), plain(reference, test, targets), 1e-6 if spread < 0.1 else 1e-9)


def naive(reference, test, tokenizer, context=CONTEXT):
    """Both models over the text, a window at a time, by llama.cpp's rule."""
    tokens = tokenizer(TEXT.read_text())["input_ids"]
    models = [LlamaForCausalLM.from_pretrained(directory).eval() for directory in (reference, test)]
    logits, targets = ([], []), []
    for begin in range(0, len(tokens) // context * context, context):
        window = torch.tensor([[tokenizer.bos_token_id, *tokens[begin + 1 : begin + context]]])
        with torch.no_grad():
            for model, kept in zip(models, logits):
                kept.append(model(window).logits[0, context // 2 : context - 1])
        targets.append(window[0, context // 2 + 1 :])
    return plain(torch.cat(logits[0]), torch.cat(logits[1]), torch.cat(targets))


def test_a_whole_text(llama, variant, tokenizer):
    def blur(model):
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))

    test = variant(blur)
    found = report(llama, test, "--text", TEXT, "--context", CONTEXT, "--layer-batches", 0)
    windows = (len(tokenizer(TEXT.read_text())["input_ids"])) // CONTEXT
    assert (found["kind"], found["windows"], found["context"]) == ("language model", windows, CONTEXT)
    figures = found["results"][0]
    assert figures["tokens"] == windows * (CONTEXT // 2 - 1) and "layers" not in figures
    agree(figures, naive(llama, test, tokenizer), 1e-5)  # fp32 in other batches
    assert figures["perplexity"]["mean"] < 0.7 * VOCABULARY

    again = report(llama, test, "--text", TEXT, "--context", CONTEXT, "--layer-batches", 0, "--threads", 1, run=process)
    assert again == found
    batches = report(llama, test, "--text", TEXT, "--context", CONTEXT, "--batch", 7)["results"][0]
    assert batches["kld"]["mean"] == pytest.approx(figures["kld"]["mean"], rel=1e-4)
    assert batches["perplexity"]["mean"] == pytest.approx(figures["perplexity"]["mean"], rel=1e-5)


def test_a_model_is_itself(llama):
    found = report(llama, llama, "--text", TEXT, "--windows", 5)
    assert found["context"] == CONTEXT and found["windows"] == 5  # as many tokens as the model has positions
    (figures,) = found["results"]
    assert figures["kld"]["max"] == figures["kld"]["min"] == figures["kld"]["error"] == 0
    assert figures["same_top"] == {"mean": 1.0, "error": 0.0}
    assert figures["ln_ratio"]["mean"] == figures["difference"]["mean"] == figures["p_diff_rms"]["mean"] == 0
    assert figures["perplexity"] == figures["perplexity_reference"]
    for layer in figures["layers"]:
        assert layer["so_far"] == layer["own"] == {"rel_rmse": 0.0, "sqnr_db": None}


NAMES = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(4)), "lm_head"]


@pytest.mark.parametrize("damaged", range(len(NAMES)))
def test_the_damaged_layer_is_found(llama, variant, damaged):
    def damage(model):
        torch.manual_seed(2)
        module = model.get_submodule(NAMES[damaged])
        weight = (module.mlp.down_proj if "layers" in NAMES[damaged] else module).weight
        weight.add_(0.1 * torch.randn_like(weight) * weight.std())

    test = variant(damage)
    table = printed(llama, test, "--text", TEXT, "--windows", 6, "--batch", 3)
    assert [line.split()[0] for line in table.splitlines() if line.endswith("<- most")] == [NAMES[damaged]]

    layers = report(llama, test, "--text", TEXT, "--windows", 6, "--batch", 3)["results"][0]["layers"]
    assert [layer["name"] for layer in layers] == NAMES
    for index, layer in enumerate(layers):
        assert (layer["own"]["rel_rmse"] > 0) == (index == damaged), layer
        assert (layer["so_far"]["rel_rmse"] > 0) == (index >= damaged), layer
        if index == damaged:
            assert layer["so_far"] == layer["own"]
            assert layer["own"]["sqnr_db"] == pytest.approx(-20 * math.log10(layer["own"]["rel_rmse"]))


def test_layer_error_of_one_linear_layer():
    """Of a model whose layers are known: the error is that of a product of matrices."""

    class Toy(torch.nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.config = transformers.PretrainedConfig(num_hidden_layers=2)
            self.embed = torch.nn.Embedding.from_pretrained(torch.eye(4))
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(2))
            for layer, factor in zip(self.layers, scale):
                layer.weight.data = factor * torch.eye(4)
                layer.weight.data[3, 3] = 9 * factor - 8  # the last token alone, which the mask leaves out, sees this

        def get_input_embeddings(self):
            return self.embed

        def get_output_embeddings(self):
            return None

        def forward(self, tokens):
            hidden = self.embed(tokens)
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden

    models = {"reference": Toy([1.0, 1.0]), "test": Toy([1.25, 0.5])}
    tokens = torch.arange(4).unsqueeze(0)
    error = layer_error.LayerError(models["reference"], models["test"])
    with torch.no_grad():
        error.add(lambda which: models[which](tokens), torch.tensor([[1, 1, 1, 0]]))
    found = {layer["name"]: (layer["so_far"]["rel_rmse"], layer["own"]["rel_rmse"]) for layer in error.summary()}
    assert found == {"embed": (0.0, 0.0), "layers.0": (0.25, 0.25), "layers.1": (0.375, 0.5)}


SIZES = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2, vocab_size=100,
             max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip


@pytest.mark.parametrize("model_type,options", [
    ("gpt2", dict(n_embd=64, n_layer=3, n_head=2)), ("opt", dict(ffn_dim=128, word_embed_proj_dim=64)), ("gpt_neox", {}),
    ("falcon", {}), ("qwen3", dict(head_dim=32, num_key_value_heads=2)), ("gemma2", dict(head_dim=32, num_key_value_heads=2)),
    ("mixtral", dict(num_local_experts=3, num_key_value_heads=2)), ("bert", {}), ("roberta", {}), ("mpnet", {}),
    ("distilbert", dict(dim=64, hidden_dim=128, n_layers=3, n_heads=2))])  # fmt: skip
def test_layers_of_architectures(model_type, options):
    """Layers take and return what they like: arguments by position or by name, tuples, masks of their own type."""
    sizes = {} if model_type in ("gpt2", "distilbert") else SIZES
    config = transformers.AutoConfig.for_model(model_type, **{**sizes, "vocab_size": 100, **options})
    language = model_type not in ("bert", "roberta", "mpnet", "distilbert")
    auto = transformers.AutoModelForCausalLM if language else transformers.AutoModel
    torch.manual_seed(0)
    models = {"reference": auto.from_config(config).eval()}
    models["test"] = copy.deepcopy(models["reference"]).to(torch.bfloat16 if language else torch.float32)
    with torch.no_grad():
        for name, parameter in models["test"].named_parameters():
            if ".1." in name and parameter.ndim > 1:
                parameter.mul_(1.2)
    error = layer_error.LayerError(*models.values())
    tokens, no_cache = torch.randint(3, 100, (2, 20)), {"use_cache": False} if language else {}
    with torch.inference_mode():
        error.add(lambda which: models[which](tokens, **no_cache), torch.ones(2, 20))
    own = {layer["name"].rsplit(".", 1)[-1]: layer["own"]["rel_rmse"] for layer in error.summary()}
    assert len(own) == 4 + language and max(own, key=own.get) == "1"
    assert own["1"] > 5e-3 and (language or own["0"] == own["2"] == 0)


TARGETS = {  # as transformers is told, and as nibble
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "nf4 --no-double-quant": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "fp4": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=True),
    "int8": dict(load_in_8bit=True),
}


@pytest.mark.parametrize("target", TARGETS)
def test_bitsandbytes_own_quantization_loses_as_much(nibble, llama, tmp_path, target):
    theirs = tmp_path / "theirs"
    quantize_on_the_fly(llama, BitsAndBytesConfig(**TARGETS[target])).save_pretrained(theirs)
    found = report(llama, nibble.convert(llama, *target.split()), theirs, "--text", TEXT)["results"]
    ours, theirs = found
    if target in ("nf4 --no-double-quant", "int8"):  # the bytes are equal, and so must be every figure
        assert {**ours, "test": ""} == {**theirs, "test": ""}
    for figure in ("perplexity", "kld", "same_top", "p_diff_rms"):
        error = min(ours[figure]["error"], theirs[figure]["error"])
        assert abs(ours[figure]["mean"] - theirs[figure]["mean"]) <= error, figure
    assert ours["kld"]["mean"] > 5 * ours["kld"]["error"] > 0
    own = {layer["name"]: layer["own"]["rel_rmse"] for layer in ours["layers"]}
    assert own["lm_head"] == own["model.embed_tokens"] == 0 < min(own[f"model.layers.{i}"] for i in range(4))


def test_fp16(nibble, llama):
    """Of other types than the reference's, layers too: REF's input goes to TEST's layer in TEST's type."""
    figures = report(llama, nibble.convert(llama, "fp16"), "--text", TEXT, "--windows", 8)["results"][0]
    assert 0 < figures["kld"]["mean"] < 1e-5 and figures["same_top"]["mean"] > 0.99
    assert all(layer["own"]["rel_rmse"] < 2e-3 for layer in figures["layers"])


def test_minilm(nibble, tmp_path):
    source, text = minilm.model_directory(), tmp_path / "sentences.txt"
    text.write_text("\n\n".join(minilm.SENTENCES))
    directories = {to: nibble.convert(source, to) for to in ("nf4", "fp16")}
    found = report(source, *directories.values(), "--text", text, "--batch", 20)
    assert (found["kind"], found["lines"]) == ("encoder", 20)
    original, tokenizer, _ = minilm.load(source)
    expected = minilm.embeddings(original, tokenizer)
    for (to, directory), figures in zip(directories.items(), found["results"]):
        cosines = (minilm.embeddings(*minilm.load(directory)[:2]) * expected).sum(1)
        figure = figures["cosine"]
        assert figure["mean"] == pytest.approx(cosines.mean().item(), abs=1e-5), to
        assert figure["min"] == pytest.approx(cosines.min().item(), abs=1e-4), to
        assert figure["min_line"] == cosines.argmin() + 1
        assert figure["error"] == pytest.approx(cosines.std().item() / math.sqrt(20), rel=1e-2)
        layers = [layer["name"] for layer in figures["layers"]]
        assert layers == ["embeddings.word_embeddings", *(f"encoder.layer.{i}" for i in range(6))]
    table = printed(source, directories["nf4"], "--text", text, run=process)
    assert "encoder.layer.5" in table and "cosine mean" in table


@pytest.mark.parametrize("arguments", [[], ["REF"], ["REF", "REF"], ["REF", "REF", "--text"],
                                       ["REF", "REF", "--text", "TEXT", "--context", "7"],
                                       ["REF", "REF", "--text", "TEXT", "--batch", "x"],
                                       ["REF", "REF", "--text", "TEXT", "--surprise"],
                                       ["REF", "REF", "--text", "TEXT", "--device", "cuda"]])  # fmt: skip
def test_usage(llama, arguments):
    fails(2, *[{"REF": llama, "TEXT": TEXT}.get(a, a) for a in arguments])


def test_the_exit_code_of_the_command(llama, tmp_path):
    assert fails(2, llama, run=process) == "the following arguments are required: TEST, --text"
    assert fails(3, llama, tmp_path, "--text", TEXT, run=process)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package(llama, tmp_path, package):
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\")\n")
    paths = f"{tmp_path}:{ROOT / 'python'}"
    run = functools.partial(process, environment={"PYTHONPATH": paths})
    message = fails(2, llama, llama, "--text", TEXT, run=run)
    assert message == ("nibble.evaluate needs the Python packages torch and transformers (and bitsandbytes for what is "
                       f"quantized): No module named '{package}'")  # fmt: skip
    assert "--layer-batches" in printed("--help", run=run)
