// Charts of totals, layers and kinds; Chart.js draws them on canvases in the colours of the theme.

const charts = new Map();             // by the id of their node
const ROWS = 2000;                    // of the tables below them
const DASHES = [[], [7, 4], [2, 3]];  // beyond six tests colours repeat, lines do not
const POINTS = ['circle', 'rectRot', 'triangle', 'rect', 'star', 'crossRot'];

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim(); }

function axis(title, more) {
  return {
    title: {display: Boolean(title), text: title || '', color: colour('muted')},
    border: {display: false},
    grid: {color: colour('grid'), borderColor: colour('line'), tickColor: 'transparent'},
    ticks: {color: colour('muted')},
    ...more
  };
}

// A chart is made anew on every change: they are few and small, and no state of an old one can remain.
function draw(id, label, config, height) {
  const node = byId(id);
  charts.get(id)?.destroy();
  charts.delete(id);
  node.classList.toggle('empty', !config);
  node.style.height = config && height ? height + 'px' : '';
  if (!config) return fill(node, label);
  const canvas = element('canvas', {role: 'img', 'aria-label': label});
  const save = element(
      'button', {
        type: 'button',
        class: 'save',
        'aria-label': 'Save this chart as a PNG picture: ' + label,
        on: {click: () => savePng(canvas, id)}
      },
      'PNG');
  fill(node, canvas, save);
  const several = config.data.datasets.length > 1;
  config.options = {
    responsive: true,
    maintainAspectRatio: false,
    animation: false,
    normalized: true,
    interaction: {mode: 'index', intersect: false, axis: config.options?.indexAxis || 'x'},
    ...config.options
  };
  config.options.plugins = {
    legend: {
      display: several,
      position: 'bottom',
      labels: {color: colour('text'), usePointStyle: true, boxWidth: 8, boxHeight: 8, padding: 14}
    },
    tooltip: {
      backgroundColor: colour('text'),
      titleColor: colour('page'),
      bodyColor: colour('page'),
      cornerRadius: 5,
      padding: 9,
      boxPadding: 4,
      usePointStyle: true,
      ...config.tooltip
    },
    ...config.options.plugins
  };
  charts.set(id, new Chart(canvas, config));
}

function series(t, values) {
  const paint = seriesColour(t);
  return {
    label: shortTestName(t, isNarrow() ? 36 : 60),
    data: values,
    borderColor: paint,
    backgroundColor: paint,
    borderWidth: 2,
    borderDash: DASHES[Math.floor(t / 6) % 3],
    pointStyle: POINTS[t % 6]
  };
}

const finite = (value) => Number.isFinite(value) ? value : null;

// Factors between tests (8 bits against 4) would press the smaller ones onto the axis: then the scale is logarithmic.
function valueAxis(figure, values) {
  const known = values.filter((value) => Number.isFinite(value) && value > 0);
  const low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), 0);
  const logarithmic = FIGURES[figure].ratio && high > 15 * low;
  const scale = FIGURES[figure].print === percent ? 100 : 1;
  const unit = scale === 100 ? ' (%)' : '';
  return axis(FIGURES[figure].label + unit + (logarithmic ? ', logarithmic' : ''), {
    type: logarithmic ? 'logarithmic' : 'linear',
    beginAtZero: FIGURES[figure].ratio && !logarithmic,
    ...(logarithmic ? {min: low / 1.25, max: high * 1.25} : {grace: '5%'}),
    ticks: {
      color: colour('muted'),
      maxRotation: 0,
      autoSkip: true,
      callback: (value) => logarithmic && !/^[125](\.0*)?e/.test((value * scale).toExponential(5)) ?
          null :
          figure === 'cosine' || figure === 'bits_per_weight' || figure === 'sqnr_db' ?
          Number(value.toPrecision(7)).toString() :
          tick(value * scale)
    }
  });
}

