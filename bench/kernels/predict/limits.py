"""The times that a product would take by each limit of the device alone (docs/four-bit-matmul.md#predictions).

What a kernel is comes from its machine code: bench/results/kernel_instructions.jsonl has the instructions of its loop
and the bytes that it has in flight. How a product is divided comes from the library's plan: a line of `bench_plans`.
What a warp does in shared memory follows from the sizes of its tile.
"""

import re

from kernel_records import four_bit_name, int8_name, record_of
from measured import measured_lines, read_rates


# Bytes per second of memory: measured by a kernel that only reads, or else an assumption.
READ = {"H100": 3.0e12, "H200": 4.3e12} | read_rates(measured_lines())

# Assumptions: none of these is measured.
READ_L2 = 5.5e12
LATENCY = 700e-9
CLOCKS = (1.98e9, 1.755e9)  # per second: the fastest, and the rated one
BF16_FLOPS = 780e12  # of cuBLASLt with a bf16 weight
LIBRARY_FLOPS = 700e12  # of cuBLASLt behind the dequantized weight
ADDING = 0.5e-6  # until the last block has added the sums of splits

MULTIPROCESSORS = 132
START_CLOCKS = 430 * 256 / 128  # of a block, which fills its table: instructions of 256 threads
WEIGHTS = 2048  # the clocks below are those of so many in a multiprocessor


class Limits:
    """Of one product. Times are seconds.

    LaneLimits and TmaLimits know their kernels: how often they read the weight, the bytes of x, the bytes in flight,
    the clocks of the busiest multiprocessor, and the time if tiles fill the device unevenly.
    """

    def __init__(self, plan, record):
        self.plan, self.record = plan, record
        self.is_int8 = plan["operation"] == "int8-matmul"
        self.is_of_experts = plan["operation"] == "expert-matmul"

    @property
    def weight_bytes(self):
        return weight_bytes(self.plan)

    @property
    def code_bytes(self):
        weights = self.plan["n"] * self.plan["k"]
        return weights if self.is_int8 else weights / 2

    def instruction_clocks(self):
        """Of a multiprocessor for WEIGHTS weights, by the whole loop, for rows that do not exist, too."""
        return WEIGHTS / 128 * self.record["per_unit"]  # 128 threads in a clock

    def start(self, clock):
        """Of the blocks that a multiprocessor starts at a time."""
        return START_CLOCKS * self.blocks_of_a_multiprocessor / clock

    def limits(self, gpu):
        """{limit: (at least, at most)}"""
        found = {
            # From the second time on, the weight's tile is taken to come from the L2 cache.
            "memory": (self.weight_bytes / READ[gpu],) * 2,
            "in flight": (self.in_flight(),) * 2,
            "L2": ((self.weight_bytes * self.readings + self.x_bytes) / READ_L2,) * 2,
        }
        for name, clocks in self.of_busiest().items():
            found[name] = [of_end / clock for of_end, clock in zip(clocks, CLOCKS)]
        return found

    def predicted(self, gpu):
        """((seconds at least, why), (at most, why))"""
        limits = self.limits(gpu)
        adding = ADDING if self.splits > 1 else 0
        ends = []
        for end, clock in enumerate(CLOCKS):
            name = max(limits, key=lambda one, end=end: limits[one][end])
            starts = self.waves if end == 1 else 1
            ends.append((limits[name][end] + self.start(clock) * starts + adding, name))
        unevenly = self.unevenly(gpu)
        if unevenly is not None and unevenly[0] > ends[1][0]:
            ends[1] = unevenly
        return ends


