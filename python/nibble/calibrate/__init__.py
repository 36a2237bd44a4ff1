"""python -m nibble.calibrate: what the weights of a model are multiplied by, measured on a text."""
