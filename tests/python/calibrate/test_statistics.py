"""python -m nibble.calibrate writes what hooks see: of linear layers, Conv1D, fused experts and encoders."""

import json

import numpy as np
import pytest
import tiny
import torch
from nibble.calibrate import job, loading
from nibble.calibrate.inputs import Inputs, Memory, Statistics
from nibble.model_directory import BadInput

EPSILON = 2.0**-24  # of a rounded fp32


@pytest.fixture(scope="module", params=["Llama", "Qwen3Moe", "GPT2", "Bert"])
def calibrated(request, tmp_path_factory):
    """(name, directory of the model, text, statistics with second moments)"""
    folder = tmp_path_factory.mktemp(request.param)
    model, text = tiny.save(folder / "model", request.param), tiny.write(folder / "text")
    return request.param, model, text, tiny.calibrated(model, text, folder / "out", "--second-moments")


def test_all_inputs(calibrated):
    name, model, text, found = calibrated
    hooked = tiny.expected(model, tiny.items_of(name, text))
    of_weight = {weight: inputs[0] for weight, inputs in found.weights.items() if len(inputs) == 1}
    seen = {weight: input for weight, input in of_weight.items() if input.endswith(".attended")}  # test_attention.py
    for module, x in hooked.items():
        layer, _, expert = module.rpartition(".")
        if ".experts." in module:
            parts = ("gate_proj", "up_proj") if "gate_up" in module else ("down_proj",)
            weights = [f"{layer.rpartition('.')[0]}.{expert}.{part}.weight" for part in parts]
        else:
            tied = (name, module) == ("GPT2", "lm_head")
            weights = ["transformer.wte.weight" if tied else f"{module}.weight"]
        for weight in set(weights) - set(seen):
            # Rows of one chunk are at most 80: so many roundings, each of half a unit. Sums are in fp64.
            tiny.check_statistics(found, of_weight[weight], x, 80 * EPSILON)
            seen[weight] = of_weight[weight]
    assert seen == of_weight and set(seen.values()) == set(found.inputs)


SHARED = {
    "Llama": [("self_attn.q_proj", "self_attn.k_proj"), ("mlp.gate_proj", "mlp.up_proj")],
    "Qwen3Moe": [("self_attn.q_proj", "self_attn.k_proj"), ("mlp.experts.5.gate_proj", "mlp.experts.5.up_proj")],
    "GPT2": [],
    "Bert": [("attention.self.query", "attention.self.key")],
}  # fmt: skip
LAYERS = {"GPT2": "transformer.h", "Bert": "encoder.layer"}


def test_what_shares_an_input(calibrated):
    name, _, _, found = calibrated
    count = {"Llama": 5 * 3 + 1, "Qwen3Moe": (3 + 1 + 16) * 3 + 1, "GPT2": 4 * 3 + 1, "Bert": 5 * 3 + 1}[name]
    assert len(found.inputs) == count
    for layer in range(3):
        for group in SHARED[name]:
            prefix = f"{LAYERS.get(name, 'model.layers')}.{layer}"
            inputs = {tuple(found.weights[f"{prefix}.{member}.weight"]) for member in group}
            assert len(inputs) == 1, (group, inputs)


def test_a_batch_of_four(calibrated, tmp_path):
    """The same tokens, in products of other shapes: activations differ by fp32's rounding, added up in three layers.
    Lines of an encoder have many lengths, and none is padded: padding would change the counts."""
    name, model, text, one = calibrated
    four = tiny.calibrated(model, text, tmp_path / "out", "--second-moments", "--batch", 4)
    assert four.inputs == one.inputs and four.weights == one.weights
    for input in one.inputs:
        x, y = one.mean_square(input), four.mean_square(input)
        np.testing.assert_allclose(x, y, rtol=1e-4)
        np.testing.assert_allclose(one.absmax(input), four.absmax(input), rtol=1e-4)
        scale = np.sqrt(np.outer(x, x))
        assert (np.abs(one.second_moment(input) - four.second_moment(input)) <= 1e-4 * scale).all()
    if name == "Bert":
        tokens = sum(map(len, tiny.items_of(name, text)))
        assert max(input.tokens for input in four.inputs.values()) == tokens
        assert four.inputs["pooler.dense"].tokens == len(tiny.items_of(name, text))  # the first token of each line


