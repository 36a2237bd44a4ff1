"""What kernels/instruction_budgets.json holds a kernel to, and whether the kernel keeps to it."""

import json
import re
from dataclasses import dataclass

from compilation import Compiled
from in_flight import BULK, in_flight, prefetches
from order import behind, waits_too_early
from resources import BARRIERS, Resources, resident_blocks
from sass import shape, width
from tools import ROOT
from way import hot_way

FILE = ROOT / "kernels" / "instruction_budgets.json"
HOT = {"markers", "loads", "unit", "budget", "at_bandwidth"}  # what an entry with a budget has
KEYS = HOT | {"kernel", "because", "architectures", "region", "mma", "stores", "ahead", "loads_before", "dynamic_shared_bytes",
              "min_bytes_in_flight", "min_average_bytes_in_flight", "stack_bytes", "spilled_bytes"}  # fmt: skip
COLD = {"kernel", "because", "stack_bytes", "spilled_bytes"}  # what any entry may have
KEYS_WITHIN = {
    "loads": {"opcode", "weights_per_byte", "threads", "own_loop", "bulk_bytes", "bulk_ahead"},
    "mma": {"opcode", "weights", "times", "threads"},
    "stores": {"opcode", "bytes_per_weight"},
}


@dataclass(frozen=True)
class Kernel:
    """One kernel for one architecture."""

    name: str
    architecture: str
    instructions: list
    resources: Resources
    compiled: Compiled


def entries():
    """The entries of the file, and what is wrong with their form."""
    found = json.loads(FILE.read_text())["kernels"]
    return found, [fault for entry in found for fault in form_faults(entry)]


def form_faults(entry):
    """Keys that are unknown or missing: a key that is misspelt must not be a check that is not made."""
    name = entry.get("kernel", "an entry")
    faults = [f"{name}: the key {key} is unknown" for key in sorted(entry.keys() - KEYS)]
    for outer, inner in KEYS_WITHIN.items():
        unknown = sorted(entry.get(outer, {}).keys() - inner)
        faults += [f"{name}: the key {key} of {outer} is unknown" for key in unknown]
    needed = {"kernel", "because"} | (HOT if entry.keys() & KEYS - COLD else set())
    if order := sorted(entry.keys() & {"ahead", "loads_before"}):
        if not entry.keys() & {"mma", "stores"}:
            faults.append(f"{name}: {order[0]} needs mma or stores, the work of the loop")
        if entry.get("region") == "kernel":
            faults.append(f"{name}: {order[0]} is of loops")
        if entry.get("loads", {}).get("own_loop"):
            faults.append(f"{name}: {order[0]} is of loads in the loop that has the work")
    if "min_average_bytes_in_flight" in entry and "bulk_bytes" in entry.get("loads", {}):
        faults.append(f"{name}: min_average_bytes_in_flight is not of bulk copies, whose waits are not known")
    return faults + [f"{name}: has no {key}" for key in sorted(needed - entry.keys())]


def of_architecture(value, architecture):
    """A number, or the one for this architecture of {"sm_80": ..., "sm_90a": ...}."""
    return value.get(architecture, 0) if isinstance(value, dict) else value


def check(kernel, entry):
    """(what to record of the kernel, what is wrong with it)."""
    resources = kernel.resources
    line = {"kernel": kernel.name, "architecture": kernel.architecture, "registers": resources.registers,
            "stack_bytes": resources.stack + resources.local, "spilled_bytes": kernel.compiled.spilled,
            "shared_bytes": resources.shared, "threads": resources.threads,
            "instructions": len(kernel.instructions)}  # fmt: skip
    faults = [f"{line[key]} {key}, may have {entry.get(key, 0)}" for key in ("stack_bytes", "spilled_bytes")
              if line[key] > entry.get(key, 0)]  # fmt: skip
    if resources.threads is None:
        return line, faults + ["has no launch bound, so how many blocks are resident is not known"]
    faults += barrier_faults(kernel, dynamic_shared_of(kernel, entry))
    if "budget" not in entry or kernel.architecture not in entry.get("architectures", [kernel.architecture]):
        return line, faults
    region = entry.get("region", "loop")
    way = hot_way(kernel.instructions, entry["markers"], region, work_of(entry))
    if way is None:
        return line, faults + [f"no {region} has one of {', '.join(entry['markers'])}"]

    loading = loading_way(kernel, entry, way)
    if loading is None:
        return line, faults + [f"no {entry['loads']['opcode']} on the hot way: the work is not known"]
    weights, of_work = work(kernel, entry, way, loading)
    if weights == 0:
        return line, faults + [f"{loading.count(BULK)} bulk copies on the way, bulk_bytes has another number"]
    faults += of_work
    working = entry.get("mma", {}).get("threads", resources.threads)
    per_unit = way.issued * working / weights
    line |= {"unit": entry["unit"], "markers": way.markers, "on_the_way": way.issued,
             "units": weights / working, "per_unit": round(per_unit, 2), "budget": entry["budget"],
             "at_bandwidth": entry["at_bandwidth"]}  # fmt: skip
    if per_unit > entry["budget"]:
        faults.append(f"{per_unit:.2f} instructions per {entry['unit']}, the budget is {entry['budget']}")
    faults += order_faults(kernel, entry, way)
    in_flight_of_loads, of_flight = bytes_in_flight_of(kernel, entry, loading)
    return line | in_flight_of_loads, faults + of_flight


