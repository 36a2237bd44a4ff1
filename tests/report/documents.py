"""Documents as `nibble measure --json` prints them, of models that do not exist: figures like those of real ones."""

import math
import random

MODULES = [("self_attn.q_proj", 4096, 4096), ("self_attn.k_proj", 1024, 4096), ("self_attn.v_proj", 1024, 4096),
           ("self_attn.o_proj", 4096, 4096), ("mlp.gate_proj", 14336, 4096), ("mlp.up_proj", 14336, 4096),
           ("mlp.down_proj", 4096, 14336)]
NORMS = ["input_layernorm", "post_attention_layernorm"]
# (name, codec, bits per weight, relative error, number of codes if the use of each is counted)
TESTS = [("models/Llama-3-8B-nf4", "nf4", 4.127, 0.0945, 16), ("models/Llama-3-8B-int8", "int8", 8.004, 0.0081, None),
         ("nf4:block-size=32", "nf4", 4.5, 0.0872, 16), ("fp4", "fp4", 4.5, 0.1161, 16)]


def reference_tensor(name, kind, layer, shape, rms=0.02, kurtosis=3.2):
    weights = math.prod(shape)
    return {"name": name, "kind": kind, "layer": layer, "dtype": "BF16", "shape": shape, "weights": weights,
            "bytes": 2 * weights, "nan": 0, "inf": 0, "beyond_fp32": 0, "mean": rms * 1e-3, "rms": rms,
            "kurtosis": kurtosis,
            "absmax": {"min": rms * 1.2, "mean": rms * 2.5, "max": rms * 14, "std": rms * 0.4},
            "outlier_columns": 3 if len(shape) == 2 else None, "outlier_energy": 0.013 if len(shape) == 2 else None}


def exact_tensor(tensor, codec="keep"):
    return {"codec": codec, "outcome": "kept", "converted": False, "bytes": tensor["bytes"], "bits_per_weight": 16.0,
            "nan": 0, "inf": 0, "lost": 0, "exact": True, "mae": 0.0,
            "rmse": 0.0, "max_abs": 0.0, "rel_rmse": 0.0, "sqnr_db": None, "cosine": 1.0, "mean_rel": 0.0,
            "max_abs_at": None, "worst_block": None,
            "entropy": None, "code_use": None, "error_histogram": [["zero", tensor["weights"]]]}


