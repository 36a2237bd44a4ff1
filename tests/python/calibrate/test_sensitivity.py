"""python -m nibble.calibrate --sensitivities: what noise on each weight does to the output, over its relative size."""

import json

import pytest
import tiny
import torch
import transformers
from nibble.calibrate import job, sensitivity
from nibble.model_error import lines, sequences

FEW = ("--sensitivities", "--sequences", 3)


def calibrated(folder, name, *options):
    model, text = tiny.save(folder / "model", name), tiny.write(folder / "text")
    return model, text, tiny.calibrated(model, text, folder / "out", *FEW, *options)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return calibrated(tmp_path_factory.mktemp("llama"), "Llama", "--second-moments")


def with_noise(model, names, tokens, seed, output):
    """{name: (output without, output with noise of 1 % of the squares on this weight)}"""
    generator, found = torch.Generator().manual_seed(seed), {}
    with torch.no_grad():
        expected = output(model(torch.tensor([tokens])))
        for name in names:
            weight = model.get_parameter(name)
            before = weight.clone()
            weight += torch.randn(weight.shape, generator=generator) * (0.01 * weight.square().mean()).sqrt()
            found[name] = (expected, output(model(torch.tensor([tokens]))))
            weight.copy_(before)
    return found


def test_language_models(llama):
    directory, text, found = llama
    items = sequences(tiny.tokenizer(), text.read_text(), 48)[0][:3]
    model = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    assert set(found.sensitivities) == set(found.weights) == {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}  # fmt: skip
    expected = dict.fromkeys(found.weights, 0.0)
    for seed, item in enumerate(items):
        outputs = with_noise(model, found.weights, item, seed, lambda made: made.logits[0].double().softmax(-1))
        for name, (p, q) in outputs.items():
            expected[name] += (p * (p / q).log()).sum(-1).mean().item() / 3 / 0.01
    for name, value in expected.items():
        assert found.sensitivities[name] == pytest.approx(value, rel=1e-3), name
    assert found.manifest["noise"] == {"loss": "kl_divergence", "relative_squared_error": 0.01, "sequences": 3,
                                       "tokens": 144}  # fmt: skip


def test_encoders(tmp_path):
    """Noise on the pooler does not change the embeddings, which says nothing of the pooler."""
    directory, text, found = calibrated(tmp_path, "Bert")
    model = transformers.AutoModel.from_pretrained(directory).eval()
    assert set(found.weights) - set(found.sensitivities) == {"pooler.dense.weight"}
    items = sorted(lines(tiny.tokenizer(), text.read_text(), 48, text)[:3], key=len)
    expected = dict.fromkeys(found.sensitivities, 0.0)
    for seed, item in enumerate(items):
        outputs = with_noise(model, found.weights, item, seed, lambda made: made.last_hidden_state[0].double().mean(0))
        for name in expected:
            expected[name] += (1 - torch.cosine_similarity(*outputs[name], dim=0).item()) / len(items) / 0.01
    for name, value in expected.items():
        assert found.sensitivities[name] == pytest.approx(value, rel=1e-3), name
    assert found.manifest["noise"]["loss"] == "one_minus_cosine"


def test_experts_share_that_of_their_parameter(tmp_path):
    _, _, found = calibrated(tmp_path, "Qwen3Moe")
    sums = progress_sums(tmp_path / "model", tmp_path / "text", tmp_path / "sums")
    for parameter, parts, names in (("gate_up_proj", 16, ("gate_proj", "up_proj")), ("down_proj", 8, ("down_proj",))):
        values = {value for tensor, value in found.sensitivities.items()
                  if "layers.0.mlp.experts." in tensor and tensor.split(".")[-2] in names}  # fmt: skip
        assert len(values) == 1
        total = sums[f"model.layers.0.mlp.experts.{parameter}"] / 144 / 0.01
        assert values.pop() == pytest.approx(total / parts, rel=1e-12)


