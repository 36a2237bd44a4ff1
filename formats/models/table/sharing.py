"""The lines of the table, with what one has of another replaced by a reference."""

import json

ROLES = ("linear", "conv1d", "kept", "tied", "embedding", "expert", "other")


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def grouped(patterns):
    """Patterns as one string each per parent: a.b.{c,d}."""
    parents = {}
    for pattern in sorted(patterns):
        parent, _, leaf = pattern.rpartition(".")
        parents.setdefault(parent, []).append(leaf)
    return sorted(
        (parent + "." if parent else "") + (leaves[0] if len(leaves) == 1 else "{" + ",".join(leaves) + "}")
        for parent, leaves in parents.items()
    )


def flat(entry):
    """Its groups of patterns, as (role, why, group)."""
    found = set()
    for role in ROLES:
        lists = entry.get(role, {})
        for why, groups in lists.items() if isinstance(lists, dict) else [(None, lists)]:
            found.update((role, why, group) for group in groups)
    return found


def unflat(groups):
    entry = {}
    for role in ROLES:
        own = sorted((why or "", group) for r, why, group in groups if r == role)
        if own and role in ("kept", "tied"):
            entry[role] = {w: [g for why, g in own if why == w] for w in sorted({why for why, _ in own})}
        elif own:
            entry[role] = [group for _, group in own]
    return entry


def shared(lines):
    """The lines, with what one has of another replaced by a reference. A reference never leads to another.

    same_as: all of that line. base, at, without: its groups below the module `at`, but for some; own groups add to
    them. loads_as: its renames and merges.
    """
    result, roots, rules, seen = {}, {}, {}, {}
    for name in sorted(lines, key=lambda n: (len(compact(lines[n])), n)):
        entry = {k: v for k, v in lines[name].items() if k != "architecture"}
        text = compact(entry)
        if text in seen:
            result[name] = {"architecture": name, "same_as": seen[text]}
            continue
        seen[text] = name
        groups = flat(entry)
        best = (len(compact(unflat(groups))), "", "", groups, [])
        for root, other in roots.items():
            for at in {"", entry["prefix"], "model", "language_model", "model.language_model", "text_model"}:
                below = {(r, w, f"{at}.{g}" if at else g) for r, w, g in other}
                extra = below - groups
                if 3 * len(extra) > len(below):
                    continue
                own = groups - below
                without = sorted({g for _, _, g in extra})
                # `without` goes by the group alone
                own |= {g for g in groups & below if g[2] in without}
                size = len(compact(unflat(own))) + len(compact(without)) + len(root) + len(at) + 20
                if (size, root, at) < best[:3]:
                    best = (size, root, at, own, without)
        _, root, at, own, without = best
        line = {"architecture": name, "prefix": entry["prefix"]}
        line |= {key: entry[key] for key in ("blocker", "fp32", "fp32_strict", "parts") if key in entry}
        if root and best[0] < 0.8 * len(compact(unflat(groups))):
            line["base"] = root
            line |= {"at": at} if at else {}
            line |= {"without": without} if without else {}
            line |= unflat(own)
        else:
            roots[name] = groups
            line |= unflat(groups)
        loading = {k: entry[k] for k in ("renames", "merges") if k in entry}
        if loading:
            text = compact(loading)
            line |= {"loads_as": rules[text]} if text in rules else loading
            rules.setdefault(text, name)
        result[name] = line
    return [result[name] for name in sorted(result)]
