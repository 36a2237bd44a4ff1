"""A value projection's input is what its products become in attention: A x, with the probabilities A of each head."""

import gc
import weakref

import pytest
import tiny
import torch
import transformers
from nibble.calibrate.attention import Probabilities, ScaledDotProduct, is_value
from nibble.calibrate.inputs import Inputs, Memory
from nibble.calibrate.products import Products, Weights
from torch.nn import functional

HEADS, SHARED_HEADS, TOKENS, WIDTH = 4, 2, 7, 3
MODULES = {
    "Llama": ("model.layers.{}.self_attn", "v_proj"),  # shared heads
    "Qwen3Moe": ("model.layers.{}.self_attn", "v_proj"),
    "Gemma3": ("model.layers.{}.self_attn", "v_proj"),  # a mask of a sliding window
    "GptOss": ("model.layers.{}.self_attn", "v_proj"),  # a product with probabilities, whose sums are not 1
    "OPT": ("model.decoder.layers.{}.self_attn", "v_proj"),
    "Bert": ("encoder.layer.{}.attention.self", "value"),  # attends to all tokens
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def attended(directory, name, sequences):
    """{weight of a value projection: A x in fp64 [tokens, columns]}, with the probabilities that the model returns."""
    auto = transformers.AutoModel if name == "Bert" else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(directory, attn_implementation="eager").eval()
    module, value = MODULES[name]
    inputs, found = {}, {}

    def keep_input(weight, x):
        inputs[weight] = x[0].double()

    def add_rows(weight, probabilities):
        rows = found.setdefault(weight, [])
        (heads,) = probabilities.double()
        rows.append(torch.stack([heads[(i + len(rows)) % len(heads), i] @ inputs[weight]
                                 for i in range(heads.shape[1])]))  # fmt: skip

    for layer in range(3):
        self_attention = model.get_submodule(module.format(layer))
        weight = f"{module.format(layer)}.{value}.weight"
        getattr(self_attention, value).register_forward_pre_hook(
            lambda _, args, weight=weight: keep_input(weight, args[0])
        )
        self_attention.register_forward_hook(lambda _, args, output, weight=weight: add_rows(weight, output[1]))
    with torch.no_grad():
        for tokens in sequences:
            model(torch.tensor([tokens]))
    return {weight: torch.cat(rows) for weight, rows in found.items()}


@pytest.mark.parametrize("name", MODULES)
def test_value_projections_of_models(name, tmp_path):
    model, text = tiny.save(tmp_path / "model", name), tiny.write(tmp_path / "text")
    found = tiny.calibrated(model, text, tmp_path / "out", "--second-moments", "--batch", 3)
    expected = attended(model, name, sorted(tiny.items_of(name, text), key=len))  # as they run
    assert {weight for weight, (x, *_) in found.weights.items() if x and x.endswith(".attended")} == set(expected)
    for weight, x in expected.items():
        input = weight.removesuffix(".weight") + ".attended"
        assert found.weights[weight] == [input]
        # Activations differ by fp32's rounding, added up in three layers; the probabilities are torch's other ones.
        tiny.check_statistics(found, input, x, 1e-4)


def test_a_fused_projection_keeps_its_plain_input(tmp_path):
    model = tiny.save(tmp_path / "model", "GPT2")
    found = tiny.calibrated(model, tiny.write(tmp_path / "text"), tmp_path / "out", "--sequences", 2)
    assert not any("attended" in name for name in found.inputs)


def test_a_projection_that_is_fused_in_the_checkpoint_alone(tmp_path):
    """transformers splits Wqkv as it loads it. No tensor has the input of its third part."""
    if not hasattr(transformers, "NomicBertConfig"):
        pytest.skip("transformers has no NomicBERT")
    torch.manual_seed(0)
    config = transformers.NomicBertConfig(vocab_size=tiny.VOCABULARY, hidden_size=64, num_hidden_layers=2,
                                          num_attention_heads=4, intermediate_size=96)  # fmt: skip
    transformers.NomicBertModel(config).save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    found = tiny.calibrated(tmp_path / "model", tiny.write(tmp_path / "text"), tmp_path / "out", "--sequences", 2)
    assert any("Wqkv" in weight for weight in found.weights)
    assert set(found.inputs) == {input for inputs in found.weights.values() for input in inputs}


def heads_of(product, heads, repeated=1):
    value = product.unflatten(2, (heads, -1)).transpose(1, 2)
    return value if repeated == 1 else value.repeat_interleave(repeated, dim=1)


def test_what_is_a_value():
    product = torch.randn(2, TOKENS, HEADS * WIDTH)
    value = heads_of(product, HEADS)
    assert is_value(value, product) and is_value(value.contiguous(), product)
    assert is_value(heads_of(product, HEADS, 3), product)
    assert is_value(heads_of(product, 1), product)
    repeated = value.repeat(1, 3, 1, 1)  # head 0 is followed by head 1, not by itself
    changed = value.clone()
    changed[1, 2, 3, 1] += 1e-3
    for other in (repeated, changed, 2 * value, value.flip(1), value[:, :3], value[:1], value[:, :, 1:],
                  value[0], product, heads_of(product, 2 * HEADS - 2)[..., :1]):  # fmt: skip
        assert not is_value(other, product)
    for columns in (3 * WIDTH, WIDTH + 1):
        assert not is_value(value, product[..., :columns])


def operands(key_heads=HEADS):
    shape = (2, HEADS, TOKENS, WIDTH)
    return torch.randn(shape), torch.randn(2, key_heads, TOKENS, WIDTH), torch.randn(2, key_heads, TOKENS, WIDTH)


LOWER = torch.ones(TOKENS, TOKENS).tril() == 1
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "boolean mask": {"attn_mask": LOWER[None, None]},
    "added mask of each head": {"attn_mask": torch.randn(1, HEADS, TOKENS, TOKENS)},
    "mask of each sequence": {"attn_mask": torch.randn(2, 1, 1, TOKENS), "scale": 2.0},
    "shared heads": {"enable_gqa": True, "is_causal": True},
}


