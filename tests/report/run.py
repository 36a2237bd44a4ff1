#!/usr/bin/env python3
"""Opens reports in a headless Chromium: what they show is what their JSON says, and names from files stay text.

  tests/report/run.py [BIN]                      BIN: where nibble_report_page is, build/release/tests by default
  tests/report/run.py --screenshots DIR          pictures at two widths, light and dark, and as it prints, too
  tests/report/run.py --json FILE                the checks of figures for a document of `nibble measure --json`
  tests/report/run.py --only hostile

cmake/install_dependencies.sh --browser installs the browser.

One file, because all tests are run in one browser, whose start takes longer than most of them. Documents, pages and the
browser are modules beside it.
"""

import argparse
import csv
import io
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import documents
from browser import Browser
from page import FIGURES, Page, equal, number, value_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
MADE = {"date": "2026-11-22 10:00:00 UTC", "command": "nibble measure '<b>x</b>' nf4 --to int8"}


def check_figures(page):
    document = page.document
    tests, reference = document["tests"], document["reference"]
    equal(json.loads(page.run("document.getElementById('data').textContent")), document, "data")
    rows = page.cells("#totals")
    equal(len(rows), len(tests), "tests")
    for t, (row, test) in enumerate(zip(rows, tests)):
        for figure in FIGURES:
            of = test["total" if figure == "bits_per_weight" else test["headline"]]
            equal(row[figure][0], value_of(figure, of), f"{figure} of test {t}")
        equal(row["bytes"][0], test["bytes"], f"size of test {t}")
        headline = test[test["headline"]]
        equal(row["figures_of"][0], headline["tensors"], f"tensors that the figures of test {t} are of")
        equal(row["figures_of"][1], f"{headline['tensors']} {test['headline']}", "those tensors")
        if headline["sqnr_db"] is not None:
            equal(row["sqnr_db"][1], f"{headline['sqnr_db']:.2f} dB", "SQNR as a text")
            equal(row["bits_per_weight"][1], f"{test['total']['bits_per_weight']:.3f}", "bits per weight as a text")
    shown = range(min(6, len(tests)))
    for part, key in (("layers", "layer"), ("kinds", "kind")):
        rows = page.cells(f"#{key}-table")
        names = list(dict.fromkeys(group[key] for t in shown for group in tests[t][part]))
        equal(len(rows), len(names), part)
        for name, row in zip(sorted(names) if key == "layer" else names, rows):
            for t in shown:
                group = next((group for group in tests[t][part] if group[key] == name), None)
                for figure in ("rel_rmse", "sqnr_db", "bits_per_weight"):
                    equal(row[f"{figure}@{t}"][0], value_of(figure, group), f"{figure} of {key} {name}, test {t}")
    order = page.run("order")
    equal(sorted(order), list(range(len(reference["tensors"]))), "tensors of the table")
    for i, row in zip(page.shown_tensors(), page.cells("#grid")):
        for figure in FIGURES:
            equal(row[figure][0], value_of(figure, tests[0]["tensors"][i]), f"{figure} of tensor {i}")


def test_figures(page):
    for t in (0, len(page.document["tests"]) - 1):
        page.open(f"test={t}&exact=1" if t else "exact=1")
        if t == 0:
            check_figures(page)
        results, reference = page.document["tests"][t]["tensors"], page.document["reference"]["tensors"]
        for metric in FIGURES:
            page.run(f"change({{metric: '{metric}'}})")
            cells = "document.querySelectorAll('#map-cells .cell')"
            shown = page.run(f"[...{cells}].map((cell) => cell.dataset.value ?? null)")
            expected, kinds = [], list(dict.fromkeys(x["kind"] for x in reference if x["layer"] is not None))
            layers = sorted({x["layer"] for x in reference if x["layer"] is not None})
            for kind in kinds:
                for layer in layers:
                    of = [results[i] for i, x in enumerate(reference) if (x["kind"], x["layer"]) == (kind, layer)]
                    assert len(of) == 1
                    value = value_of(metric, of[0])
                    expected.append(None if value == math.inf else value)
            equal([number(value) for value in shown], expected, f"map of {metric}, test {t}")
        page.is_sound()


