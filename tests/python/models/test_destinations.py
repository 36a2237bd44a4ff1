"""Which merges of a checkpoint's weights into one parameter are possible with quantized weights."""

import pytest
import torch
from nibble.models.destinations import Destination, Unplaceable, destination_finder

mapping = pytest.importorskip("transformers.conversion_mapping")
loading = pytest.importorskip("transformers.core_model_loading")


class Model(torch.nn.Module):
    base_model_prefix = "model"

    def __init__(self, name, *shape):
        super().__init__()
        parent = torch.nn.Module()
        parent.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device="meta")))
        self.block = parent


def destinations(monkeypatch, model, names, *steps):
    monkeypatch.setattr(mapping, "get_model_conversion_mapping", lambda model: list(steps))
    find = destination_finder(model)
    return {name: find(name) for name in names}


def test_merges_of_other_weights_than_those_of_experts_are_refused(monkeypatch):
    merge = loading.WeightConverter(["q.weight", "k.weight"], "qk", [loading.Concatenate(dim=0)])
    with pytest.raises(Unplaceable) as raised:
        destinations(monkeypatch, Model("qk", 8, 4), ["block.q.weight", "block.k.weight"], merge)
    assert str(raised.value) == (
        "tensor 'block.q.weight': transformers makes 'block.qk' of it by Concatenate, which is not possible with "
        "quantized weights"
    )


def test_merges_of_experts_by_other_operations_are_refused(monkeypatch):
    operations = [loading.MergeModulelist(dim=0), loading.Transpose(1, 2)]
    merge = loading.WeightConverter("experts.*.up.weight", "up", operations)
    with pytest.raises(
        Unplaceable, match="makes 'block.up' of it by MergeModulelist, Transpose, which is not possible"
    ):
        destinations(monkeypatch, Model("up", 2, 8, 4), ["block.experts.0.up.weight"], merge)


def test_merges_of_experts_by_rows(monkeypatch):
    operations = [loading.MergeModulelist(dim=0), loading.Concatenate(dim=1)]
    merge = loading.WeightConverter(["experts.*.gate.weight", "experts.*.up.weight"], "gate_up", operations)
    names = ["block.experts.1.gate.weight", "block.experts.1.up.weight"]
    found = destinations(monkeypatch, Model("gate_up", 2, 8, 4), names, merge)
    assert found == {
        names[0]: Destination("block", "gate_up", 1, 0),
        names[1]: Destination("block", "gate_up", 1, 1),
    }


def test_experts_whose_parameter_is_renamed(monkeypatch):
    """The pieces are named after the parameter's name in the checkpoint, not in the model."""
    rename = loading.WeightRenaming(r"input_linear\.weight", "gate_up")
    names = [f"block.input_linear.{expert}.weight.weight" for expert in range(2)]
    found = destinations(monkeypatch, Model("gate_up", 2, 8, 4), names, rename)
    assert found == {name: Destination("block", "gate_up", expert) for expert, name in enumerate(names)}


def test_names_that_a_renaming_leads_away_from_the_model(monkeypatch):
    rename = loading.WeightRenaming("gate_up", "absent")
    found = destinations(monkeypatch, Model("gate_up", 2, 8, 4), ["block.1.gate_up.weight"], rename)
    assert found == {"block.1.gate_up.weight": Destination("block", "gate_up", 1)}
    assert destinations(monkeypatch, Model("gate_up", 8, 4), ["block.gate_up"], rename) == {
        "block.gate_up": Destination("block", "gate_up")
    }


def test_experts_in_a_block_that_is_renamed(monkeypatch):
    rename = loading.WeightRenaming("^layer", "block")
    found = destinations(monkeypatch, Model("gate_up", 2, 8, 4), ["layer.1.gate_up.weight"], rename)
    assert found == {"layer.1.gate_up.weight": Destination("block", "gate_up", 1)}


def test_renamed_weights(monkeypatch):
    rename = loading.WeightRenaming("old", "new")
    found = destinations(monkeypatch, Model("new", 8, 4), ["block.old", "model.block.old"], rename)
    assert set(found.values()) == {Destination("block", "new")}
