'use strict';
// The document, its figures and how they are printed. All parts of this script are one scope, in the order that
// cmake/html_report.cmake names.

const report = (() => {
  try {
    const parsed = JSON.parse(document.getElementById('data').textContent);
    return parsed && parsed.reference && Array.isArray(parsed.tests) ? parsed : null;
  } catch {
    return null;
  }
})();
// When and how this file was written; nothing of it is in the document, which stays the same for the same input.
function readMade() {
  try {
    return JSON.parse(document.getElementById('report-made').textContent) ?? {};
  } catch {
    return {};
  }
}
const reference = report ? report.reference : {tensors: []};
const tests = report ? report.tests : [];
const tensors = reference.tensors;

// `worse` says in which direction a figure gets worse; `ratio` that its steps are factors, so a logarithm shows them.
const FIGURES = {
  rel_rmse: {
    label: 'Relative RMSE',
    short: 'rel. RMSE',
    print: percent,
    worse: 'high',
    ratio: true,
    about: 'RMSE divided by the RMS of the reference: the error as a share of the weights’ size.'
  },
  sqnr_db: {
    label: 'SQNR (dB)',
    short: 'SQNR',
    print: decibels,
    worse: 'low',
    ratio: false,
    about:
        'Signal to quantization noise, 20 log₁₀(1 / relative RMSE). Every 6 dB more halve the error; “exact” means ' +
        'no error.'
  },
  rmse: {
    label: 'RMSE',
    short: 'RMSE',
    print: number,
    worse: 'high',
    ratio: true,
    about: 'Root of the mean squared error, in units of the weights.'
  },
  mae: {
    label: 'Mean |error|',
    short: 'MAE',
    print: number,
    worse: 'high',
    ratio: true,
    about: 'Mean of the absolute error, in units of the weights.'
  },
  max_abs: {
    label: 'Largest |error|',
    short: 'max |e|',
    print: number,
    worse: 'high',
    ratio: true,
    about: 'The largest absolute error, in units of the weights.'
  },
  mean_rel: {
    label: 'Mean |error / weight|',
    short: 'mean rel.',
    print: percent,
    worse: 'high',
    ratio: true,
    about: 'Mean of |error / weight| over the weights that are not 0. Weights near 0 dominate it.'
  },
  cosine: {
    label: 'Cosine similarity',
    short: 'cosine',
    print: cosine,
    worse: 'low',
    ratio: false,
    about: 'Cosine of the angle between the weights before and after, as vectors; 1 means the same direction.'
  },
  bits_per_weight: {
    label: 'Bits per weight',
    short: 'bits/weight',
    print: bits,
    worse: 'high',
    ratio: false,
    about: 'Stored bits, including scales and other overhead, divided by the number of weights.'
  },
};

const NOTHING = '–';
const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