def test_tensor(page):
    tests, tensor = page.document["tests"], 7
    page.open(f"tensor={tensor}")
    equal(page.texts("#tensor-name"), [page.document["reference"]["tensors"][tensor]["name"]], "name")
    rows = page.run("""[...document.querySelectorAll('#tensor-figures tbody tr')].map((row) =>
      [...row.querySelectorAll('td')].map((cell) => [cell.dataset.figure, cell.dataset.value ?? cell.textContent]))""")
    figures = {row[0][0]: [value for _, value in row] for row in rows}
    for figure in FIGURES:
        equal([number(value) for value in figures[figure]],
              [value_of(figure, test["tensors"][tensor]) for test in tests], figure)
    equal(figures["codec"], [test["tensors"][tensor]["codec"] for test in tests], "codec")
    # The charts hold what the document says: of each code its share, of each bin too.
    result = tests[0]["tensors"][tensor]
    use = page.run("charts.get('code-chart').data.datasets[0].data")
    assert all(math.isclose(shown, uses / sum(result["code_use"])) for shown, uses in zip(use, result["code_use"])), use
    labels, bins = page.run("[charts.get('error-chart').data.labels, charts.get('error-chart').data.datasets[0].data]")
    equal(labels[0], "0", "first bin")
    total = sum(count for _, count in result["error_histogram"])
    shown = sorted(value for value in bins if value > 0)
    expected = sorted(count / total for _, count in result["error_histogram"] if count)
    assert len(shown) == len(expected) and all(map(math.isclose, shown, expected)), (shown, expected)
    page.run("byId('next').click()")
    equal(page.run("state.tensor"), page.run(f"order[order.indexOf({tensor}) + 1]"), "next tensor")
    page.is_sound()


def test_verdict(page):
    """The text of the document comes first, and leads to the worst tensor."""
    page.open()
    tests = page.document["tests"]
    shown = page.texts("#verdicts li")
    equal(len(shown), sum(len(test["verdicts"]) for test in tests), "verdicts")
    for text, test in zip(shown, tests):
        assert test["verdicts"][0]["text"].split("; worst: ")[0] in text, (text, test["verdicts"])
        assert f"{test['kept']['tensors']} kept as they are" in text, text
    first = page.run("[byId('verdicts'), byId('totals')].map((one) => one.getBoundingClientRect().top)")
    assert first[0] < first[1], "the verdict is not above the figures"
    page.run("document.querySelector('#verdicts button').click()")
    equal(page.run("state.tensor"), tests[0]["verdicts"][0]["worst"], "worst tensor")
    page.is_sound()


def test_headline(page):
    """Embeddings that were cast are in no figure of the quantized weights; all together are a figure apart."""
    page.open()
    check_figures(page)
    test = page.document["tests"][0]
    assert test["cast"]["tensors"] == 1 and test["quantized"]["sqnr_db"] < test["total"]["sqnr_db"]
    expected = f"; 1 cast, {test['kept']['tensors']} kept as they are; SQNR of all {test['total']['tensors']}: "
    assert expected + f"{test['total']['sqnr_db']:.2f} dB" in page.texts("#verdicts")[0], page.texts("#verdicts")
    page.is_sound()


def test_lost_numbers(page):
    """A tensor is broken if it has lost a number, however many infinities there are."""
    page.open("tensor=0")
    assert "1 tensor has NaN or infinite values where the reference has numbers" in page.texts("#findings")[0]
    assert "0, 1; 1 beyond fp32" in "".join(page.texts("#tensor-reference")), page.texts("#tensor-reference")
    for part in ("#tensor-figures", "#layer-table tbody tr:first-child", "#totals"):
        assert "exact" not in "".join(page.texts(part)), (part, page.texts(part))
    assert "0, 1; 1 had a number" in "".join(page.texts("#tensor-figures")), page.texts("#tensor-figures")
    for tensor, exact in ((1, True), (2, False)):
        page.run(f"change({{tensor: {tensor}}})")
        assert ("exact" in "".join(page.texts("#tensor-figures"))) == exact, (tensor, page.texts("#tensor-figures"))
    page.is_sound()


