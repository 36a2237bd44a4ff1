"""Models of transformers with quantized weights (docs/loading.md)."""