function drawSizes() {
  const wanted = [-1, ...state.show];
  byId('sizes').hidden = tests.length === 0;
  draw(
      'size-chart', 'Bytes of the reference and of each test', {
        type: 'bar',
        data: {
          labels: wanted.map((t) => t < 0 ? 'reference' : shortTestName(t, isNarrow() ? 16 : 26)),
          datasets: [{
            label: 'bytes',
            data: wanted.map((t) => t < 0 ? reference.bytes : tests[t].bytes),
            maxBarThickness: 26,
            backgroundColor: wanted.map((t) => t < 0 ? colour('muted') : seriesColour(t))
          }]
        },
        options: {
          indexAxis: 'y',
          scales: {
            x: axis('', {
              ticks: {
                color: colour('muted'),
                callback: (value) => bytes(value).replace(/\.0+ /, ' '),
                maxTicksLimit: isNarrow() ? 4 : 6
              }
            }),
            y: axis('', {grid: {display: false}, ticks: {color: colour('text')}})
          }
        },
        tooltip: {
          callbacks: {
            label: (item) => bytes(item.raw) + ', ' + number(100 * item.raw / reference.bytes) + ' % of the reference'
          }
        },
      },
      Math.max(130, 60 + 38 * wanted.length));

  const points = state.show.filter((t) => isNumber(headline(t).sqnr_db) && isNumber(headline(t).bits_per_weight));
  byId('rate-chart').parentElement.hidden = tests.length < 2;
  byId('sizes').classList.toggle('single', tests.length < 2);
  if (tests.length < 2) return;
  draw(
      'rate-chart', points.length ? 'SQNR over bits per weight, one point per test' : 'No test has an error to show.',
      points.length ? {
        type: 'scatter',
        data: {
          datasets: points.map((t) => ({
                                 ...series(t, [{x: headline(t).bits_per_weight, y: headline(t).sqnr_db}]),
                                 pointRadius: 6,
                                 pointHoverRadius: 8
                               }))
        },
        options: {
          interaction: {mode: 'nearest', intersect: true},
          scales: {x: axis('bits per weight', {grace: '8%'}), y: axis('SQNR (dB)', {grace: '8%'})}
        },
        tooltip:
            {callbacks: {label: (item) => `${item.dataset.label}: ${bits(item.raw.x)} bits, ${decibels(item.raw.y)}`}},
      } :
                      null,
      Math.max(240, 60 + 38 * wanted.length));
}

// The groups (layers or kinds) of the shown tests, in the order of the first test that has them.
function groupsOf(list, key) {
  const groups = new Map();
  for (const t of state.show)
    for (const one of tests[t][list]) {
      if (!groups.has(one[key])) groups.set(one[key], new Map());
      groups.get(one[key]).set(t, one);
    }
  return [...groups.entries()];
}

function groupTable(target, caption, key, label, groups, extra) {
  const figures = [...new Set([state.metric, 'rel_rmse', 'sqnr_db', 'bits_per_weight'])];
  const columns = [
    {key, label, pin: true, cell: ([name]) => printable(name), value: ([name]) => name, text: key === 'kind'}, {
      key: 'tensors',
      label: 'Tensors',
      cell: ([, of]) => count([...of.values()][0].tensors),
      value: ([, of]) => [...of.values()][0].tensors
    },
    {
      key: 'weights',
      label: 'Weights',
      cell: ([, of]) => count([...of.values()][0].weights),
      value: ([, of]) => [...of.values()][0].weights
    },
    ...(extra || [])
  ];
  for (const t of state.show)
    for (const figure of figures)
      columns.push({
        key: figure + '@' + t,
        label: FIGURES[figure].short,
        under: tests.length > 1 ? shortTestName(t, 24) : null,
        cell: ([, of]) => printFigure(figure, of.get(t)),
        value: ([, of]) => figureValue(figure, of.get(t))
      });
  sortingTable(byId(target), caption, columns, groups.slice(0, ROWS));
  if (groups.length > ROWS)
    byId(target).append(element('p', {class: 'empty-note'}, `the first ${count(ROWS)} of ${count(groups.length)}`));
}

// Why a chart would be empty: figures that are not there, or errors that are all zero.
function nothingToDraw(figure, lists, group) {
  const values = lists.flat();
  if (values.every(Number.isNaN)) return 'None of the tests shown has this figure.';
  if (values.every((value) => !Number.isFinite(value) || (value === 0 && FIGURES[figure].ratio)))
    return `No ${group} has an error.`;
  return null;
}