def progress_sums(model, text, out):
    """What a run writes before its manifest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job.Output, "complete", lambda self, manifest: None)
        tiny.inside(model, "--text", text, "--out", out, *FEW, "--overwrite")
    return json.loads((out / "progress.json").read_text())["stages"]["sensitivities"]["sums"]


def test_nothing_else_changes(llama, tmp_path):
    model, text, found = llama
    plain = tiny.calibrated(model, text, tmp_path / "out", "--second-moments", "--sequences", 3)
    assert plain.sensitivities == {}
    before, after = tiny.files(plain.path), tiny.files(found.path)
    manifests = [json.loads(files.pop("calibration.json")) for files in (before, after)]
    assert before == after
    assert manifests[0] == {key: value for key, value in manifests[1].items() if key not in ("noise", "sensitivities")}


def test_an_interrupted_run_goes_on(llama, tmp_path, monkeypatch):
    model, text, found = llama
    command = (model, "--text", text, "--out", tmp_path / "out", *FEW, "--second-moments")
    seeds = []

    def losses(*arguments, original=sensitivity.losses, stop=True):
        seeds.append(arguments[-1])
        for position, value in enumerate(original(*arguments)):
            if stop and (seeds[-1], position) == (1, 3):
                raise KeyboardInterrupt
            yield value

    with monkeypatch.context() as patch:
        patch.setattr(sensitivity, "losses", losses)
        assert "--resume goes on" in tiny.fails(130, *command)
        line = tiny.fails(6, model, "--text", text, "--out", tmp_path / "out", *FEW[1:], "--second-moments", "--resume")
        assert line == f"{tmp_path}/out: was begun with another 'noise' (--overwrite begins anew)"
        patch.setattr(sensitivity, "losses", lambda *arguments: losses(*arguments, stop=False))
        tiny.calibrated(*(command[i] for i in (0, 2, 4)), *command[5:], "--resume")
    assert seeds == [0, 1, 1, 2]
    assert tiny.files(tmp_path / "out") == tiny.files(found.path)


def test_the_model_is_left_as_it_was(llama):
    model = transformers.AutoModelForCausalLM.from_pretrained(llama[0]).eval()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        found = sensitivity.losses(model, "language model", list(model.parameters()), torch.tensor([[1, 2, 3]]), 0)
        for name, _ in zip(before, found):
            assert all(torch.equal(parameter, before[n]) for n, parameter in model.named_parameters()), name


def test_a_sample_comes_from_all_of_the_text():
    items = [[i] * 100 for i in range(1000)]
    assert [item[0] for item in sensitivity.sample(items)] == [i * 1000 // 40 for i in range(40)]
    assert sensitivity.sample(items[:7]) == items[:7]
    assert sensitivity.sample([[1] * 10_000]) == [[1] * 10_000]


def test_refusals(llama, tmp_path, monkeypatch):
    model, text, _ = llama
    command = (model, "--text", text, "--out", tmp_path / "out", *FEW)
    assert tiny.fails(2, *command, "--layer-by-layer") == (
        "--sensitivities and --layer-by-layer exclude each other: the whole model has to run")
    with monkeypatch.context() as patch:
        patch.setattr(job, "free_memory", lambda device: 100_000.0)
        line = tiny.fails(5, *command)
        assert line.startswith("not enough memory: --sensitivities needs all weights in memory: 0.00 GB, 0.00 GB")
    monkeypatch.setattr(sensitivity, "loss", lambda *_: float("nan"))
    line = tiny.fails(3, *command)
    assert line.startswith(f"{model}: its output is not finite with noise on '") and line.endswith(".weight'")


def test_rounding_makes_none_negative(llama, tmp_path, monkeypatch):
    model, text, _ = llama
    monkeypatch.setattr(sensitivity, "loss", lambda *_: -1e-9)
    assert set(tiny.calibrated(model, text, tmp_path / "out", *FEW).sensitivities.values()) == {0.0}