def test_columns_alone(calibrated, tmp_path):
    """Without second moments: the same columns, summed in other chunks, and no matrix."""
    _, model, text, full = calibrated
    found = tiny.calibrated(model, text, tmp_path / "out")
    assert not found.second_moments and found.inputs == full.inputs and found.weights == full.weights
    for input in full.inputs.values():
        np.testing.assert_allclose(found.mean_square(input.name), full.mean_square(input.name), rtol=2 * EPSILON)
        assert np.array_equal(found.absmax(input.name), full.absmax(input.name))
        assert f"{input.name}.second_moment" not in found._files[input.file]


def test_the_same_bytes_again(calibrated, tmp_path):
    _, model, text, found = calibrated
    tiny.calibrated(model, text, tmp_path / "out", "--second-moments")
    assert tiny.files(tmp_path / "out") == tiny.files(found.path)


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_layers_loaded_one_at_a_time(name, tmp_path, monkeypatch):
    """The same bytes, though no two layers are in memory."""
    model, text, loaded = tiny.save(tmp_path / "model", name), tiny.write(tmp_path / "text"), []
    tiny.calibrated(model, text, tmp_path / "whole", "--second-moments", "--sequences", 6)

    def load_layer(self, index, original=loading.Model.load_layer):
        original(self, index)
        loaded.append([not any(p.is_meta for p in layer.parameters()) for layer in self.layers])

    monkeypatch.setattr(loading.Model, "load_layer", load_layer)
    tiny.calibrated(model, text, tmp_path / "by-layer", "--second-moments", "--sequences", 6, "--layer-by-layer")
    assert loaded == [[i == j for j in range(3)] for i in range(3)]
    assert tiny.files(tmp_path / "whole") == tiny.files(tmp_path / "by-layer")


@pytest.mark.parametrize("free, by_layer", [(1.1, True), (1.4, False)])
def test_layers_are_loaded_one_at_a_time_where_memory_is_short(free, by_layer, tmp_path, monkeypatch):
    model, text, made = tiny.save(tmp_path / "model", "Llama"), tiny.write(tmp_path / "text"), []
    size = (model / "model.safetensors").stat().st_size

    def make(*arguments):
        made.append(arguments[-1])
        return loading.Model(*arguments)

    monkeypatch.setattr(job, "free_memory", lambda device: free * size)
    monkeypatch.setattr(job, "Model", make)
    tiny.calibrated(model, text, tmp_path / "out", "--sequences", 2)
    assert made == [by_layer]


def test_bf16(tmp_path):
    """Hidden states are kept in the model's type between the layers."""
    model, text = tiny.save(tmp_path / "model", "Llama", torch.bfloat16), tiny.write(tmp_path / "text")
    found = tiny.calibrated(model, text, tmp_path / "out", "--second-moments")
    for module, x in tiny.expected(model, tiny.items_of("Llama", text), dtype=torch.bfloat16).items():
        input = found.weights[f"{module}.weight"][0]
        if not input.endswith(".attended"):
            tiny.check_statistics(found, input, x, 64 * EPSILON)


def test_tied_embeddings(tmp_path):
    """The checkpoint has one tensor, by the name of the embeddings."""
    model = tiny.save(tmp_path / "model", "Llama", tie_word_embeddings=True)
    found = tiny.calibrated(model, tiny.write(tmp_path / "text"), tmp_path / "out", "--sequences", 2)
    inputs = found.weights["model.embed_tokens.weight"]
    assert "lm_head.weight" not in found.weights and found.inputs[inputs[0]].file == "after.safetensors"