def test_spread(page):
    """Every converted tensor is in one bin; every byte is in the bar of its kind and codec."""
    page.open()
    tests, reference = page.document["tests"], page.document["reference"]["tensors"]
    labels, sets = page.run("(({labels, datasets}) => [labels, datasets.map((one) => one.data)])"
                            "(charts.get('spread-chart').data)")
    step = labels[1] - labels[0]
    for counts, test in zip(sets, tests, strict=True):
        values = [result["sqnr_db"] for result in test["tensors"] if result and result["converted"]]
        equal(sum(counts), len(values), "tensors in the histogram")
        for label, counted in zip(labels, counts):
            equal(counted, sum(label <= value < label + step for value in values), f"tensors from {label} dB")
    kinds, codecs, sums = page.run("(({labels, datasets}) => [labels, datasets.map((one) => one.label),"
                                   " datasets.map((one) => one.data)])(charts.get('bytes-chart').data)")
    for codec, row in zip(codecs, sums):
        for kind, shown in zip(kinds, row):
            equal(shown, sum(result["bytes"] for tensor, result in zip(reference, tests[0]["tensors"])
                             if result and (tensor["kind"], result["codec"]) == (kind, codec)), f"bytes of {kind}")
    equal(sum(map(sum, sums)), tests[0]["bytes"], "bytes of all kinds")
    page.run("change({test: 1})")
    equal(sum(map(sum, page.run("charts.get('bytes-chart').data.datasets.map((one) => one.data)"))),
          tests[1]["bytes"], "bytes of another test")
    page.is_sound()


def test_links(page):
    """A name is an anchor; the view names its tensor, not a number that another report has for another tensor."""
    tensors = page.document["reference"]["tensors"]
    name = tensors[40]["name"]
    page.open(name)
    equal(page.texts("#tensor-name"), [name], "anchor")
    top = page.run("byId('tensor').getBoundingClientRect().top")
    assert 0 <= top < 700, f"the tensor is not in sight, but at {top}"
    page.go_to(tensors[12]["name"])
    equal(page.run("state.tensor"), 12, "another anchor")
    page.run("change({tensor: 77, metric: 'rmse'})")
    equal(page.run("location.hash"), f"#metric=rmse&tensor={tensors[77]['name']}", "view")
    page.open(f"metric=rmse&tensor={tensors[77]['name']}")
    equal(page.run("[state.tensor, state.metric]"), [77, "rmse"], "view that was sent")
    page.run("byId('tensor-link').click()")
    page.wait(50)
    equal(page.run("[location.hash, state.tensor]"), ["#tensor=" + tensors[77]["name"], 77], "link of a tensor")
    page.is_sound()


