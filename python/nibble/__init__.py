"""nibble from Python. `python -m nibble.evaluate` measures what a quantized model lost."""
