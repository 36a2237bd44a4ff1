"""peft's adapters over nibble's layers: found as linear layers, trained, saved and loaded; merging is refused."""

import collections

import pytest
import torch
from nibble.nn import Linear4bit, LinearInt8, QuantizedWeight, Weight4bit

peft = pytest.importorskip("peft")

KINDS = {"nf4": Linear4bit.from_linear, "int8": LinearInt8.from_linear}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Model(torch.nn.Module):
    def __init__(self, kind, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.up = KINDS[kind](torch.nn.Linear(32, 64, dtype=dtype))
        self.down = KINDS[kind](torch.nn.Linear(64, 32, dtype=dtype))

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Plain(torch.nn.Module):
    """The same model with dequantized weights."""

    def __init__(self, quantized):
        super().__init__()
        for name in ("up", "down"):
            layer = getattr(quantized, name)
            plain = torch.nn.Linear(layer.in_features, layer.out_features)
            plain.weight.data, plain.bias.data = layer.dequantize(), layer.bias.data
            setattr(self, name, plain)

    forward = Model.forward


def adapted(model, **options):
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["up", "down"], init_lora_weights=False, **options)
    return peft.get_peft_model(model, config)


def train(model, steps=2):
    """The losses, and the adapter after the steps."""
    generator = torch.Generator().manual_seed(2)
    x, target = torch.randn(16, 32, generator=generator), torch.randn(16, 32, generator=generator)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(steps):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


@every_kind
@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}], ids=["lora", "dora", "rslora"])
def test_training_is_that_of_the_dequantized_model(kind, options):
    base = Model(kind)
    codes = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    losses, adapter = train(adapted(base, **options))
    expected, adapter_of_plain = train(adapted(Plain(Model(kind)), **options))
    assert losses == pytest.approx(expected, rel=1e-5) and losses[1] < losses[0]
    assert set(adapter) == set(adapter_of_plain) and all(".lora_" in name for name in adapter)
    for name, tensor in adapter.items():
        torch.testing.assert_close(tensor, adapter_of_plain[name])
    after = {name.replace(".base_layer", ""): tensor for name, tensor in base.state_dict().items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in codes.items())


@every_kind
@pytest.mark.parametrize("use_dora", [False, True])
def test_in_16_bits_with_checkpointing(kind, use_dora):
    model = adapted(Model(kind, torch.bfloat16), use_dora=use_dora)
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@every_kind
def test_an_adapter_is_saved_and_loaded(kind, tmp_path):
    model, x = adapted(Model(kind)), torch.randn(4, 32)
    train(model)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(Model(kind), tmp_path)
    assert torch.equal(loaded(x), model(x)) and not torch.equal(loaded(x), Model(kind)(x))


@every_kind
@pytest.mark.parametrize("safe_merge", [False, True])
def test_merging_is_refused(kind, safe_merge):
    model = adapted(Model(kind))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        NotImplementedError, match=r"^Linear\w+ \[(64, 32|32, 64)\]: its weight is quantized, and an adapter"
    ):
        model.merge_and_unload(safe_merge=safe_merge)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_merging_into_quantized_embeddings_is_refused():
    model = torch.nn.Sequential(collections.OrderedDict(embed=torch.nn.Embedding(8, 64)))
    weight = Weight4bit.from_linear(torch.nn.Linear(64, 8, bias=False))
    del model.embed.weight
    model.embed.weight = QuantizedWeight([weight], torch.float32)
    config = peft.LoraConfig(r=4, target_modules=["embed"], init_lora_weights=False)
    model = peft.get_peft_model(model, config)
    ids = torch.tensor([[1, 7]])
    y = model(ids)
    assert y.requires_grad and not torch.equal(y, weight.dequantize()[ids])
    with pytest.raises(
        NotImplementedError, match=r"^Embedding \[8, 64\]: its weight is quantized, and an adapter cannot be"
    ):
        model.merge_and_unload()


def test_all_linear_layers_are_not_the_parts_of_a_quantized_weight():
    model = torch.nn.Sequential(collections.OrderedDict(embed=torch.nn.Embedding(8, 64), up=torch.nn.Linear(64, 4)))
    del model.embed.weight
    model.embed.weight = QuantizedWeight([Weight4bit.from_linear(torch.nn.Linear(64, 8, bias=False))], torch.float32)
    model.up = Linear4bit.from_linear(model.up)
    names = {type(m) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    assert names == {Linear4bit}