def quantized_tensor(tensor, codec, bits, relative, chance, codes=16):
    weights, rmse = tensor["weights"], relative * tensor["rms"]
    at = chance.randrange(max(1, weights // 64)) * 64
    uses = [max(1, int(weights * math.exp(-((code - 7.4) / 6.3) ** 2) / 9.9)) for code in range(codes or 0)]
    share = [use / sum(uses) for use in uses]
    top = math.floor(math.log2(rmse)) + 2
    bins = {top - i: weights * part for i, part in enumerate([0.004, 0.19, 0.4, 0.2, 0.1, 0.05, 0.026, 0.012, 0.006])}
    return {"codec": codec, "outcome": "quantized", "converted": True, "bytes": int(weights * bits / 8),
            "bits_per_weight": bits, "nan": 0, "inf": 0, "lost": 0, "exact": False,
            "mae": rmse * 0.78, "rmse": rmse, "max_abs": rmse * 9, "rel_rmse": relative,
            "sqnr_db": -20 * math.log10(relative), "cosine": 1 - relative ** 2 / 2, "mean_rel": relative * 2.4,
            "max_abs_at": at + 5, "worst_block": {"at": at, "rmse": rmse * 4.1, "absmax": tensor["absmax"]["max"]},
            "entropy": -sum(part * math.log2(part) for part in share) if codes else None,
            "code_use": uses or None,
            "error_histogram": [[b, int(bins[b])] for b in sorted(bins)] + [["zero", int(weights * 0.012)]]}


def sums(indices, reference, test):
    """FIGURES and what else is said of several tensors: those that the test lacks do not count."""
    exact = all(test[i]["exact"] for i in indices if test[i])
    pairs = [(reference[i], test[i]) for i in indices if test[i] and test[i]["rmse"] is not None]
    if not pairs:
        return {**dict.fromkeys(["mae", "rmse", "max_abs", "rel_rmse", "sqnr_db", "cosine", "mean_rel",
                                 "bits_per_weight"]), "weights": 0, "lost": 0, "exact": exact}
    weights = sum(tensor["weights"] for tensor, _ in pairs)

    def mean(value):
        return sum(tensor["weights"] * value(tensor, result) for tensor, result in pairs) / weights

    noise, signal = mean(lambda t, r: r["rmse"] ** 2), mean(lambda t, r: t["rms"] ** 2)
    return {"mae": mean(lambda t, r: r["mae"]), "rmse": math.sqrt(noise),
            "max_abs": max(result["max_abs"] for _, result in pairs), "rel_rmse": math.sqrt(noise / signal),
            "sqnr_db": 10 * math.log10(signal / noise) if noise else None, "cosine": mean(lambda t, r: r["cosine"]),
            "mean_rel": mean(lambda t, r: r["mean_rel"]),
            "bits_per_weight": 8 * sum(result["bytes"] for _, result in pairs) / weights, "weights": weights,
            "lost": sum(result["lost"] for _, result in pairs), "exact": exact}


OUTCOMES = "quantized", "cast", "kept"


def cast_tensor(tensor, codec, relative, chance):
    return {**quantized_tensor(tensor, codec, 16, relative, chance, codes=None), "outcome": "cast"}


def of_outcome(outcomes, indices, test):
    return [i for i in indices if test[i] and test[i]["outcome"] in outcomes]


def headline(indices, test):
    return next((outcome for outcome in OUTCOMES if of_outcome([outcome], indices, test)), "kept")


def shown(indices, test):
    """The quantized ones; without any, those that were cast; without any, the kept ones."""
    return of_outcome([headline(indices, test)], indices, test)


def verdicts(reference, test):
    found = []
    for codec in dict.fromkeys(result["codec"] for result in test if result and result["converted"]):
        of = [i for i, result in enumerate(test) if result and result["converted"] and result["codec"] == codec]
        known = [i for i in of if test[i]["sqnr_db"] is not None]
        worst = max(known, key=lambda i: test[i]["rel_rmse"], default=None)
        db = [test[i]["sqnr_db"] for i in known] or [None]
        found.append({"codec": codec, "tensors": len(of), "exact": len(of) - len(known), "worse_than_expected": 0,
                      "broken": 0, "min_sqnr_db": min(db), "max_sqnr_db": max(db), "min_normal_sqnr_db": 20.73,
                      "max_normal_sqnr_db": 20.73, "worst": worst,
                      "text": f"{codec}: {len(of)} tensors, as expected" + (
                          "" if worst is None else f"; worst: {reference[worst]['name'][:60]}")})
    return found


def groups(key, reference, test):
    members = {}
    for i, tensor in enumerate(reference):
        if tensor[key] is not None:
            members.setdefault(tensor[key], []).append(i)
    return [{key: value, "headline": headline(of, test),
             **{outcome: len(of_outcome([outcome], of, test)) for outcome in OUTCOMES},
             "converted": len(of_outcome(OUTCOMES[:2], of, test)), "tensors": len(shown(of, test)),
             **sums(shown(of, test), reference, test)} for value, of in members.items()]


def split(outcomes, reference, test):
    of = of_outcome(outcomes, range(len(test)), test)
    return {"tensors": len(of), **sums(of, reference, test)}


def document(name, reference, tests):
    """tests: (name, tensors)"""
    described = []
    for test_name, results in tests:
        compared = [i for i, result in enumerate(results) if result and result["rel_rmse"] is not None]
        described.append({
            "name": test_name, "bytes": sum(result["bytes"] for result in results if result),
            "verdicts": verdicts(reference, results),
            "headline": headline(range(len(reference)), results),
            **{outcome: split([outcome], reference, results) for outcome in OUTCOMES},
            "converted": split(OUTCOMES[:2], reference, results), "total": split(OUTCOMES, reference, results),
            "kinds": groups("kind", reference, results), "layers": groups("layer", reference, results),
            "worst": sorted(compared, key=lambda i: -results[i]["rel_rmse"])[:20],
            "missing": [reference[i]["name"] for i, result in enumerate(results) if result is None],
            "tensors": results})
    return {"schema_version": 1, "generator": "nibble 0.1.0", "tests": described, "reference": {
        "name": name, "bytes": sum(tensor["bytes"] for tensor in reference),
        "weights": sum(tensor["weights"] for tensor in reference), "tensors": reference}}


def llama(layers=32, tests=TESTS):
    chance = random.Random(7)
    reference = [reference_tensor("model.embed_tokens.weight", "embed_tokens", None, [128256, 4096], 0.011, 4.9)]
    for layer in range(layers):
        for kind, rows, columns in MODULES:
            early = math.exp(-layer / 2.5) if kind in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj") else 0
            reference.append(reference_tensor(
                f"model.layers.{layer}.{kind}.weight", kind, layer, [rows, columns], 0.018 + 0.006 * chance.random(),
                3.1 + 5 * early + 0.6 * chance.random()))
        for kind in NORMS:
            reference.append(reference_tensor(f"model.layers.{layer}.{kind}.weight", kind, layer, [4096], 0.4, 6.1))
    reference.append(reference_tensor("model.norm.weight", "norm", None, [4096], 1.9, 9))
    reference.append(reference_tensor("lm_head.weight", "lm_head", None, [128256, 4096], 0.016, 3.7))

    results = []
    for name, codec, bits, relative, codes in tests:
        row = []
        for tensor in reference:
            if len(tensor["shape"]) == 1 or (tensor["kind"] == "lm_head" and codec == "int8"):
                row.append(exact_tensor(tensor))
            else:
                worse = 1 + 0.035 * (tensor["kurtosis"] - 3) + 0.012 * chance.random()
                row.append(quantized_tensor(tensor, codec, bits, relative * worse, chance, codes))
        results.append((name, row))
    results[-1][1][5] = results[-1][1][17] = None
    return document("/models/meta-llama/Llama-3-8B", reference, results)


def cast_embeddings():
    """One test whose embeddings were cast, and nearly half of the weights are embeddings."""
    chance = random.Random(8)
    reference = [reference_tensor("model.embed_tokens.weight", "embed_tokens", None, [32000, 256])]
    reference += [reference_tensor(f"model.layers.{layer}.up.weight", "up", layer, [1024, 1024]) for layer in range(8)]
    reference.append(reference_tensor("model.norm.weight", "norm", None, [256], 1.9))
    results = [quantized_tensor(tensor, "nf4", 4.127, 0.09 + 0.01 * chance.random(), chance) for tensor in reference]
    results[0], results[-1] = cast_tensor(reference[0], "bfloat16", 0.0017, chance), exact_tensor(reference[-1])
    return document("cast", reference, [("nf4", results)])


HOSTILE = ["</script><script>window.hacked=1;alert(1)</script>", "<img src=x onerror=\"window.hacked=1\">",
           "<!--<script>window.hacked=1", "a\u2028window.hacked=1\u2029b", "\"'`${window.hacked=1}\\",
           "\x00\x01\x07\t\r\n\x1b[31m\x7f", "\u202etxt.exe\u202c \u200b\ufeff", "javascript:window.hacked=1",
           "&lt;b&gt;&amp;", "x" * 3000, "__proto__", "constructor", "", "\U0001f642 \u4e2d\u6587 \u0627\u0644"]


def hostile():
    chance = random.Random(1)
    reference = [reference_tensor(f"{name}#{i}", name, i % 2 if i % 3 else None, [64, 64])
                 for i, name in enumerate(HOSTILE)]
    for i, tensor in enumerate(reference):
        tensor["dtype"] = HOSTILE[i % 3]
    tests = [(name, [quantized_tensor(tensor, name, 4.5, 0.09, chance, codes=None) if i % 5 else None
                     for i, tensor in enumerate(reference)]) for name in HOSTILE[:4]]
    return document(HOSTILE[0], reference, tests)


def large(count=100_000):
    chance = random.Random(2)
    reference = [reference_tensor(f"model.layers.{i // 2000}.mlp.experts.{i % 2000 // 2}.{('up', 'down')[i % 2]}_proj",
                                  ("mlp.experts.up_proj", "mlp.experts.down_proj")[i % 2], i // 2000, [64, 64])
                 for i in range(count)]
    some = [quantized_tensor(reference[0], "nf4", 4.5, 0.09 + 0.01 * chance.random(), chance) for _ in range(997)]
    return document("large", reference, [("nf4", [some[i % 997] for i in range(count)])])


def experts():
    """Several tensors of one kind in one layer, and of one kind outside of layers."""
    chance = random.Random(5)
    reference = [reference_tensor(f"layers.{i % 3}.experts.{i // 3}.up", "experts.up", i % 3 if i < 12 else None,
                                  [64, 64 * (1 + i)], 0.01 * (1 + i), 3 + i) for i in range(15)]
    results = [quantized_tensor(tensor, "nf4", 4 + 0.1 * i, 0.08 + 0.001 * i, chance)
               for i, tensor in enumerate(reference)]
    results[0], results[1], results[5] = None, exact_tensor(reference[1]), exact_tensor(reference[5])
    return document("experts", reference, [("nf4", results)])


def many_groups(count=20_000):
    """Every tensor is a kind of its own; half are layers of their own, too."""
    reference = [reference_tensor(f"t{i}", f"kind {i}", i // 2 if i % 2 else None, [8, 8]) for i in range(count)]
    some = quantized_tensor(reference[0], "nf4", 4.5, 0.09, random.Random(4))
    return document("many groups", reference, [("nf4", [some] * count)])


def small(layers):
    """One tensor, in a layer or not."""
    reference = [reference_tensor("weight", "weight", 0 if layers else None, [8, 64])]
    result = quantized_tensor(reference[0], "int8", 8.5, 0.01, random.Random(3), codes=None)
    return document("small", reference, [("int8", [result])])


def empty_figures():
    """A tensor without weights beside one that the test lacks."""
    reference = [reference_tensor("empty", "empty", 0, [0, 64]), reference_tensor("lost", "lost", 1, [64])]
    reference[0].update(mean=None, rms=None, kurtosis=None, absmax=None, outlier_columns=None, outlier_energy=None)
    nothing = {**exact_tensor(reference[1]), "bytes": 0, "worst_block": None, "error_histogram": [], "max_abs_at": None}
    for key in ("bits_per_weight", "mae", "rmse", "max_abs", "rel_rmse", "sqnr_db", "cosine", "mean_rel"):
        nothing[key] = None
    return document("nothing", reference, [("keep", [nothing, None])])


def lost_numbers():
    """F64 with one number beyond fp32, which became infinite; infinities that were there before are no loss. NaN that
    became numbers are an error, but no figure says so."""
    chance = random.Random(9)
    reference = [reference_tensor(f"layers.{i}.weight", "weight", i, [64, 64]) for i in range(3)]
    reference[0].update(dtype="F64", inf=1, beyond_fp32=1)
    reference[1].update(inf=2)
    reference[2].update(nan=2)
    results = [cast_tensor(tensor, "float32", 1e-8, chance) for tensor in reference]
    results[0].update(inf=1, nan=0, lost=1)  # the infinity became a number
    results[1].update(inf=2, exact=True)
    for result in results:
        result.update(rmse=0.0, rel_rmse=0.0, sqnr_db=None)
    return document("lost", reference, [("fp32", results)])


def all_exact():
    reference = [reference_tensor(f"layers.{i}.weight", "weight", i, [64, 64]) for i in range(3)]
    return document("exact", reference, [("fp32", [exact_tensor(tensor, "fp32") for tensor in reference])])
