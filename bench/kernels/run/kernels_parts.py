"""What bench/kernels.sh runs on a machine with a GPU: three parts, each a list of steps, each step a process.

A command's first word is a program of the folder that `bench/kernels.sh build` made, one of its Python scripts, or a
tool of the machine. These words become something else when a step starts:

    {name}          one of the names that the step's program lists (`names`): the step becomes one step for each
    {bitsandbytes}  `--bitsandbytes LIBRARY`, or nothing if that library is not there or does not load
    {cublaslt}      `--cublaslt LIBRARY` if `run` was told where it is, or nothing
    {out}           the folder of results
    {scratch}       a folder for large files that are not results
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    command: tuple
    limit: int  # seconds; a step that works takes far less, also where steps run together
    tool: tuple = ()  # runs the command; without it the step is left out
    names: tuple = ()  # arguments that make the program print names: one per line, or as GoogleTest prints its suites
    log: str = ""  # a text file of its own, in the folder of results
    together: bool = False  # with the steps beside it that say so too: their times say nothing
    optional: bool = False  # the program need not be in the folder
    proves_peer: bool = False  # unless it succeeds, later steps do without bitsandbytes


SHAPES = ("4096x4096", "14336x4096", "28672x8192")
PRODUCT_SHAPES = ("14336x4096b32", "16384x4304", "16384x2152")  # runs of 32, 16 and 8 weights share an absmax
SANITIZER = ("compute-sanitizer", "--error-exitcode", "9", "--print-limit", "20", "--tool")

# What the sanitizers look at: each kind of product and of weight, at sizes of real models.
# 128 rows are wgmma; k of 4304 and 2152 are runs of 16 and 8.
SANITIZED = ("matmul,4096x4096,1", "matmul,4096x4096,16", "matmul,4096x4096,64", "matmul,4096x4096,128",
             "matmul,16384x4304,1", "matmul,16384x2152,1", "shared-matmul,4096x4096,1", "expert-matmul,1536x2048,8",
             "int8-matmul,4096x4096,1", "int8-matmul,4096x4096,64", "dequantize,4096x4096",
             "quantize,4096x4096")  # fmt: skip

PROFILED = (
    "matmul,28672x8192,1", "matmul,28672x8192,8", "matmul,28672x8192,16", "matmul,28672x8192,32",
    "matmul,28672x8192,64", "matmul,28672x8192,128", "matmul,14336x4096,1",
    "matmul,4096x4096,1", "matmul,4096x4096,16", "shared-matmul,4096x4096,1", "expert-matmul,1536x2048,8",
    "int8-matmul,28672x8192,1", "int8-matmul,28672x8192,64",
    "dequantize,28672x8192", "quantize,28672x8192",
)  # fmt: skip


def profile(case):
    return ("bench_kernels", "--profile", case)


def sanitized(tool, cases, limit):
    return [Step(f"{tool}/{case}", profile(case), limit, tool=(*SANITIZER, tool), together=True)
            for case in cases]


CHECK = [
    Step("device", ("nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE,TEMPERATURE,MEMORY"), 20),
    Step("bitsandbytes", ("bench_kernels", "--find", "{bitsandbytes}"), 30, proves_peer=True),
    Step("python", ("kernels_python.py",), 120, together=True),
    Step("calibrate/{name}", ("nibble_calibrate", "{name}"), 40, names=("--list",),
         together=True),
    Step("tests/{name}", ("nibble_kernel_tests_gpu", "--gtest_brief=1", "--gtest_filter={name}.*"), 120,
         names=("--gtest_list_tests",), log="tests.txt", together=True),
    Step("table-quick", ("bench_kernels", "--quick", "{bitsandbytes}", "{cublaslt}"), 90),
    *(Step(f"table/{shape}", ("bench_kernels", "--shape", shape, "{bitsandbytes}", "{cublaslt}"), 110)
      for shape in SHAPES),
    Step("table/several", ("bench_kernels", "--several"), 60),
    *(Step(f"table/{shape}", ("bench_kernels", "--shape", shape, "{bitsandbytes}", "{cublaslt}"), 60)
      for shape in PRODUCT_SHAPES),
    *sanitized("memcheck", SANITIZED, 90),
    Step("memcheck/tests", ("nibble_kernel_tests_gpu", "--gtest_brief=1", "--gtest_filter=*Matmul*"), 240,
         tool=(*SANITIZER, "memcheck"), together=True),
]  # fmt: skip

TUNE = [
    *(Step(f"variants/{shape}", ("bench_tune", "--shape", shape), 60, optional=True) for shape in reversed(SHAPES)),
    Step("few-rows", ("bench_tune", "--few-rows"), 60, optional=True),
    Step("many-rows", ("bench_tune", "--many-rows"), 60, optional=True),
    Step("variants/int8", ("bench_tune", "--int8"), 50, optional=True),
    *(Step(f"variants/{shape}", ("bench_tune", "--shape", shape), 30, optional=True) for shape in PRODUCT_SHAPES),
    *(Step(f"ncu/{case}", ("kernels_ncu.py", case, "--out", "{out}", "--scratch", "{scratch}"), 40, log="ncu.txt")
      for case in PROFILED),
    *sanitized("racecheck", SANITIZED, 90),
    *sanitized("synccheck", SANITIZED, 90),
    *sanitized("initcheck", SANITIZED, 90),
]  # fmt: skip

CEILINGS = [
    Step("bitsandbytes", ("bench_kernels", "--find", "{bitsandbytes}"), 30, proves_peer=True),
    Step("launches", ("bench_ceilings", "launches"), 20),
    *(Step(f"cublaslt/{kind}", ("bench_ceilings", kind, "{cublaslt}"), 70)
      for kind in ("bf16-nt", "bf16-nn", "fp8-nt", "s8-nt")),
    Step("scratch", ("bench_ceilings", "scratch", "{cublaslt}"), 60),
    Step("library", ("bench_ceilings", "library", "{cublaslt}"), 60),
    Step("errors", ("bench_ceilings", "errors", "{cublaslt}"), 60),
    Step("linear4bit", ("kernels_linear4bit.py",), 70),
    Step("convert", ("kernels_convert.py", "--scratch", "{scratch}"), 150),
]  # fmt: skip

PARTS = {"check": CHECK, "tune": TUNE, "ceilings": CEILINGS}
