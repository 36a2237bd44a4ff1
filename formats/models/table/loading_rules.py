"""From the names in files to those in the model: the renames and merges of loading, as expressions of RE2."""

import re

from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    get_model_conversion_mapping,
)
from transformers.core_model_loading import (
    GroupWeightRename,
    Inkling2IndexOffsetWeightRename,
    WeightConverter,
)


def without_lookaround(pattern):
    """(pattern without its negative lookarounds, pattern that finds what they exclude or None).

    RE2 has none. "a(?!b)c" becomes "ac" unless "abc": the same where the pattern occurs once in a name, which
    the self-check of every class's names verifies.
    """
    spans = []
    for found in re.finditer(r"\(\?<?!", pattern):
        depth, i = 0, found.start()
        while True:
            if pattern[i] == "\\":
                i += 1
            elif pattern[i] == "(":
                depth += 1
            elif pattern[i] == ")":
                depth -= 1
                if depth == 0:
                    break
            i += 1
        spans.append((found.start(), found.end(), i))
    if not spans:
        return pattern, None
    plain, excluded = pattern, []
    for start, _, end in reversed(spans):
        plain = plain[:start] + plain[end + 1 :]
    for chosen in spans:
        text = pattern
        for start, body, end in reversed(spans):
            kept = "(?:" + pattern[body:end] + ")" if (start, body, end) == chosen else ""
            text = text[:start] + kept + text[end + 1 :]
        excluded.append(text)
    return plain, "|".join(excluded)


def bounded(pattern):
    """A pattern as core_model_loading compiles it: one that ends in a letter or digit ends on a word boundary."""
    pattern = pattern.replace("*.", r".*\.")
    return pattern + r"\b" if re.search(r"[a-zA-Z0-9]$", pattern) else pattern


def rule_of(transform, sources, targets):
    rule = {}
    plain, excluded = zip(*(without_lookaround(bounded(s)) for s in sorted(sources, key=lambda s: -len(s))))
    rule["from"] = plain[0] if len(plain) == 1 else "|".join(f"(?:{p})" for p in plain)
    rule["to"] = targets
    if any(excluded):
        rule["unless"] = "|".join(e for e in excluded if e)
    if transform.scope_prefix is not None:
        rule["scope"] = transform.scope_prefix
    return rule


def rules_of(model, complain):
    """(renames, merges) as the table stores them, in the order in which loading applies them."""
    legacy = {tuple(t.source_patterns) for t in get_checkpoint_conversion_mapping("legacy")}
    renames, merges = [], []
    for transform in get_model_conversion_mapping(model):
        if tuple(transform.source_patterns) in legacy:
            continue  # gamma, beta and the weight norm of convolutions: never a matrix
        if isinstance(transform, WeightConverter):
            merges.append(rule_of(transform, transform.source_patterns, transform.target_patterns))
        elif isinstance(transform, Inkling2IndexOffsetWeightRename):
            complain(f"rename with an index offset left out: {transform.source_patterns}")
        elif isinstance(transform, GroupWeightRename):
            # All at once if the first is found anywhere: the last first, so that no name is renamed twice.
            pairs = list(zip(transform.source_patterns, transform.target_patterns))
            when = {"when": without_lookaround(bounded(pairs[0][0]))[0]}
            renames += [rule_of(transform, [source], target) | when for source, target in reversed(pairs)]
        else:
            renames.append(rule_of(transform, transform.source_patterns, transform.target_patterns[0]))
    return renames, merges
