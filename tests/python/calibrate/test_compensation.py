"""`convert --compensate` with the statistics that `nibble.calibrate` writes: layers' outputs have less error."""

import nibble
import numpy as np
import pytest
import safetensors.numpy
import tiny


def output_errors(found, plain, quantized, transposed):
    """{weight: the mean over the tokens of |x (W - W')|^2}"""
    before, after = (safetensors.numpy.load_file(folder / "model.safetensors") for folder in (plain, quantized))
    errors = {}
    for name, (x, *_) in found.weights.items():
        difference = after[name].astype(np.float64) - before[name]
        if transposed and name != "lm_head.weight":  # Conv1D
            difference = difference.T
        errors[name] = ((difference @ found.second_moment(x)) * difference).sum()
    return errors


@pytest.mark.parametrize("name, size", [("Llama", "intermediate_size"), ("GPT2", "n_inner")])
def test_outputs_have_less_error(tmp_path, name, size):
    model = tiny.save(tmp_path / "model", name, tie_word_embeddings=False, **{size: 128})  # rows of whole blocks
    stats = tiny.calibrated(model, tiny.write(tmp_path / "text"), tmp_path / "stats", "--second-moments")

    def errors(to, **options):
        nibble.convert(model, tmp_path / "quantized", to=to, overwrite=True, **options)
        nibble.dequantize(tmp_path / "quantized", tmp_path / "decoded", to="fp32", overwrite=True)
        return output_errors(stats, model, tmp_path / "decoded", name == "GPT2")

    for to in ("nf4", "fp4:absmax=search", "int8"):
        plain, compensated = errors(to), errors(to, calibration=stats.path, compensate=True)
        assert plain.pop("lm_head.weight") == compensated.pop("lm_head.weight") == 0  # it is not quantized
        for weight, error in plain.items():
            assert 0 < compensated[weight] < 0.7 * error, (to, weight)