def dynamic_shared_of(kernel, entry):
    """The bytes of shared memory that a launch asks for, for each block."""
    return of_architecture(entry.get("dynamic_shared_bytes", 0), kernel.architecture)


def barrier_faults(kernel, dynamic_shared):
    """Barriers that leave room for fewer blocks than all else."""
    barriers, blocks = kernel.compiled.barriers, resident_blocks(kernel.architecture, kernel.resources, dynamic_shared)
    if barriers * blocks <= BARRIERS:
        return []
    return [f"a block takes {barriers} of {BARRIERS} barriers, which limits a multiprocessor to {BARRIERS // barriers} "
            f"blocks, not {blocks}: is each bar_sync's number a constant?"]  # fmt: skip


def work_of(entry):
    """The opcode of what is done with the weights; None if the entry does not say."""
    return entry.get("mma", entry.get("stores", {})).get("opcode")


def loading_way(kernel, entry, way):
    """The way with the loads: the hot one, or the loop of the warps that only load, one pass for a step as well."""
    opcode = entry["loads"]["opcode"]
    if entry["loads"].get("own_loop"):
        way = hot_way(kernel.instructions, [opcode], work=opcode)
    return way if way is not None and way.count(opcode) else None


def work(kernel, entry, way, loading):
    """(weights that a block loads in a step, where what is done on the way does not fit them)."""
    threads = kernel.resources.threads
    loaded = weights_loaded(entry["loads"], loading, threads)
    faults = []
    if mma := entry.get("mma"):
        times = mma.get("times", 1)
        if isinstance(times, str):
            times = int(re.fullmatch(entry["kernel"], kernel.name)[times])
        shapes = [shape(one.opcode) for one in way.instructions if one.has(mma["opcode"])]
        multiplied = sum(one.weights(mma["weights"]) * mma.get("threads", threads) // one.threads for one in shapes)
        if multiplied != loaded * times:
            faults.append(f"loads {loaded:g} weights and multiplies {multiplied:g}, must multiply {loaded * times:g}"
                          f"{f' (each {times} times)' if times > 1 else ''}")  # fmt: skip
    if stores := entry.get("stores"):
        stored = threads * sum(width(one.opcode) for one in way.instructions if one.has(stores["opcode"]))
        if stored != loaded * stores["bytes_per_weight"]:
            faults.append(f"loads {loaded:g} weights and stores {stored} bytes, must store "
                          f"{stores['bytes_per_weight']} for each")  # fmt: skip
    return loaded, faults


def weights_loaded(loads, way, threads):
    """The weights that a block loads on the way."""
    codes = [one for one in way.instructions if one.has(loads["opcode"])]
    loaded = sum(width(one.opcode) * loads.get("threads", threads) for one in codes if not one.has(BULK))
    return (loaded + bulk_bytes(loads, way)) * loads["weights_per_byte"]


def bulk_bytes(loads, way):
    """The bytes of all bulk copies on the way: each as large, or a list of what each brings of the weights."""
    size, count = loads.get("bulk_bytes", 0), way.count(BULK)
    if isinstance(size, list):
        return sum(size) if len(size) == count else 0
    return size * count


def order_faults(kernel, entry, way):
    """Loads of the next step that are asked for too late, or waited for too early."""
    done = work_of(entry)
    faults = []
    ahead = of_architecture(entry.get("ahead"), kernel.architecture)
    if ahead and waits_too_early(way, ahead, done):
        faults.append(f"waits for {ahead} after the next step's have been asked for")
    if "loads_before" in entry and (late := behind(way, entry["loads"]["opcode"], entry["loads_before"], done)):
        faults.append(f"{len(late)} of {way.count(entry['loads']['opcode'])} loads of the next step come after one of "
                      f"{', '.join(entry['loads_before'])}, the first at {late[0].address:#x}")  # fmt: skip
    return faults


def bytes_in_flight_of(kernel, entry, way):
    """(bytes that one multiprocessor has asked global memory for, on the way; what is wrong)."""
    loads, threads = entry["loads"], kernel.resources.threads
    blocks = resident_blocks(kernel.architecture, kernel.resources, dynamic_shared_of(kernel, entry))
    of_thread = in_flight(way, loads["opcode"])
    bulk = bulk_bytes(loads, way) * loads.get("bulk_ahead", 1)
    of_block = loads.get("threads", threads)
    asked, all_loads = (blocks * (size * of_block + bulk) for size in (of_thread.asked, of_thread.all))
    line = {"blocks": blocks, "bytes_in_flight": asked, "all_bytes_in_flight": all_loads}
    average = round(blocks * of_thread.average_asked * of_block)
    if "bulk_bytes" not in loads:
        line["average_bytes_in_flight"] = average
    if count := prefetches(way):
        line["l2_prefetches"] = count
    faults = [] if blocks else [f"no block fits on a multiprocessor of {kernel.architecture}"]
    for key, found, where in (("min_bytes_in_flight", asked, ""), ("min_average_bytes_in_flight", average, " on average")):
        needed = of_architecture(entry.get(key, 0), kernel.architecture)
        if found < needed:
            faults.append(f"{found} bytes in flight on a multiprocessor{where}, must be at least {needed}")
    return line, faults
