"""The table of results of docs/kernels-benchmark.md, from what was measured."""

from measured import NOT_MEASURED

SHAPES = ("4096x4096", "14336x4096", "28672x8192")
ALL_SHAPES = (*SHAPES, "16384x4304", "16384x2152")
FEW_ROWS, MANY_ROWS = (8, 16, 32, 64), (128, 256)
GPUS = ("H100", "H200")


def spaced(shape):
    return shape.replace("x", " x ").replace("b", ", blocks of ")


def of_figure(figure, form="{:.2f}", scale=1.0):
    """How a cell shows a figure of a line. `figure` is its name, or the names that lead to it."""

    def text(lines, name):
        value = lines.get(name, {})
        for key in figure if isinstance(figure, tuple) else (figure,):
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else form.format(scale * value)

    return text


def of_bitsandbytes(lines, name):
    """Than the faster of its two ways."""
    others = lines.get(name, {}).get("faster_than", {})
    ratios = [ratio for who, ratio in others.items() if who.startswith("bitsandbytes")]
    return f"{min(ratios):.2f}" if ratios else None


def fastest_copy(lines, _):
    rates = [lines[name]["gb_s"] for name in ("copy/kernel", "copy/cudaMemcpyAsync") if name in lines]
    return f"{max(rates):.0f}" if rates else None


def of_share(figure):
    return of_figure(figure, "{:.0f} %", 100)


gb_s, tflop_s = of_figure("gb_s", "{:.0f}"), of_figure("tflop_s", "{:.0f}")
us, times_m1 = of_figure("median"), of_figure("times_m1")
of_copy, of_read, of_bf16 = of_share("share_of_copy"), of_share("share_of_read"), of_share("share_of_bf16")
of_cublaslt = of_figure(("faster_than", "cublaslt"))


def nibble(operation, shape, m):
    return f"{operation}/{shape}/m{m}/nibble"