@pytest.mark.parametrize("case", CASES)
def test_attended_rows_are_those_of_torch(case):
    """A x of torch's function, which is given a whole identity as the value, so that it returns A."""
    options = CASES[case]
    query, key, value = operands(SHARED_HEADS if "enable_gqa" in options else HEADS)
    identity = torch.eye(TOKENS).expand(*value.shape[:2], -1, -1)
    probabilities = functional.scaled_dot_product_attention(query, key, identity, **options)
    x, rows = torch.randn(TOKENS, 5), torch.tensor([1, 2, 6])
    attention = ScaledDotProduct(query, key, value, **options)
    assert attention.heads == HEADS and attention.fits(2, TOKENS)
    for sequence in range(2):
        for head in range(HEADS):
            expected = probabilities[sequence, head, rows] @ x
            torch.testing.assert_close(attention.attended(sequence, head, rows, x), expected)
            found = Probabilities(probabilities, value).attended(sequence, head, rows, x)
            torch.testing.assert_close(found, expected)


def test_rows_are_fp32():
    """Of bf16 operands, too: the probabilities of many tokens would be rounded to 8 bits."""
    query, key, value = (operand.bfloat16() for operand in operands())
    x, rows = torch.randn(TOKENS, 5), torch.arange(TOKENS)
    mask = torch.randn(1, 1, TOKENS, TOKENS).bfloat16()
    found = ScaledDotProduct(query, key, value, mask).attended(1, 2, rows, x)
    exact = ScaledDotProduct(query.float(), key.float(), value.float(), mask.float()).attended(1, 2, rows, x)
    assert found.dtype == torch.float32 and torch.equal(found, exact)
    probabilities = torch.rand(2, HEADS, TOKENS, TOKENS).bfloat16()
    found = Probabilities(probabilities, value).attended(1, 2, rows, x)
    assert torch.equal(found, probabilities[1, 2].float() @ x)


def test_attended_rows_of_bf16_are_not_rounded():
    module, x, rows = Module(dtype=torch.bfloat16), X.bfloat16(), []
    with module.products:
        query, key, value = module.heads(x)
        functional.scaled_dot_product_attention(query, key, value)
    attention = ScaledDotProduct(query, key, value)
    for sequence in range(2):
        for i in range(TOKENS):
            rows.append(attended_row(attention, sequence, i, x))
    found = module.inputs.finish()["v.attended"][2]["mean_square"]
    torch.testing.assert_close(found, torch.cat(rows).square().mean(0), rtol=1e-5, atol=0)


def attended_row(attention, sequence, i, x):
    return attention.attended(sequence, (i + sequence) % HEADS, torch.tensor([i]), x[sequence].float())