def test_saving(page):
    """What buttons save: the table as it is shown, and the charts on the colour of the page."""
    page.open("sort=rmse&filter=q_proj")
    page.run("window.saved = [], saveFile = (name, url) => void saved.push([name, url])")
    page.run("byId('save-csv').click()")
    equal(page.run("saved[0][0]"), "tensors.csv", "name")
    assert page.run("saved[0][1]").startswith("blob:")
    rows = list(csv.reader(io.StringIO(page.run("csvText()"))))
    order = page.run("order")
    equal(len(rows), 1 + len(order), "rows")
    results = page.document["tests"][0]["tensors"]
    for row, i in zip(rows[1:], order):
        found = dict(zip(rows[0], row))
        equal(found["name"], page.document["reference"]["tensors"][i]["name"], "name")
        equal(float(found["rmse"]), results[i]["rmse"], "all digits")
    cells = {"=1+1": "'=1+1", "+1": "'+1", "-x": "'-x", "@a": "'@a", "\tb": "'\tb", "\r": '"\'\r"', "a,b": '"a,b"',
             'q"': '"q"""', "plain": "plain"}
    for text, cell in cells.items():
        equal(page.run(f"csvCell({json.dumps(text)})"), cell, "cell")
    equal(page.run("[csvCell(-1.5), csvCell(NaN), csvCell(Infinity)]"), ["-1.5", "", "inf"], "numbers")
    for dark in (False, True):
        page.open(dark=dark)
        page.run("window.saved = [], saveFile = (name, url) => void saved.push([name, url])")
        page.run("document.querySelector('#spread-chart .save').click()")
        equal(page.run("saved[0][0]"), "spread-chart.png", "name")
        corner = page.run("""(async () => {
          const image = new Image(); image.src = saved[0][1]; await image.decode();
          const canvas = document.createElement('canvas'); canvas.width = image.width; canvas.height = image.height;
          const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);
          return [...context.getImageData(0, 0, 1, 1).data];
        })()""")
        equal(corner, [0x17, 0x1e, 0x26, 255] if dark else [255, 255, 255, 255], "corner of the picture")
        equal(page.run("document.querySelectorAll('canvas').length ==="
                       " document.querySelectorAll('.chart .save').length"), True, "a button for each chart")
    page.is_sound()


def test_heat_map_colours(page):
    """What is worse is darker, in both themes; differences that mean nothing look alike."""
    brightness = r"""[...document.querySelectorAll('#map-cells .cell[data-value]')].filter((cell) =>
      cell.style.background).map((cell) => [Number(cell.dataset.value),
      cell.style.background.match(/\d+/g).map(Number).reduce((a, b) => a + b, 0)])"""
    seen = []
    for dark in (False, True):
        page.open("metric=sqnr_db", dark=dark)
        cells = sorted(page.run(brightness))
        assert cells[0][1] < cells[-1][1], f"dark: {dark}: the worst is brighter than the best: {cells}"
        seen.append(cells)
    equal(seen[0], seen[1], "colours of both themes")
    values = [value for value, _ in seen[0]]
    assert max(values) - min(values) < 3, values
    limits = page.run("[...document.querySelectorAll('#map-legend .ticks span')].map((one) => Number(one.textContent))")
    assert abs(max(limits) - min(limits) - 3) < 0.11, f"the colours span {limits} dB"
    page.is_sound()


def test_columns(page):
    """At 1280 pixels no table hides a column; the others are there when asked for."""
    page.open(width=1280)
    cut = page.run("""[...document.querySelectorAll('.scroll')].filter((one) => !one.closest('details:not([open])') &&
      one.scrollWidth > one.clientWidth).map((one) => [one.id, one.scrollWidth, one.clientWidth])""")
    equal(cut, [], "tables that are wider than their box")
    few = page.run("document.querySelectorAll('#grid thead th').length")
    page.run("byId('all-columns').click()")
    assert page.run("document.querySelectorAll('#grid thead th').length") > few + 8
    equal(page.run("location.hash"), "#all=1", "view")
    page.open("sort=kurtosis")
    equal(page.run("document.querySelector('#grid th[aria-sort]').dataset.column"), "kurtosis", "sorted by a column")
    page.is_sound()


def test_made(page):
    """Date and command, which are not in the document."""
    page.open()
    equal(page.texts("#made"), [MADE["date"] + ": " + MADE["command"]], "how it was made")
    page.is_sound()