def test_names_with_the_prefix_of_another_class(tmp_path):
    """BertForMaskedLM's checkpoint has `bert.` before what BertModel calls its tensors."""
    import transformers

    model = tmp_path / "model"
    torch.manual_seed(0)
    transformers.BertForMaskedLM(tiny.CONFIGS["Bert"]).save_pretrained(model)
    tiny.tokenizer().save_pretrained(model)
    found = tiny.calibrated(model, tiny.write(tmp_path / "text"), tmp_path / "out", "--sequences", 2)
    assert found.weights["bert.encoder.layer.2.attention.self.key.weight"] == ["encoder.layer.2.attention.self.query"]


def test_experts_that_no_token_reaches(tmp_path):
    text = tiny.write(tmp_path / "text")
    few = ("--sequences", 1, "--sequence-length", 2)
    found = tiny.calibrated(tiny.save(tmp_path / "qwen", "Qwen3Moe"), text, tmp_path / "a", *few)
    experts = [name for name in found.weights if "layers.0.mlp.experts" in name and "down_proj" in name]
    assert 2 <= len(experts) <= 4  # two tokens, each of which chooses two of the eight
    found = tiny.calibrated(tiny.save(tmp_path / "oss", "GptOss"), text, tmp_path / "b", "--sequences", 1,
                            "--sequence-length", 1)  # fmt: skip
    name = "model.layers.1.mlp.experts.gate_up_proj"  # fused in the checkpoint, too
    experts = found.weights[name]
    assert len(experts) == 4 and experts.count(None) == 2
    assert all(item in (None, f"{name}.{i}") for i, item in enumerate(experts))


def test_a_product_before_the_layers(tmp_path):
    """OPT with narrow embeddings widens them. What is after the layers runs with what is before them once more, which
    counts once."""
    model, text = tiny.save(tmp_path / "model", "OPT"), tiny.write(tmp_path / "text")
    found = tiny.calibrated(model, text, tmp_path / "out", "--sequences", 2)
    before, after = (found.inputs[f"model.decoder.project_{way}"] for way in ("in", "out"))
    assert (before.tokens, before.file, before.columns) == (96, "before.safetensors", 32)
    assert (after.tokens, after.file, after.columns) == (96, "after.safetensors", 64)


def test_a_model_without_a_list_of_layers(tmp_path):
    """ALBERT runs one layer three times: all of it is one stage, and each pass through the layer counts."""
    import transformers

    model, text = tmp_path / "model", tiny.write(tmp_path / "text")
    config = transformers.AlbertConfig(
        vocab_size=tiny.VOCABULARY, embedding_size=32, hidden_size=64, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=48,
    )  # fmt: skip
    transformers.AlbertModel(config).save_pretrained(model)
    tiny.tokenizer().save_pretrained(model)
    found = tiny.calibrated(model, text, tmp_path / "out", "--sequences", 3)
    tokens = sum(map(len, tiny.items_of("Bert", text)[:3]))
    layer = "encoder.albert_layer_groups.0.albert_layers.0"
    assert found.inputs[f"{layer}.ffn"].tokens == 3 * tokens
    assert found.inputs["encoder.embedding_hidden_mapping_in"].tokens == tokens
    assert {input.file for input in found.inputs.values()} == {"whole.safetensors"}
    assert found.weights[f"{layer}.attention.key.weight"] == [f"{layer}.attention.query"]
    line = tiny.fails(3, model, "--text", text, "--out", tmp_path / "b", "--layer-by-layer")
    assert line == f"{model}: has no list of layers that could be loaded one at a time"


def test_what_the_manifest_says(calibrated):
    name, model, text, found = calibrated
    items = tiny.items_of(name, text)
    said = found.manifest["text"]
    assert (said["sequences"], said["tokens"], said["sequence_length"]) == (len(items), sum(map(len, items)), 48)
    assert set(found.manifest["model"]["files"]) == {"config.json", "model.safetensors"}
    assert str(model.parent) not in json.dumps(found.manifest)


def test_the_limit_of_sequences(tmp_path):
    model, text = tiny.save(tmp_path / "model", "Llama"), tiny.write(tmp_path / "text")
    figures = tiny.summary(model, text, tmp_path / "a", "--sequences", 3, "--sequence-length", 20)
    assert (figures["sequences"], figures["tokens"], figures["fewest_tokens"]) == (3, 60, 60)
    assert (figures["weights"], figures["inputs"], figures["second_moments"]) == (22, 16, False)


