import unittest

import by_hand
import run
from budgets import Kernel
from compilation import Compiled
from recording import code
from resources import Resources

COLD = {"kernel": "Cold<.>", "because": "a test"}
(WRITTEN,) = by_hand.KERNELS.values()


def kernel(name, *texts):
    return Kernel(name, "sm_90a", code(*texts), Resources(32, 0, 0, 0, 256), Compiled(0, 0))


class Examined(unittest.TestCase):
    def faults(self, *entries):
        return run.examined([kernel("Cold<1>", "EXIT")], list(entries))[1]

    def test_each_kernel_fits_one_entry_and_each_entry_a_kernel(self):
        self.assertEqual(self.faults(COLD), [])
        self.assertIn("fits 0 entries", self.faults()[0])
        self.assertIn("fits 2 entries", self.faults(COLD, COLD | {"kernel": "Cold<1>"})[0])
        self.assertIn("Warm fits no kernel", self.faults(COLD, COLD | {"kernel": "Warm"})[0])


class HandWritten(unittest.TestCase):
    def faults(self, found, written):
        lines = [{"kernel": one.name, "architecture": one.architecture, "instructions": 1} for one in found]
        return run.compare_with_hand_written(found, lines, written), lines

    def test_equal_unequal_and_not_compared(self):
        found, key = [kernel(WRITTEN, "EXIT")], ("sm_90a", WRITTEN)
        faults, lines = self.faults(found, {key: code("EXIT")})
        self.assertEqual((faults, lines[0]["by_hand"]), ([], 1))
        self.assertIn("EXIT 1, by hand 2", self.faults(found, {key: code("EXIT", "EXIT")})[0][0])
        self.assertIn("was not compared", self.faults([kernel("Cold<1>", "EXIT")], {})[0][0])
        more = {key: code("EXIT"), ("sm_90a", "Other"): []}
        self.assertIn("Other, sm_90a: was not compared", self.faults(found, more)[0][0])