def test_sort_and_filter(page):
    reference, results = page.document["reference"]["tensors"], page.document["tests"][0]["tensors"]
    page.open("sort=rmse&filter=Q_PROJ%20layers.1")
    expected = [i for i, tensor in enumerate(reference) if "q_proj" in tensor["name"] and "layers.1" in tensor["name"]]
    expected.sort(key=lambda i: -results[i]["rmse"])
    equal(page.run("order"), expected, "rows from the fragment")
    equal(page.texts("#found"), [f"{len(expected)} of {len(reference)} tensors"], "count")
    equal(page.run("byId('filter').value"), "Q_PROJ layers.1", "field")

    # By hand: the filter is typed, the header clicked, the kind chosen.
    page.open()
    page.run("byId('filter').focus()")
    page.browser.type("k_proj")
    expected = [i for i, tensor in enumerate(reference) if "k_proj" in tensor["name"]]
    equal(sorted(page.run("order")), expected, "typed filter")
    header = "document.querySelector('#grid th[data-column=name] button')"
    page.run(f"{header}.focus(), {header}.click()")
    equal(page.run("order"), expected, "by name, where layer 2 is before layer 10")
    equal(page.run(f"{header}.closest('th').getAttribute('aria-sort')"), "ascending", "aria-sort")
    equal(page.run(f"document.activeElement === {header}"), True, "focus stays on the header")
    page.browser.key("Enter", 13)
    equal(page.run("order"), expected[::-1], "descending, by the keyboard")
    equal(page.run(f"{header}.closest('th').getAttribute('aria-sort')"), "descending", "aria-sort")
    equal(page.run("document.querySelectorAll('#grid th[aria-sort]').length"), 1, "sorted columns")
    equal(page.run("location.hash"), "#sort=name&filter=k_proj", "the view as a fragment")

    # A bookmark of another view, then back.
    page.go_to("sort=weights&dir=asc&kind=mlp.up_proj&codec=nf4")
    expected = [i for i, tensor in enumerate(reference) if tensor["kind"] == "mlp.up_proj"]
    equal(page.run("order"), expected, "kind and codec")
    page.go_to("filter=nothing-has-this-name")
    equal(page.texts("#grid tbody td"), ["No tensor matches."], "no match")

    # Every column sorts both ways, and what is not there is last.
    page.open("test=3")
    for column in page.run("columns.filter((one) => one.value).map((one) => one.key)"):
        for way in ("asc", "desc"):
            page.run(f"change({{sort: '{column}', dir: '{way}'}})")
            values = page.run(f"order.map((i) => String(columns.find((one) => one.key === '{column}').value(i)))")
            values = [number(value) for value in values]
            there = [value for value in values if value is not None]
            equal(values, sorted(there, reverse=way == "desc") + [None] * (len(values) - len(there)), f"{column} {way}")
    page.is_sound()


def test_tests_side_by_side(page):
    page.open("show=0.2&metric=sqnr_db")
    equal(page.run("charts.get('layer-chart').data.datasets.map((one) => one.label)"),
          ["Llama-3-8B-nf4", "nf4:block-size=32"], "lines")
    equal(page.run("charts.get('layer-chart').data.datasets[1].data"),
          [layer["sqnr_db"] for layer in page.document["tests"][2]["layers"]], "line")
    page.run("document.querySelectorAll('#totals input')[1].click()")
    equal(page.run("charts.get('layer-chart').data.datasets.length"), 3, "lines after a test was ticked")
    equal(page.run("state.show"), [0, 1, 2], "shown tests")
    page.run("byId('test').value = '1', byId('test').dispatchEvent(new Event('change'))")
    equal(page.run("document.querySelector('#map-caption .names').textContent"), "Llama-3-8B-int8", "map")
    equal(page.texts("#findings .names"), page.document["tests"][3]["missing"], "missing tensors")
    page.is_sound()


