"""Whether products are right, for the scripts that use torch."""

import math

import torch


def rms(tensor):
    return tensor.square().mean().sqrt().item()


def fault(result, x, weight, bias=None):
    """None if `result` is x W^T + bias, for W in fp64; otherwise a text with the errors, which are too large.

    In 16 bits, twice the error is allowed of what is larger: torch's product with W in that type, or rounding the exact
    product. In fp32, twice what sums of k products have whose roundings go in random directions (sqrt(k / 6) eps / 2
    times the root mean square of the sums' terms, and one rounding at the end). Both hold for the root mean square; for
    fp32, the largest error may be eight times that.
    """
    x64, bias64 = x.double(), 0 if bias is None else bias.double()
    exact = x64 @ weight.T + bias64
    error = result.double() - exact
    eps = torch.finfo(result.dtype).eps
    if result.dtype == torch.float32:
        size = (x64.square() @ weight.T.square() + bias64**2).mean().sqrt().item()
        typical = eps / 2 * size * (1 + math.sqrt(x.shape[-1] / 6))
        largest = 8 * typical
    else:
        peer = torch.nn.functional.linear(x, weight.to(x.dtype), bias).double() - exact
        typical = max(eps / 4 * rms(exact), rms(peer))
        largest = max(eps / 2 * exact.abs().max().item(), peer.abs().max().item())
    found, found_largest = rms(error), error.abs().max().item()
    if found <= 2 * typical and found_largest <= 2 * largest:
        return None
    return f"error {found:.3g}, largest {found_largest:.3g}; {2 * typical:.3g} and {2 * largest:.3g} are allowed"