def rows():
    """(what a row has, [(how a cell shows a line, the line's name)])"""
    four_bit, int8 = "matmul/bf16/nf4-nested", "matmul/bf16/int8"
    listed, short = "; ".join(map(spaced, SHAPES)), ("14336x4096b32", "16384x4304", "16384x2152")
    yield "copy; read, GB/s", [(fastest_copy, ""), (gb_s, "read/kernel")]
    yield "launch of an empty kernel of 132 blocks in a graph, µs", [(us, "launches/graph/blocks132")]
    for what, operation in ("quantize", "quantize/bf16/nf4-nested"), ("dequantize", "dequantize/nf4-nested/bf16"):
        names = [f"{operation}/{shape}/nibble" for shape in SHAPES]
        yield f"{what}, {listed}: share of the copy", [(of_copy, name) for name in names]
        yield f"{what}, the same: faster than bitsandbytes", [(of_bitsandbytes, name) for name in names]
    yield f"product, m = 1, {listed}: share of the read", [(of_read, nibble(four_bit, shape, 1)) for shape in SHAPES]
    yield ("product, m = 1, the same: faster than bitsandbytes",
           [(of_bitsandbytes, nibble(four_bit, shape, 1)) for shape in SHAPES])  # fmt: skip
    for what, form, some_m in (("times of m = 1", times_m1, FEW_ROWS),
                               ("faster than cuBLASLt", of_cublaslt, (1, *FEW_ROWS, *MANY_ROWS)),
                               ("faster than bitsandbytes", of_bitsandbytes, (*FEW_ROWS, *MANY_ROWS))):
        for shape in SHAPES:
            yield (f"product, {spaced(shape)}, m = {'; '.join(map(str, some_m))}: {what}",
                   [(form, nibble(four_bit, shape, m)) for m in some_m])  # fmt: skip
    yield (f"product, m = 1, {'; '.join(map(spaced, short))}: share of the read",
           [(of_read, nibble(four_bit, shape, 1)) for shape in short])  # fmt: skip
    of_three_launches, q_k_v = of_figure(("faster_than", "nibble-one-by-one")), "4096+1024+1024x4096"
    yield ("products with q, k and v, m = 1; 16: faster than three launches",
           [(of_three_launches, nibble("shared-matmul/bf16/nf4-nested", q_k_v, m)) for m in (1, 16)])  # fmt: skip
    yield ("product of experts, 1; 8; 64 tokens: share of the read",
           [(of_read, f"expert-matmul/bf16/nf4-nested/128x1536x2048/tokens{tokens}/nibble") for tokens in (1, 8, 64)])
    yield (f"int8 product, m = 1, {'; '.join(map(spaced, ALL_SHAPES))}: share of the read",
           [(of_read, nibble(int8, shape, 1)) for shape in ALL_SHAPES])  # fmt: skip
    for what, form, some_m in (("times of m = 1", times_m1, FEW_ROWS),
                               ("faster than cuBLASLt", of_cublaslt, (1, *FEW_ROWS))):
        for shape in SHAPES:
            yield (f"int8 product, {spaced(shape)}, m = {'; '.join(map(str, some_m))}: {what}",
                   [(form, nibble(int8, shape, m)) for m in some_m])  # fmt: skip
    yield ("cuBLASLt, 28672 x 8192, m = 4096: Tflop/s of bf16 NT; bf16 NN; fp8; int8",
           [(tflop_s, f"cublaslt/{kind}/28672x8192/m4096")
            for kind in ("bf16-nt", "bf16-nn", "fp8-nt", "s8-nt")])  # fmt: skip
    yield ("dequantize and cuBLASLt, 28672 x 8192, m = 1024; 4096; 16384: share of bf16",
           [(of_bf16, f"scratch/bf16-nt/28672x8192/m{m}/dequantize-cublaslt")
            for m in (1024, 4096, 16384)])  # fmt: skip
    yield ("product by the library, 28672 x 8192, m = 512; 1024; 2048: faster than the fused kernel",
           [(of_figure(("faster_than", "nibble-fused")), f"library/bf16/nf4-nested/28672x8192/m{m}/nibble-library")
            for m in (512, 1024, 2048)])  # fmt: skip
    yield ("error of the product, 28672 x 8192, m = 1; 64: RMS, divided by cuBLASLt's",
           [(of_figure("rms_ratio"), f"errors/28672x8192/m{m}") for m in (1, 64)])  # fmt: skip
    for what, some_m in (("forward", (1, 64, 1024, 4096)), ("forward-graph", (1, 64)),
                         ("forward-backward", (1, 64, 1024, 4096))):  # fmt: skip
        for of, form in (("bitsandbytes'", of_bitsandbytes), ("a bf16 weight", of_figure(("faster_than", "torch-bf16")))):
            yield (f"Linear4bit, 28672 x 8192, m = {'; '.join(map(str, some_m))}, {what}: faster than {of}",
                   [(form, f"linear4bit/{what}/28672x8192/m{m}/nibble") for m in some_m])  # fmt: skip
    yield ("convert to NF4; int8 on the device, GB/s",
           [(of_figure("gb_s", "{:.1f}"), f"convert/{to}/cuda") for to in ("nf4", "int8")])  # fmt: skip
    yield ("convert to NF4; int8: faster than the CPU",
           [(of_figure("faster_than_cpu"), f"convert/{to}/cuda") for to in ("nf4", "int8")])  # fmt: skip


def cell(lines, figures):
    texts = [text(lines, name) for text, name in figures]
    return NOT_MEASURED if not any(texts) else "; ".join(text or "–" for text in texts)


def table(measured):
    """Of {(GPU, name): line}."""
    of_gpu = {gpu: {name: line for (its, name), line in measured.items() if its == gpu} for gpu in GPUS}
    text = "| | " + " | ".join(GPUS) + " |\n|---|" + "--:|" * len(GPUS) + "\n"
    for what, figures in rows():
        text += f"| {what} | " + " | ".join(cell(of_gpu[gpu], figures) for gpu in GPUS) + " |\n"
    return text