def test_keyboard(page):
    page.open()
    page.run("byId('grid').focus()")
    for key, code, expected in (("Home", 36, 0), ("ArrowDown", 40, 1), ("ArrowDown", 40, 2), ("ArrowUp", 38, 1)):
        page.browser.key(key, code)
        equal(page.run("order.indexOf(state.tensor)"), expected, key)
    page.browser.key("End", 35)
    last = page.run("order[order.length - 1]")
    equal(page.run("state.tensor"), last, "End")
    equal(page.run("document.querySelector('#grid tr[aria-selected=true]').dataset.tensor"), str(last), "chosen row")
    equal(page.run("byId('grid').getAttribute('aria-activedescendant')"), f"row-{last}", "active row")
    row, grid = (page.run(f"(({{top, bottom}}) => [top, bottom])({element}.getBoundingClientRect())") for element in
                 ("document.querySelector('#grid tr[aria-selected=true]')", "byId('grid')"))
    assert grid[0] <= row[0] and row[1] <= grid[1], f"the chosen row is out of sight: {row} in {grid}"
    page.browser.key("Enter", 13)
    equal(page.run("document.activeElement.id"), "tensor", "Enter goes to the tensor")
    page.run("document.querySelector('#map-cells .cell[tabindex=\"0\"]').focus()")
    page.browser.key("ArrowRight", 39)
    page.browser.key("ArrowDown", 40)
    # No cell is chosen, since the tensor of the last row is outside of layers: it begins at the first.
    label = page.run("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("layer 1, self_attn.k_proj: "), label
    equal(page.run("byId('tip').hidden"), False, "what a cell is about")
    page.browser.key("Enter", 13)
    equal(page.texts("#tensor-name"), ["model.layers.1.self_attn.k_proj.weight"], "tensor of the cell")
    unnamed = page.run("""[...document.querySelectorAll('button, select, input, [tabindex="0"]')].filter((one) =>
      !one.labels?.length && !one.textContent.trim() && !one.getAttribute('aria-label')).map((one) => one.outerHTML)""")
    equal(unnamed, [], "controls without a name")
    page.is_sound()


def test_hostile(page):
    for width in (1280, 420):
        page.open("exact=1", width=width)
        page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.run("for (let i = 0; i < tensors.length; ++i) change({tensor: i})")
        page.run("document.querySelectorAll('.cell').forEach((one) => one.dispatchEvent(new MouseEvent('mouseenter')))")
        equal(page.run("window.hacked ?? null"), None, "a script out of a name")
        equal(page.run("document.scripts.length"), 4, "scripts")
        made = page.run("document.querySelectorAll('img, iframe, object, svg, base, [onerror], [onclick]').length")
        equal(made, 0, "elements out of names")
        equal(json.loads(page.run("document.getElementById('data').textContent")), page.document, "data")
        page.is_sound()
    text = page.run("document.body.innerText")
    for character in "\u2028\u2029\u202e\x07\x1b":
        assert character not in text, f"U+{ord(character):04X} is shown as it is"
    assert "\\u{202E}" in page.run("byId('kind').textContent")
    names = page.run("tensors.map((tensor, i) => (change({tensor: i}), byId('tensor-name').textContent))")
    for shown, tensor in zip(names, page.document["reference"]["tensors"]):
        if tensor["name"].isascii() and tensor["name"].isprintable():
            equal(shown, tensor["name"], "name")
    # A fragment is from strangers, too.
    page.open("test=99&tensor=-1&show=7.x&metric=__proto__&sort=constructor&theme=%3Cb%3E&filter=%3Cscript%3E"
              "&kind=%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E")
    equal(page.run("[state.test, state.tensor, state.metric, state.theme].join()"), "0,-1,rel_rmse,auto", "state")
    page.is_sound()


def test_policy(page):
    """Even what got into the page could neither run nor talk."""
    page.open()
    page.is_sound()
    page.run("""const made = document.createElement('script');
      made.textContent = 'window.hacked = 1', document.body.append(made)""")
    equal(page.run("window.hacked ?? null"), None, "a script that is added")
    page.run("""document.body.insertAdjacentHTML('beforeend',
      '<img src="http://127.0.0.1:9/x" onerror="window.hacked = 1"><i style="color: red">x</i>')""")
    page.wait(100)
    equal(page.run("window.hacked ?? null"), None, "a handler that is added")
    equal(page.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"), "refused", "fetch")
    refused = page.browser.problems()
    for kind in ("script-src", "style-src", "img-src", "default-src"):  # the last refuses to connect
        assert any(f"'{kind}" in line or f'"{kind}' in line for line in refused), (kind, refused)


def test_large(page):
    begin = time.monotonic()
    page.open()
    loaded = time.monotonic() - begin
    equal(page.run("order.length"), 100_000, "tensors")
    heights = page.run("document.querySelector('#grid tr[data-tensor]').offsetHeight === ROW")
    equal(heights, True, "rows are as high as scrolling takes them to be")
    assert page.run("document.querySelectorAll('*').length") < 15_000, "the page has an element for every tensor"
    took = page.milliseconds("change({sort: 'sqnr_db', dir: 'asc'})")
    named = page.milliseconds("change({sort: 'name', dir: 'asc'})")
    filtered = page.milliseconds("change({filter: 'experts.17.up'})")
    equal(page.run("order.length"), 50, "filtered tensors")
    page.run("change({filter: ''}), byId('grid').scrollTop = 1e9")
    page.wait(200)
    assert page.run("order[order.length - 1]") in page.shown_tensors(), "the last row is not shown at the end"
    page.run("byId('grid').focus()")
    page.browser.key("Home", 36)
    page.wait(200)
    assert page.run("order[0]") in page.shown_tensors(), "the first row is not shown at the beginning"
    page.is_sound()
    print(f"  100,000 tensors: shown after {loaded:.1f} s; sorted in {took:.0f} ms, by name in {named:.0f} ms, "
          f"filtered in {filtered:.0f} ms")
    assert loaded < 30 and max(took, named, filtered) < 5000, "too slow"


def test_experts(page):
    """A cell of several tensors has the figures of all, as the document has them of the layer."""
    page.open()
    for metric in FIGURES:
        page.run(f"change({{metric: '{metric}'}})")
        shown = page.run("[...document.querySelectorAll('.cell')].map((cell) => Number(cell.dataset.value))")
        reference, results = page.document["reference"]["tensors"], page.document["tests"][0]["tensors"]
        for layer, value in zip((0, 1, 2, None), shown, strict=True):
            of = [i for i, tensor in enumerate(reference) if tensor["layer"] == layer]
            expected = documents.sums(documents.shown(of, results), reference, results)[metric]
            assert math.isclose(value, expected), f"{metric} of layer {layer}: {value}, not {expected}"
    page.run("document.querySelector('.cell').click()")
    equal(page.texts("#tensor-name"), ["layers.0.experts.3.up"], "the worst tensor of the cell")
    page.is_sound()


def test_many_groups(page):
    """Nothing that names do can make of the page more than a browser draws."""
    begin = time.monotonic()
    page.open("exact=1")
    assert time.monotonic() - begin < 30, "too slow"
    assert page.run("document.querySelectorAll('*').length") < 120_000, "the page is too large"
    page.is_sound()


def test_one_tensor(page):
    page.open()
    check_figures(page)
    if page.document["reference"]["tensors"][0]["layer"] is None:
        equal(page.texts("#layer-chart"), ["No tensor belongs to a layer."], "layers")
    equal(page.run("byId('test-label').hidden"), True, "choice among one test")
    page.open(width=420)
    page.is_sound()


def test_nothing(page):
    page.open()
    check_figures(page)
    page.run("change({tensor: 1}), change({tensor: 0})")
    text = page.run("byId('report').innerText").replace("NaN, inf", "")
    assert "NaN" not in text, "a figure that is not there"
    assert "undefined" not in page.run("document.body.innerText")
    equal(page.texts("#findings .names"), ["lost"], "missing tensors")
    page.is_sound()


def test_exact(page):
    page.open()
    check_figures(page)
    equal(page.texts("#worst-tensors"), ["No tensor has an error."], "worst")
    equal(page.run("document.querySelector('#totals [data-figure=sqnr_db]').textContent"), "exact", "SQNR")
    page.run("byId('exact').click()")
    equal(page.run("document.querySelectorAll('#map-cells .exact-cell').length"), 3, "cells")
    page.is_sound()


def test_without_tests(page):
    equal(page.open().run("byId('problem').hidden"), False, "notice")
    page.is_sound()


def test_print(page):
    page.open("filter=layers", dark=True)
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    equal(page.run("document.documentElement.dataset.theme"), "light", "theme on paper")
    equal(len(page.shown_tensors()), min(500, page.run("order.length")), "rows on paper")
    page.run("window.dispatchEvent(new Event('afterprint'))")
    equal(page.run("document.documentElement.dataset.theme ?? null"), None, "theme after printing")
    page.is_sound()


TESTS = {
    "verdict": (documents.llama, test_verdict), "headline": (documents.cast_embeddings, test_headline),
    "lost numbers": (documents.lost_numbers, test_lost_numbers),
    "spread": (documents.llama, test_spread),
    "links": (documents.llama, test_links), "saving": (documents.llama, test_saving),
    "heat map": (lambda: documents.llama(tests=documents.TESTS[:1]), test_heat_map_colours),
    "columns": (documents.llama, test_columns), "made": (lambda: documents.small(layers=True), test_made),
    "figures": (documents.llama, test_figures), "tensor": (documents.llama, test_tensor),
    "sort and filter": (documents.llama, test_sort_and_filter),
    "side by side": (documents.llama, test_tests_side_by_side),
    "keyboard": (documents.llama, test_keyboard), "print": (documents.llama, test_print),
    "hostile": (documents.hostile, test_hostile), "policy": (lambda: documents.small(layers=True), test_policy),
    "large": (documents.large, test_large), "experts": (documents.experts, test_experts),
    "many groups": (documents.many_groups, test_many_groups),
    "one tensor": (lambda: documents.small(layers=True), test_one_tensor),
    "one tensor, no layers": (lambda: documents.small(layers=False), test_one_tensor),
    "null figures": (documents.empty_figures, test_nothing), "exact": (documents.all_exact, test_exact),
    "no tests": (lambda: documents.document("none", [], []), test_without_tests),
}


def take_screenshots(page, folder):
    for width in (1280, 420):
        for dark in (False, True):
            page.open("tensor=1", width=width, dark=dark)
            page.is_sound()
            page.browser.screenshot(folder / f"{width}-{'dark' if dark else 'light'}.png")
    page.browser.pdf(folder / "print.pdf")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", nargs="?", type=pathlib.Path, default=ROOT / "build/release/tests")
    parser.add_argument("--only", help="tests whose name holds this text")
    parser.add_argument("--json", type=pathlib.Path, help="a document instead of those made here")
    parser.add_argument("--screenshots", type=pathlib.Path, help="folder for pictures")
    arguments = parser.parse_args()
    tests = {name: test for name, test in TESTS.items() if (arguments.only or "") in name}
    if arguments.json:
        tests = {str(arguments.json): (lambda: json.loads(arguments.json.read_text()), lambda page: (
            page.open(), check_figures(page), page.is_sound()))}

    failures, browser = [], Browser()
    try:
        with tempfile.TemporaryDirectory() as work:
            def page_of(document, name):
                path = os.path.join(work, f"{name}.html")
                with open(path, "wb") as file:
                    subprocess.run([arguments.bin.resolve() / "nibble_report_page", json.dumps(MADE)], check=True,
                                   stdout=file, input=json.dumps(document, ensure_ascii=False).encode())
                return Page(browser, path, document)
            for number_of, (name, (make, test)) in enumerate(tests.items()):
                begin = time.monotonic()
                try:
                    test(page_of(make(), number_of))
                    print(f"ok: {name} ({time.monotonic() - begin:.1f} s)", flush=True)
                except (AssertionError, RuntimeError) as error:
                    failures.append(name)
                    print(f"FAILED: {name}: {error}", file=sys.stderr, flush=True)
            if arguments.screenshots:
                arguments.screenshots.mkdir(parents=True, exist_ok=True)
                make = next(iter(tests.values()))[0] if arguments.json else documents.llama
                take_screenshots(page_of(make(), "screenshots"), arguments.screenshots)
    finally:
        browser.close()
    print("failed: " + "; ".join(failures) if failures else "all reports show what they hold")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
