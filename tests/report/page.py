"""A report in the browser, and what is expected of any."""

import json
import math

FIGURES = ["rel_rmse", "sqnr_db", "rmse", "mae", "max_abs", "mean_rel", "cosine", "bits_per_weight"]


def equal(shown, expected, what):
    assert shown == expected, f"{what}: the page shows {str(shown)[:400]}, the document says {str(expected)[:400]}"


def value_of(figure, record):
    """What the page has in data-value: none for what is not there, infinite dB without any error."""
    if not record:
        return None
    if figure == "sqnr_db" and record["rmse"] == 0:
        return math.inf
    return record[figure]


def number(text):
    """data-value, as JavaScript prints numbers."""
    return None if text in (None, "NaN") else float(text.replace("Infinity", "inf"))


class Page:
    """A report in the browser."""

    def __init__(self, browser, path, document):
        self.browser, self.path, self.document = browser, path, document

    def open(self, fragment="", **options):
        self.browser.open(self.path, fragment, **options)
        return self

    def run(self, script):
        return self.browser.run(script)

    def texts(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    def cells(self, table):
        """Of every row: {column: [number, text]}."""
        rows = self.run(f"""[...document.querySelectorAll({json.dumps(table + ' tbody tr:not(.gap)')})].map((row) =>
          Object.fromEntries([...row.querySelectorAll('[data-figure]')].map((cell) =>
            [cell.dataset.figure, [cell.dataset.value ?? null, cell.textContent]])))""")
        return [{key: (number(value), text) for key, (value, text) in row.items()} for row in rows]

    def shown_tensors(self):
        rows = "document.querySelectorAll('#grid tr[data-tensor]')"
        return self.run(f"[...{rows}].map((row) => Number(row.dataset.tensor))")

    def go_to(self, fragment):
        self.run(f"location.hash = {json.dumps(fragment)}")
        self.wait(50)

    def wait(self, milliseconds):
        self.run(f"new Promise((done) => setTimeout(done, {milliseconds}))")

    def milliseconds(self, script):
        return self.run(f"(() => {{ const begin = performance.now(); {script}; return performance.now() - begin; }})()")

    def is_sound(self):
        """No error, nothing loaded, nothing wider than the window."""
        equal(self.browser.problems(), [], "problems")
        width = self.run("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], f"the page is {width[0]} wide in a window of {width[1]}"