def pieces(x, sizes):
    return torch.split(x, [*sizes, len(x) - sum(sizes)])


@pytest.mark.parametrize("second_moments", [False, True])
def test_sums_do_not_depend_on_how_tokens_come(second_moments):
    x = torch.randn(3000, 96, generator=torch.Generator().manual_seed(0))
    found = []
    for sizes in ([], [1] * 50, [95, 1, 2, 96], [1024, 1024], [0, 2999]):
        statistics = Statistics("x", x, second_moments, Memory())
        for piece in pieces(x, sizes):
            statistics.add(piece)
        assert statistics.tokens == 3000
        found.append(statistics.finish())
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in found[0])


def test_sums_are_fp64():
    """Four thousand chunks of 1 after one of 1e4^2: in fp32, most of them would be lost."""
    x = torch.ones(64 * 4000, 1)
    x[0] = 1e6
    statistics = Statistics("x", x, False, Memory())
    statistics.add(x)
    assert statistics.finish()["mean_square"].item() == pytest.approx((1e12 + len(x) - 1) / len(x), rel=1e-7)


def test_squares_are_fp64():
    """Rounded once, at the end: squares in fp32 would change the last bit of many columns."""
    x = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0))
    statistics = Statistics("x", x, False, Memory())
    statistics.add(x)
    assert torch.equal(statistics.finish()["mean_square"], x.double().square().mean(0).float())


def test_an_input_is_shared_only_by_those_that_get_it_in_every_pass():
    inputs, x, y = Inputs(False, Memory()), torch.ones(2, 4), torch.ones(2, 4)
    for weight, given in (("a", x), ("b", x), ("c", y), ("d", x.view(1, 2, 4)), ("e", x[:1])):
        inputs.add(weight, given)
    inputs.begin_call()
    inputs.add("f", x)  # has not been there before, so it does not join `a`, nor does `a` join it
    inputs.add("a", x)
    inputs.add("b", x)
    inputs.begin_call()
    inputs.add("a", x)
    inputs.add("g", x)
    assert inputs.of_weight == {"a": "a", "b": "a", "c": "c", "d": "a", "e": "e", "f": "f", "g": "g"}


@pytest.mark.parametrize("second", [[("b", 0)], [("a", 0)], [("a", 0), ("b", 1)]])
def test_an_input_that_is_not_always_shared(second):
    inputs, x, y = Inputs(False, Memory()), torch.ones(2, 4), torch.ones(2, 4)
    inputs.add("a", x)
    inputs.add("b", x)
    inputs.begin_call()
    with pytest.raises(BadInput, match="'b' and 'a' take the same input in some passes, and different ones in others"):
        for weight, which in second:
            inputs.add(weight, (x, y)[which])
        inputs.finish()


def test_a_tensor_that_changed_in_between():
    inputs, x = Inputs(False, Memory()), torch.ones(2, 4)
    inputs.add("a", x)
    inputs.add("b", x.mul_(2))
    assert inputs.of_weight == {"a": "a", "b": "b"}


def test_memory_of_a_tensor_that_is_gone():
    """The allocator hands out the same address again."""
    inputs = Inputs(False, Memory())
    for number in range(20):
        inputs.add(str(number), torch.full((2, 4), float(number)))
    assert len(set(inputs.of_weight.values())) == 20


def test_experts_without_a_token_share_nothing():
    """All tensors without elements have the same address."""
    inputs, x, y = Inputs(False, Memory()), torch.ones(2, 4), torch.ones(3, 4)
    for expert in ("a", "b", "never"):
        inputs.add(expert, torch.ones(0, 4))
    inputs.begin_call()
    inputs.add("a", x)
    inputs.add("b", y)
    inputs.begin_call()
    inputs.add("a", torch.ones(0, 4))
    inputs.add("b", y)
    assert inputs.of_weight == {"a": "a", "b": "b"}
    assert {name: tokens for name, (_, tokens, _) in inputs.finish().items()} == {"a": 2, "b": 6}