def test_what_attends_to_other_tokens():
    query, key, value = operands()
    assert not ScaledDotProduct(query[:, :, :1], key, value).fits(2, TOKENS)  # one new token beside a cache
    assert not ScaledDotProduct(query, key[:, :, 1:], value).fits(2, TOKENS)
    assert not ScaledDotProduct(query[0, 0], key, value).fits(2, TOKENS)
    probabilities = torch.randn(2, HEADS, TOKENS, TOKENS)
    assert Probabilities(probabilities, value).fits(2, TOKENS)
    assert not Probabilities(probabilities[:, :, :1], value).fits(2, TOKENS)
    assert not Probabilities(probabilities[0], value[0]).fits(2, TOKENS)


class Module:
    """One attention, as models call it."""

    def __init__(self, candidates=("q.weight", "k.weight", "v.weight"), dtype=torch.float32):
        self.inputs = Inputs(False, Memory())
        self.weights = {f"{name}.weight": torch.randn(HEADS * WIDTH, 8, dtype=dtype) for name in "qkv"}
        self.products = Products(Weights(list(self.weights.items())), self.inputs, candidates)

    def heads(self, x):
        """Query, key and value."""
        return [heads_of(functional.linear(x, weight), HEADS) for weight in self.weights.values()]

    def __call__(self, x, change=lambda value: value):
        """change(value) is what attention is given."""
        self.products.begin_call()
        with self.products:
            query, key, value = self.heads(x)
            return functional.scaled_dot_product_attention(query, key, change(value), is_causal=True)


X = torch.randn(2, TOKENS, 8, generator=torch.Generator().manual_seed(0))


def test_the_input_of_a_value_alone_is_replaced():
    module = Module()
    module(X)
    found = module.inputs.finish()
    assert module.inputs.of_weight == {"q.weight": "q.weight", "k.weight": "q.weight", "v.weight": "v.attended"}
    assert {name: tokens for name, (_, tokens, _) in found.items()} == {"q.weight": 14, "v.attended": 14}
    expected = X.square().mean((0, 1))
    torch.testing.assert_close(found["q.weight"][2]["mean_square"], expected)
    assert not torch.allclose(found["v.attended"][2]["mean_square"], expected)


def test_a_plain_input_that_no_weight_has_is_left_out():
    inputs = Inputs(False, Memory())
    inputs.add("v.weight", X)
    inputs.add_attended("v.weight", 2 * X.flatten(0, 1))
    found = inputs.finish()
    assert set(found) == {"v.attended"} and inputs.of_weight == {"v.weight": "v.attended"}


def test_a_value_that_is_not_seen_in_every_pass_keeps_its_plain_input():
    module = Module()
    module(X)
    module(X + 1, lambda value: value / value.norm(dim=-1, keepdim=True))
    assert set(module.inputs.finish()) == {"q.weight"} and module.inputs.of_weight["v.weight"] == "q.weight"


def test_an_attention_of_the_last_token_alone():
    module = Module()
    with module.products:
        query, key, value = module.heads(X)
        functional.scaled_dot_product_attention(query[:, :, -1:], key, value)
    assert set(module.inputs.finish()) == {"q.weight"}


def test_an_input_that_changed_before_the_attention():
    module, x = Module(), X.clone()
    with module.products:
        query, key, value = module.heads(x)
        x += 1
        functional.scaled_dot_product_attention(query, key, value)
    assert set(module.inputs.finish()) == {"q.weight"}


def test_a_value_that_changed_before_the_attention():
    module = Module()
    module(X, lambda value: value.mul_(2))
    assert set(module.inputs.finish()) == {"q.weight"}


def test_products_that_are_no_sequences():
    """Those of poolers, for instance: one row for each sequence, here with as many columns as there are tokens."""
    weight, inputs = torch.randn(TOKENS, 8), Inputs(False, Memory())
    with Products(Weights([("pooler.weight", weight)]), inputs, {"pooler.weight"}):
        functional.linear(X[:, 0], weight)
        functional.scaled_dot_product_attention(*operands())
    assert set(inputs.finish()) == {"pooler.weight"}


def held(run):
    """Whether a product is still there after run(module, product)."""
    module = Module()
    with module.products:
        product = functional.linear(X, module.weights["q.weight"])
        gone = weakref.ref(product)
        run(module, product)
        del product
        gc.collect()
        return gone() is not None


