"""The operations of bench/peers.py in torch and bitsandbytes, one thread, on request: reads names from stdin, one per
line, and answers each with a line of JSON, {"seconds": s, "bytes": of weights} or {"missing": why}. A process of its
own, so that it shares neither memory nor threads with what it is compared to. Takes 10 GB of memory.
"""

import functools
import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import bitsandbytes.functional as bnb  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)

LARGE = 1 << 30  # bytes that a fast operation goes through, so that no cache holds them


@functools.cache
def weights(dtype):
    return (torch.randn(4096, 14336) * 0.02).to(getattr(torch, dtype))


@functools.cache
def many(dtype):
    return [weights(dtype).clone() for _ in range(-(-LARGE // weights(dtype).nbytes))]


def four_bit(dtype, nested):
    return bnb.quantize_4bit(weights(dtype), blocksize=64, compress_statistics=nested, quant_type="nf4")


def quantize(dtype, nested):
    return weights(dtype).nbytes, lambda: four_bit(dtype, nested)


def decode(dtype):
    # Without double quantization, since nibble's decoder has undone that before.
    packed, state = four_bit(dtype, False)
    copies = [packed.clone() for _ in many(dtype)]

    def run():
        for copy in copies:  # the result is freed before the next: its memory is used again
            bnb.dequantize_4bit(copy, state)

    return sum(weight.nbytes for weight in many(dtype)), run


def each(dtype, operation):
    def run():
        for weight in many(dtype):
            operation(weight)

    return sum(weight.nbytes for weight in many(dtype)), run


def nested(_):
    # The absmax values of tensors as large as weights().
    absmax = [0.04 + (torch.randn(4096 * 14336 // 64) * 0.02).abs() for _ in range(64)]
    code = bnb.create_dynamic_map()
    run = lambda: [bnb.quantize_blockwise(each - each.mean(), code=code, blocksize=256) for each in absmax]  # noqa: E731
    return sum(each.nbytes for each in absmax), run


# By the names of bench/programs/codecs.cpp, the type left out: what it returns is (bytes of weights, what to run).
OPERATIONS = {
    "quantize/nf4": lambda dtype: quantize(dtype, True),
    "quantize/nf4-no-double-quant": lambda dtype: quantize(dtype, False),
    "quantize/int8": lambda dtype: each(dtype, lambda weight: bnb.int8_vectorwise_quant(weight.half())),
    "decode/nf4": decode,
    "encode/fp16": lambda dtype: each(dtype, torch.Tensor.half),
    "nested/encode": nested,
}


@functools.cache
def prepared(name):
    operation, dtype = (name, "") if name in OPERATIONS else name.rsplit("/", 1)
    size, run = OPERATIONS[operation](dtype)
    run()  # once unmeasured: libraries are loaded, memory is there
    return size, run


def answer(name):
    size, run = prepared(name)
    start = time.perf_counter()
    run()
    return {"seconds": time.perf_counter() - start, "bytes": size}


for line in sys.stdin:
    try:
        reply = answer(line.strip())
    except Exception as error:  # what this version cannot do on a CPU is left out of the table
        reply = {"missing": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps(reply), flush=True)