// Three significant digits, for a ratio of two figures to be read off either.
function number(value) {
  if (!isNumber(value)) return NOTHING;
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace('e+', 'e');
  return size >= 1000 ? Math.round(value).toLocaleString('en-US') : value.toPrecision(3);
}
function percent(value) { return isNumber(value) ? number(100 * value) + ' %' : NOTHING; }
// As the table of `nibble measure` has them: no sign of zero, and no more than 300 dB, which is as good as exact.
const MOST_DECIBELS = 300;
function ratio(value, digits) {
  if (Math.abs(value) > MOST_DECIBELS) return (value > 0 ? '>' : '<-') + MOST_DECIBELS;
  return value.toFixed(digits).replace(/^-(?=[0.]+$)/, '');
}
function decibels(value) { return isNumber(value) ? ratio(value, 2) + ' dB' : NOTHING; }
function bits(value) { return isNumber(value) ? value.toFixed(3) : NOTHING; }
function cosine(value) {
  if (!isNumber(value)) return NOTHING;
  const rest = 1 - value;
  return rest > 0 && rest < 5e-6 ? '1 − ' + rest.toExponential(1) : value.toFixed(6);
}
// 10.0 and 20.0 beside each other on an axis say no more than 10 and 20.
function tick(value) { return String(Number(value.toPrecision(3))); }
function count(value) { return isNumber(value) ? value.toLocaleString('en-US') : NOTHING; }
function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  for (const [unit, size] of [['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['kB', 1e3]])
    if (value >= size) return (value / size).toFixed(2) + ' ' + unit;
  return value + ' B';
}
function shape(tensor) { return tensor.shape.length ? tensor.shape.join(' × ') : 'scalar'; }

// Of a tensor, or of all tensors of a group.
const isExact = (figures) => Boolean(figures) && figures.exact;
// No error at all has no SQNR: it is better than every other, which differs from a figure that is not there.
const hasNoNoise = (figures) => isExact(figures) && isNumber(figures.rmse);
function figureValue(figure, figures) {
  if (!figures) return NaN;
  if (figure === 'sqnr_db' && hasNoNoise(figures)) return Infinity;
  return isNumber(figures[figure]) ? figures[figure] : NaN;
}
function printFigure(figure, figures) {
  if (!figures) return NOTHING;
  if (figure === 'sqnr_db' && hasNoNoise(figures)) return 'exact';
  return FIGURES[figure].print(figures[figure]);
}

// Characters that change how the text around them is drawn, or that cannot be seen, are shown as their numbers.
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cn}\p{Co}\p{Cs}]/gu;
function printable(name) {
  return name === '' ?
      '""' :
      String(name).replace(INVISIBLE, (c) => '\\u{' + c.codePointAt(0).toString(16).toUpperCase() + '}');
}
// The end of a name tells it from others, but for the ".weight" of nearly all.
function shortened(name, length) {
  let text = printable(name);
  if (text.length > length) text = text.replace(/\.weight$/, '');
  return text.length <= length ? text : '…' + text.slice(text.length - length + 1);
}
// Of a path as many of its last parts as tell it from all others; a format has no '/' in it.
const testNames = (() => {
  const last = (name, parts) => name.replace(/\/+$/, '').split('/').slice(-parts).join('/') || name;
  return tests.map(({name}, t) => {
    let parts = 1;
    const isTaken = () =>
        tests.some((other, o) => o !== t && other.name !== name && last(other.name, parts) === last(name, parts));
    while (parts < 64 && isTaken()) ++parts;
    return printable(last(name, parts));
  });
})();
const testName = (t) => testNames[t];
function shortTestName(t, length) {
  const name = testNames[t], end = Math.floor(length / 3);  // tests differ at their beginning or at their end
  return name.length <= length ? name : name.slice(0, length - end - 1) + '…' + name.slice(name.length - end);
}

// The figures of several tensors seen as one vector: of the quantized ones; without any, of those that were cast;
// without any, of the kept ones. cosine and mean_rel are means by weights, which is close.
function combined(t, indices) {
  const present = indices.map((i) => [tests[t].tensors[i], tensors[i]]).filter(([test]) => test);
  const records = ['quantized', 'cast', 'kept']
                      .map((outcome) => present.filter(([test]) => test.outcome === outcome))
                      .find((some) => some.length);
  if (!records) return null;
  if (records.length === 1) return records[0][0];
  let weights = 0, noise = 0, signal = 0, stored = 0, largest = 0;
  const mean = {mae: 0, cosine: 0, mean_rel: 0};
  for (const [test, tensor] of records) {
    if (!isNumber(test.rmse)) continue;
    weights += tensor.weights;
    noise += tensor.weights * test.rmse ** 2;
    signal += tensor.weights * tensor.rms ** 2;
    stored += test.bytes;
    largest = Math.max(largest, test.max_abs);
    for (const figure in mean) mean[figure] += tensor.weights * test[figure];
  }
  if (weights === 0) return null;
  for (const figure in mean) mean[figure] /= weights;
  return {
    ...mean,
    exact: records.every(([test]) => test.exact),
    rmse: Math.sqrt(noise / weights),
    max_abs: largest,
    bits_per_weight: 8 * stored / weights,
    rel_rmse: signal > 0 ? Math.sqrt(noise / signal) : null,
    sqnr_db: noise > 0 && signal > 0 ? 10 * Math.log10(signal / noise) : null
  };
}