function drawLayers() {
  const figure = state.metric, groups = groupsOf('layers', 'layer').sort((a, b) => a[0] - b[0]);
  byId('layer-caption').textContent = FIGURES[figure].label;
  byId('layer-details').hidden = groups.length === 0;
  if (groups.length === 0) return draw('layer-chart', 'No tensor belongs to a layer.', null);
  const lines = state.show.map((t) => groups.map(([, of]) => figureValue(figure, of.get(t))));
  groupTable('layer-table', 'Figures of each layer', 'layer', 'Layer', groups);
  const nothing = nothingToDraw(figure, lines, 'layer');
  if (nothing) return draw('layer-chart', nothing, null);
  draw('layer-chart', FIGURES[figure].label + ' of each layer, a line for each test', {
    type: 'line',
    data: {
      labels: groups.map(([layer]) => layer),
      datasets: state.show.map((t, s) => ({
                                 ...series(t, lines[s].map(finite)),
                                 pointRadius: groups.length > 60 ? 0 : 2.5,
                                 pointHoverRadius: 5,
                                 tension: 0
                               }))
    },
    options: {
      scales: {
        x: axis(
            'layer', {grid: {display: false}, ticks: {color: colour('muted'), maxRotation: 0, autoSkipPadding: 10}}),
        y: valueAxis(figure, lines.flat())
      }
    },
    tooltip: {
      callbacks: {
        title: (items) => 'layer ' + items[0].label,
        label: (item) => item.dataset.label + ': ' + FIGURES[figure].print(item.raw)
      }
    }
  });
}

function sizesOfKinds() {
  const sizes = new Map();
  tensors.forEach((tensor, i) => {
    if (!sizes.has(tensor.kind)) sizes.set(tensor.kind, {before: 0, after: tests.map(() => 0)});
    const of = sizes.get(tensor.kind);
    of.before += tensor.bytes;
    tests.forEach((test, t) => {
      of.after[t] += test.tensors[i]?.bytes ?? 0;
    });
  });
  return sizes;
}

function drawKinds() {
  const figure = state.metric, all = groupsOf('kinds', 'kind'), limit = 60, sizes = sizesOfKinds();
  const inexact = state.exact ? all : all.filter(([, of]) => [...of.values()].some((one) => !isExact(one)));
  const groups = inexact.length > limit ?
      [...inexact].sort((a, b) => [...b[1].values()][0].weights - [...a[1].values()][0].weights).slice(0, limit) :
      inexact;
  const left = [
    all.length > inexact.length ? `${all.length - inexact.length} without any error left out` : '',
    groups.length < inexact.length ? `the ${limit} with the most weights` : ''
  ].filter(Boolean).join(', ');
  fill(byId('kind-caption'), FIGURES[figure].label + ' ', element('small', {}, left));
  byId('kind-details').hidden = all.length === 0;
  const values = state.show.map((t) => groups.map(([, of]) => figureValue(figure, of.get(t))));
  const nothing = groups.length ? nothingToDraw(figure, values, 'kind of module') : 'No kind of module has an error.';
  // Points, not bars: the length of a bar would mean nothing on a logarithmic axis, nor where an axis leaves out 0.
  draw(
      'kind-chart', nothing ?? FIGURES[figure].label + ' of each kind of module, a point for each test',
      !nothing ?
          {
            type: 'line',
            data: {
              labels: groups.map(([kind]) => shortened(kind, isNarrow() ? 22 : 34)),
              datasets: state.show.map(
                  (t, s) =>
                      ({...series(t, values[s].map(finite)), showLine: false, pointRadius: 5.5, pointHoverRadius: 7}))
            },
            options: {
              indexAxis: 'y',
              scales: {
                x: valueAxis(figure, values.flat()),
                y: axis('', {offset: true, ticks: {color: colour('text'), autoSkip: false}})
              }
            },
            tooltip:
                {
                  callbacks:
                      {
                        title: (items) => printable(groups[items[0].dataIndex][0]),
                        label: (item) => item.dataset.label + ': ' + FIGURES[figure].print(item.raw)
                      }
                },
          } :
          null,
      90 + groups.length * 26);
  groupTable('kind-table', 'Figures of each kind of module', 'kind', 'Kind', all, [
    {
      key: 'before',
      label: 'Before',
      cell: ([kind]) => bytes(sizes.get(kind)?.before),
      value: ([kind]) => sizes.get(kind)?.before ?? NaN
    },
    ...state.show.map((t) => ({
                        key: 'after@' + t,
                        label: 'After',
                        under: tests.length > 1 ? shortTestName(t, 24) : null,
                        cell: ([kind]) => bytes(sizes.get(kind)?.after[t]),
                        value: ([kind]) => sizes.get(kind)?.after[t] ?? NaN
                      }))
  ]);
}
