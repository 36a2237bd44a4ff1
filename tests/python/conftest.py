"""Settings for all tests of the Python package."""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

try:
    import torch
except ImportError:  # the tests that need numpy alone
    pass
else:
    if hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)  # the models are tiny: threads would only wait for each other
    else:  # it is the folder python/torch, which is on PYTHONPATH; now pytest.importorskip() skips
        sys.modules["torch"] = None
