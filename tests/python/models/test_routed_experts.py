"""Only the experts that tokens are routed to are read, forward and backward: the memory of the others is taken away."""

import ctypes
import faulthandler
import mmap
import multiprocessing
import os
import resource
import signal
import sys
from multiprocessing import forkserver

import nibble
import pytest
import torch
import transformers
from nibble.nn import ExpertWeights
from tiny_models import FP32, convert, save

if transformers.__version__ < "5":
    pytest.skip("transformers 4 has a module for each expert", allow_module_level=True)

NO_ACCESS = 0  # PROT_NONE
libc = ctypes.CDLL(None, use_errno=True)


def take_memory_of(weight):
    """Whoever reads a code of the weight now is killed by SIGSEGV."""
    for tensor in weight.parameters():
        if tensor.dtype not in (torch.uint8, torch.int8):
            continue
        memory = mmap.mmap(-1, tensor.numel())
        tensor.data = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
        assert libc.mprotect(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel()), NO_ACCESS) == 0


def forward_and_backward(model, ids):
    x = model.get_input_embeddings()(ids).detach().requires_grad_()
    model(inputs_embeds=x).logits.sum().backward()
    assert torch.isfinite(x.grad).all()


def routed_experts(model, ids):
    """The experts that the router of each layer chooses, by the name of the layer's experts: what the module that holds
    them is called with."""
    routed, hooks = {}, []

    def listen(name):
        def hook(module, arguments):
            routed[name] = {int(e) for a in arguments if a.dtype == torch.int64 for e in a.unique()}

        return hook

    for name, module in model.named_modules():
        if any(isinstance(child, ExpertWeights) for child in module.children()):
            hooks.append(module.register_forward_pre_hook(listen(name)))
    forward_and_backward(model, ids)
    for hook in hooks:
        hook.remove()
    return routed


def pass_without(directory, also_one_that_is_routed_to):
    """Takes the memory of the experts that a token is not routed to, then runs the model on it."""
    torch.set_num_threads(1)
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    model = nibble.load(directory, **FP32).eval()
    ids = torch.tensor([[7]])  # one token: more would need all experts of such small models
    routed = routed_experts(model, ids)
    assert routed
    chosen = []
    for layer, experts in routed.items():
        for weights in model.get_submodule(layer).children():
            if not isinstance(weights, ExpertWeights):
                continue
            assert 0 < len(experts) < len(weights), "the test needs experts of both kinds"
            chosen += [weights.experts[e] for e in experts]
            for other in set(range(len(weights))) - experts:
                take_memory_of(weights.experts[other])
    if also_one_that_is_routed_to:
        take_memory_of(chosen[-1])
    forward_and_backward(model, ids)


@pytest.fixture(scope="module")
def exit_code():
    """The exit code of pass_without() in a process of its own: the signal that killed it as a negative number. The
    process is forked from one that has only imported this module: torch refuses to run autograd in a process forked
    from one in which autograd has started its threads, as other tests here make it do."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])

    def run(*arguments):
        process = processes.Process(target=pass_without, args=arguments)
        process.start()
        process.join()
        return process.exitcode

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Python 3.11 preloads from there alone
        forkserver.ensure_running()
    return run


@pytest.mark.parametrize("to", ["nf4", "int8"])
@pytest.mark.parametrize("name", ["Qwen3Moe", "Mixtral", "GptOss", "DeepseekV3"])
def test_other_experts_are_not_read(tmp_path, exit_code, name, to):
    save(tmp_path / "plain", name)
    directory = convert(tmp_path / "plain", tmp_path / to, "--to", to, "--experts", to, "--allow-nibble-only")
    assert exit_code(directory, False) == 0
    assert exit_code(directory, True) == -signal.SIGSEGV  # reading is noticed
