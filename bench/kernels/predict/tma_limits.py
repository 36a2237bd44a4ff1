"""The same limits for the kernels that TMA feeds, FourBitMatmulFewRows and FourBitMatmulSm90, on devices of 9.0."""

from kernel_records import record_of, tma_name
from limits import CLOCKS, LATENCY, MULTIPROCESSORS, READ, WEIGHTS, Limits, totals


class TmaLimits(Limits):
    """Of a product by the kernel in plan["tma"]. An item is a tile of n and a chunk of rows of x. The
    blocks of a cluster divide its k."""

    blocks_of_a_multiprocessor = waves = 1

    def __init__(self, plan, kernels):
        super().__init__(plan, record_of(tma_name(plan["tma"]), kernels))
        self.tma = plan["tma"]
        self.has_wgmma = self.tma["kernel"] == "FourBitMatmulSm90"
        self.splits = self.tma["splits"]
        self.readings = -(-plan["m"] // self.tma["max_m"])
        self.rows = self.tma["max_m"]  # that a block multiplies, though some of them may not exist

    @property
    def items_text(self):
        return f"{self.tma['items']} x {self.splits} of {self.tma['clusters'] * self.splits}"

    @property
    def x_bytes(self):
        """The bytes of x that blocks copy from the L2 cache: each tile of n has all of x."""
        return self.tma["items"] / self.readings * 2 * self.plan["m"] * self.plan["k"]

    def shared_clocks(self):
        """{what: clocks (at least, at most)} of a multiprocessor for WEIGHTS weights.

        TMA writes codes and x. A lane of the kernel for few rows reads just the codes that it needs, and one of wgmma's
        four times as many. absmax is looked up in the nested codebook, at random places, written as floats and read.
        """
        m, tile_n = self.plan["m"], self.tma["tile_n"]
        if self.has_wgmma:
            x_read = (self.rows / 2,) * 2
            x_written, codes = 32 * self.rows / tile_n, 8 + 32
        else:
            # A warp reads x for two tiles of 16 of n. Where a block has an odd number of them, one
            # warp reads x for one.
            most = self.rows * -(-tile_n // 32) * 32 / tile_n
            # With one row all quarters of a warp read the same bytes.
            x_read = (most / 4 if m == 1 else most, most)
            x_written, codes = 32 * (m if self.rows == 8 else self.rows) / tile_n, 8 + 8
        return {"table": (32, 32), "codes": (codes,) * 2, "absmax": (6, 8), "x read": x_read,
                "x written": (x_written,) * 2}  # fmt: skip

    def tensor_clocks(self):
        """Of wgmma at its peak, 2048 products in a clock; of mma.sync at two thirds of it."""
        return self.rows if self.has_wgmma else 12 * self.rows / 8

    def of_busiest(self):
        """{limit: clocks (at least, at most)} of the multiprocessor whose block takes the most turns."""
        weights = self.tma["turns"] * self.tma["tile_n"] * self.tma["k_of_item"] / WEIGHTS
        clocks = {"shared memory": totals(self.shared_clocks()),
                  "instructions": (self.instruction_clocks(),) * 2,
                  "tensor cores": (self.tensor_clocks(),) * 2}  # fmt: skip
        return {name: [end * weights for end in ends] for name, ends in clocks.items()}

    @property
    def bytes_of_a_stage(self):
        return self.tma["tile_n"] * self.tma["block_k"] / 2

    def in_flight(self):
        """If the block with the most turns always had all its stages of codes but one on their way."""
        bytes_of_block = self.tma["turns"] * self.tma["tile_n"] * self.tma["k_of_item"] / 2
        return bytes_of_block / ((self.tma["stages"] - 1) * self.bytes_of_a_stage) * LATENCY

    def estimate(self, _gpu):
        """Returns None: the plan's estimate is fitted to measured times."""

    def unevenly(self, gpu):
        """The weight, if each block had an equal share of memory's bandwidth, and why."""
        tma = self.tma
        blocks = tma["blocks"]
        times = tma["turns"] * tma["tile_n"] * tma["k_of_item"] * blocks / (self.plan["n"] * self.plan["k"])
        seconds = times / self.readings * self.weight_bytes / READ[gpu] + self.start(CLOCKS[1])
        turns = f"{tma['turns']} turns of {blocks}" if tma["turns"] > 1 else f"{blocks} of {MULTIPROCESSORS} blocks"
        return seconds, f"memory ({turns})"