def test_how_long_products_are_held():
    """What is after the last attention, such as logits, is not held until the next one."""
    assert held(lambda module, product: None)
    assert not held(lambda module, product: module.products.begin_call())
    assert not held(lambda module, product: functional.scaled_dot_product_attention(*operands()))
    assert held(lambda module, product: [functional.linear(X, module.weights["k.weight"]) for _ in range(7)])
    assert not held(lambda module, product: [functional.linear(X, module.weights["k.weight"]) for _ in range(8)])
    module = Module()
    with module.products:
        product = functional.linear(X, module.weights["q.weight"])
    gone = weakref.ref(product)
    del product
    gc.collect()
    assert gone() is None


def test_a_product_is_the_value_of_one_attention():
    module = Module()
    with module.products:
        query, key, value = module.heads(X)
        for _ in range(2):
            functional.scaled_dot_product_attention(query, key, value)
    module.inputs.finish()
    assert module.inputs.of_weight["v.weight"] == "v.attended" and module.inputs.of_weight["k.weight"] == "q.weight"


def test_equal_products():
    """Nothing says which of them is the value."""
    module = Module()
    module.weights["k.weight"].copy_(module.weights["v.weight"])
    with module.products:
        functional.scaled_dot_product_attention(*module.heads(X))
    assert set(module.inputs.finish()) == {"q.weight"}


def test_only_candidates_are_value_projections():
    module = Module(candidates=("q.weight", "k.weight"))
    module(X)
    assert set(module.inputs.finish()) == {"q.weight"}


@pytest.mark.parametrize("sizes", [[1] * 6, [4, 2]])
def test_the_head_of_each_row(sizes):
    """It depends on how often a projection has run in the pass, as ALBERT's do, and not on the size of the batches."""
    module, rows = Module(), []
    x = torch.randn(6, TOKENS, 8)
    for part in x.split(sizes):
        module.products.begin_call()
        with module.products:
            for _ in range(2):
                functional.scaled_dot_product_attention(*module.heads(part))
    attention = ScaledDotProduct(*module.heads(x))
    for sequence in range(6):
        for run in range(2):
            for i in range(TOKENS):
                head, row = (i + sequence + run) % HEADS, torch.tensor([i])
                rows.append(attention.attended(sequence, head, row, x[sequence]))
    _, tokens, found = module.inputs.finish()["v.attended"]
    assert tokens == len(rows)
    torch.testing.assert_close(found["mean_square"], torch.cat(rows).square().mean(0))


def test_arguments_of_a_later_torch():
    """What they mean is not known, so the attention is not looked at."""
    tensors = Module().heads(X)
    assert ScaledDotProduct.of(*tensors, dropout_p=0.0, scale=0.5).scale == 0.5
    assert ScaledDotProduct.of(*tensors, None, 0.0, False).is_causal is False
    assert ScaledDotProduct.of(*tensors, window=3) is None
    assert ScaledDotProduct.of(*tensors, None, 0.0, False, None, False, 3) is None


def test_an_attention_that_is_not_known_takes_the_products(monkeypatch):
    """Otherwise, rows of the next one with the same values would pass for all of the projection's."""
    module, known, calls = Module(), ScaledDotProduct.of, []

    def only_the_second(*args):
        calls.append(args)
        return known(*args) if len(calls) == 2 else None

    monkeypatch.setattr(ScaledDotProduct, "of", only_the_second)
    with module.products:
        heads = module.heads(X)
        for _ in range(2):
            functional.scaled_dot_product_attention(*heads)
    assert len(calls) == 2
    assert "v.attended" not in module.inputs.finish()


def test_products_that_no_attention_could_have():
    """They are left to torch."""
    module, x = Module(), torch.randn(5, 4)
    with module.products:
        functional.linear(X, module.weights["v.weight"])
        torch.addmm(torch.ones(3), mat1=x, mat2=torch.randn(4, 3))
        torch.matmul(torch.rand(2, HEADS, TOKENS, TOKENS), torch.ones(2, HEADS, TOKENS, 0))
        torch.matmul(torch.rand(2, 0, TOKENS, TOKENS), torch.ones(2, 0, TOKENS, WIDTH))
        torch.matmul(*(torch.ones(2, HEADS, TOKENS, n, device="meta") for n in (TOKENS, WIDTH)))
    assert set(module.inputs.finish()) == {"v.weight"}