class LaneLimits(Limits):
    """Of a kernel whose lanes load the codes: FourBitMatmul and Int8Matmul."""

    def __init__(self, plan, kernels):
        if plan["operation"] == "int8-matmul":
            name = int8_name(plan, "bf16", plan["load_bytes"])
        else:
            name = four_bit_name(plan, plan["keeps_x"])
        super().__init__(plan, record_of(name, kernels))
        self.shares_x = plan["operation"] == "shared-matmul"
        m, most = plan["m"], plan["max_m"]
        # A kernel takes so many rows of x at a time, and the weight once for each.
        self.chunks = [most] * (m // most) + ([m % most] if m % most else [])
        self.readings, self.splits = len(self.chunks), plan["splits"]
        self.items = plan["tiles"] * plan["splits"]
        self.blocks_of_a_multiprocessor = plan["min_blocks"]

    @property
    def items_text(self):
        return f"{self.plan['tiles']} x {self.splits} of {MULTIPROCESSORS * self.plan['min_blocks']}"

    # -- In bytes

    @property
    def x_bytes(self):
        """The bytes of x that blocks copy from the L2 cache: each tile has all of x, or each block if it keeps x."""
        readers = self.plan["blocks"] if self.plan.get("keeps_x") else self.plan["tiles"]
        return readers * 2 * self.plan["m"] * self.plan["k"]

    @property
    def blocks_at_a_time(self):
        return min(self.plan["blocks"], MULTIPROCESSORS * self.plan["min_blocks"])

    # -- In clocks of a multiprocessor, for WEIGHTS weights and so many rows of x

    def tiles_of_m(self, rows):
        """That a warp multiplies: those without rows are jumped over, two at a time."""
        return 1 if rows <= 8 else 2 * -(-rows // 16)

    def shared_clocks(self, rows):
        """{what: (clocks at least, at most)}"""
        plan = self.plan
        read = 16 / plan["n_tiles"] * self.tiles_of_m(rows)
        # With one row all quarters of a warp read the same bytes.
        clocks = {"x read": (read / 4 if rows == 1 else read, read)}
        if not plan.get("keeps_x"):
            written = 32 * rows / plan["block_n"]
            clocks["x written"] = (written, written)
        if self.is_int8:
            return clocks | {"codes": (16, 16)}
        run = plan["run"]
        # absmax of a run: two shuffles for 16 rows; and a lookup in the nested codebook for two runs.
        shuffles = (256 + 64) / run + {16: 4, 8: 8}.get(run, 0)  # neighbours swap codes, or a quad transposes them
        # Through the L1 cache; copies of them are also written to shared memory and read there.
        codes = 24 if run == 8 and plan["m_tiles"] > 1 else 8
        return clocks | {"table": (32, 32), "codes": (codes, codes), "shuffles": (shuffles, shuffles)}

    def shared_total(self, rows):
        """(at least, at most)"""
        return totals(self.shared_clocks(rows))

    def tensor_clocks(self, rows):
        """At two thirds of the peak, which is 2048 products in a clock. With runs of 8 each is done twice."""
        return 12 * self.tiles_of_m(rows) * (2 if self.plan.get("run") == 8 else 1)

    @property
    def most_items(self):
        """(at least, at most) of a multiprocessor. Of weights that share x, it may have the blocks with the most."""
        least = -(-self.items // MULTIPROCESSORS)
        return least, max(least, self.plan["turns"] * self.plan["min_blocks"]) if self.shares_x else least

    def of_busiest(self):
        """{limit: clocks (at least, at most)} of the multiprocessor with the most items."""
        item = self.plan["block_n"] * self.plan["k_of_item"] / WEIGHTS

        def clocks(*of_weights):
            return [of_end * item * items for of_end, items in zip(of_weights, self.most_items)]

        instructions = clocks(*(self.instruction_clocks() * len(self.chunks),) * 2)
        if self.is_of_experts:  # more blocks than run at a time: their starts compete with the others' loops
            instructions = [some + START_CLOCKS * self.most_items[0] for some in instructions]
        return {
            "shared memory": clocks(*(sum(self.shared_total(rows)[end] for rows in self.chunks) for end in (0, 1))),
            "instructions": instructions,
            "tensor cores": clocks(*(sum(self.tensor_clocks(rows) for rows in self.chunks),) * 2),
        }

    # -- In seconds

    @property
    def waves(self):
        """At most, each wave of the experts' blocks waits for a start of its own."""
        return -(-self.plan["blocks"] // self.blocks_at_a_time) if self.is_of_experts else 1

    def in_flight(self):
        """If each block always had as many codes on their way as on average; of weights that share x, the slowest."""
        of_block = self.record["average_bytes_in_flight"] / self.record["blocks"]
        if self.shares_x:
            bytes_of_block = self.plan["turns"] * self.plan["block_n"] * self.plan["k_of_item"] / 2
        else:
            bytes_of_block = self.code_bytes / self.blocks_at_a_time
        return bytes_of_block / of_block * LATENCY * len(self.chunks)

    def estimate(self, gpu):
        """The plan's own; it does not know which experts are used."""
        return None if self.is_of_experts else self.plan["cost"] * len(self.chunks) / READ[gpu]

    def unevenly(self, gpu):
        """The estimate, which counts how unevenly tiles fill the device, and why."""
        estimate = self.estimate(gpu)
        return None if estimate is None else (estimate, f"estimate ({self.turns_text()})")

    def turns_text(self):
        plan = self.plan
        if self.shares_x:
            return "of one weight"
        if plan["turns"] > 1:
            return f"{plan['turns']} turns"
        return f"{plan['blocks']} of {MULTIPROCESSORS * plan['min_blocks']} blocks"


def totals(clocks):
    """(at least, at most) of all together."""
    return tuple(sum(ends) for ends in zip(*clocks.values()))


def weight_bytes(plan):
    """The bytes that are read for a weight."""
    weights = plan["n"] * plan["k"]
    if plan["operation"] == "int8-matmul":
        return weights + 4 * plan["n"]
    blocksize = int(match[1]) if (match := re.search(r"b(\d+)$", plan["shape"])) else 64
    return weights * (1 / 2 + 1 / blocksize + 4 / (256 * blocksize))


def bf16_time(plan, gpu):
    """Of a product with a bf16 weight, at best: the bytes of all three matrices, or the arithmetic."""
    n, k, m = plan["n"], plan["k"], plan["m"]
    return max(2 * (n * k + m * k + m * n) / READ[gpu], 2 * m * n * k / BF16_FLOPS)


def library_time(plan, gpu):
    """Dequantizing, which writes 2 bytes for each weight, and then cuBLASLt."""
    n, k, m = plan["n"], plan["k"], plan["m"]
    return (weight_bytes(plan) + 2 * n * k) / READ[gpu] + 2 * m * n * k / LIBRARY_FLOPS
