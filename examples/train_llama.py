"""Trains a small Llama on the manual of Perl, which is in the Debian package perl-doc.

    train_llama.py --out DIR

It has 4 million weights and sees a million tokens: eight minutes on two cores that other work uses, too. DIR becomes a
model directory as transformers would save it (fp32 safetensors, its own tokenizer), with two files beside it:
`test.txt`, the files of the manual that were not trained on, and `training.json`, the options and the course of the
loss. On one machine a seed always gives the same weights. A GPU is used if there is one; --hidden, --layers, --steps
and --batch make the model larger.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

PACKAGE = "perl-doc"
HELD_OUT = 16  # every sixteenth file of the manual is for testing
VOCABULARY = 2048
CONTEXT = 256  # tokens


def manual():
    """The text of each file, the package installed if it is not there yet."""
    pages = sorted(pathlib.Path("/usr/share/perl").glob("*.*.*/pod/perl*.pod"))
    if len(pages) < 100:  # perl itself brings one or two
        print(f"installing the Debian package {PACKAGE} for its text (8 MB)", file=sys.stderr)
        install = ["apt-get", "install", "-y", "--no-install-recommends", PACKAGE]
        if os.geteuid() != 0:
            install.insert(0, "sudo")
        try:
            if subprocess.run(install, stdout=subprocess.DEVNULL).returncode != 0:
                subprocess.run([*install[:-5], "apt-get", "update"], check=True, stdout=subprocess.DEVNULL)
                subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"error: {PACKAGE} can't be installed: {error}")
        pages = sorted(pathlib.Path("/usr/share/perl").glob("*.*.*/pod/perl*.pod"))
    return [page.read_text(encoding="utf-8", errors="replace") for page in pages]


def package_version():
    done = subprocess.run(["dpkg-query", "-W", "-f=${Version}", PACKAGE], capture_output=True, text=True)
    return done.stdout or "unknown"


def plain(page):
    """Prose out of Perl's markup: what an editor would show of a page. F<file> becomes file, and so on."""
    page = re.sub(r"^=(encoding|begin|end|for|cut|over|back|pod)\b.*\n", "", page, flags=re.M)
    page = re.sub(r"^=(head\d|item) *", "", page, flags=re.M)
    page = re.sub(r"\b[BCFILSXZ]<([^<>\n]*)>", r"\1", page)
    return re.sub(r"\n{3,}", "\n\n", page)


def pages():
    """(the pages to train on, those held out)"""
    texts = [plain(page) for page in manual()]
    held_out = slice(HELD_OUT // 2, None, HELD_OUT)
    test = texts[held_out]
    del texts[held_out]
    return texts, test


def make_tokenizer(texts, vocabulary=VOCABULARY):
    """Byte-level BPE, which starts each text with <s>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<s>", "</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                   model_max_length=CONTEXT)  # fmt: skip


def make_model(hidden, mlp, layers, tokenizer):
    config = LlamaConfig(hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
                         num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 128),
                         vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, tie_word_embeddings=False,
                         bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)  # fmt: skip
    return LlamaForCausalLM(config)


def rate(step, steps, peak):
    """The learning rate: up for the first twentieth, then down to a tenth along a cosine."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def loss_of(model, batch):
    logits = model(batch, use_cache=False).logits[:, :-1].float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(model, tokens, options, device):
    """The loss on the way: [(step, mean of the steps before it)]."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(options.seed)
    history, recent, start = [], [], time.perf_counter()
    for step in range(options.steps):
        offsets = torch.randint(len(tokens) - CONTEXT, (options.batch,), generator=generator)
        batch = torch.stack([tokens[offset : offset + CONTEXT] for offset in offsets])
        batch[:, 0] = model.config.bos_token_id
        for group in optimizer.param_groups:
            group["lr"] = rate(step, options.steps, options.learning_rate)
        loss = loss_of(model, batch.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        if (step + 1) % max(1, options.steps // 20) == 0:
            history.append((step + 1, sum(recent) / len(recent)))
            recent.clear()
            print(f"step {step + 1} of {options.steps}: loss {history[-1][1]:.4f}, "
                  f"{time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip
    return history


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the model directory to write")
    parser.add_argument("--hidden", type=int, default=256, help="width, a multiple of 128 [256]")
    # By default rows are whole blocks of 64 weights, as in every large model. 768 makes them whole blocks of 128.
    parser.add_argument("--mlp", type=int, help="width of the MLP [2.75 times --hidden]")
    parser.add_argument("--layers", type=int, default=4, help="[4]")
    parser.add_argument("--steps", type=int, default=1000, help="[1000]")
    parser.add_argument("--batch", type=int, default=4, help=f"windows of {CONTEXT} tokens in a step [4]")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="its peak [0.002]")
    parser.add_argument("--seed", type=int, default=0, help="[0]")
    options = parser.parse_args()
    if options.hidden % 128 or options.hidden < 128:
        parser.error(f"--hidden {options.hidden}: not a multiple of 128")
    options.mlp = options.mlp or options.hidden * 11 // 4

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    texts, test = pages()
    tokenizer = make_tokenizer(texts)
    tokens = torch.tensor(tokenizer("".join(texts), add_special_tokens=False)["input_ids"])

    torch.manual_seed(options.seed)
    model = make_model(options.hidden, options.mlp, options.layers, tokenizer).to(device)
    weights = sum(p.numel() for p in model.parameters())
    print(f"{len(texts)} files of {PACKAGE} {package_version()}, {len(tokens)} tokens; {len(test)} files held out; "
          f"{weights} weights, {options.steps * options.batch * CONTEXT} tokens to see, on {device}")  # fmt: skip
    start = time.perf_counter()
    history = train(model, tokens, options, device)

    model.cpu().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    (options.out / "test.txt").write_text("".join(test), encoding="utf-8")
    recipe = {name: value for name, value in vars(options).items() if name != "out"}
    recipe |= {"text": f"{PACKAGE} {package_version()}", "train_tokens": len(tokens), "weights": weights,
               "device": device, "seconds": round(time.perf_counter() - start), "loss": history}  # fmt: skip
    (options.out / "training.json").write_text(json.dumps(recipe, indent=1) + "\n")


if __name__ == "__main__":
    main()
