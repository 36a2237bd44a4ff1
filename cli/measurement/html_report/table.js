// All tensors. Only the rows in sight exist, so 100,000 tensors scroll, sort and filter like ten.

const ROW = 30;     // pixels, with the line below: style.css
const MARGIN = 12;  // rows above and below those in sight
const PRINTED = 500;
const ROWS_SHOWN = 500_000;  // browsers draw nothing beyond some 17 million pixels
let order = [];              // the tensors that pass the filter, sorted
let columns = [];
let drawn = [-1, -1];

const ranks = new Map();  // of texts, by column: comparing 100,000 names by their numbers takes a while, once
function rank(key, text) {
  if (!ranks.has(key)) {
    const sorted = tensors.map((_, i) => i).sort((a, b) => numeric.compare(text(a), text(b)));
    const of = new Float64Array(tensors.length);
    sorted.forEach((i, at) => {
      of[i] = at > 0 && text(i) === text(sorted[at - 1]) ? of[sorted[at - 1]] : at;
    });
    ranks.set(key, of);
  }
  return (i) => ranks.get(key)[i];
}

function tableColumns() {
  const t = state.test, of = (i) => tests[t].tensors[i];
  const textual = (key, label, text, more) =>
      ({key, label, text: true, cell: (i) => printable(text(i)), rank: () => rank(key + '@' + t, text), ...more});
  const numeral = (key, label, value, print, more) => ({key, label, value, cell: (i) => print(value(i)), ...more});
  const figure = (key) => ({
    key,
    label: FIGURES[key].short,
    title: FIGURES[key].about,
    cell: (i) => printFigure(key, of(i)),
    value: (i) => figureValue(key, of(i))
  });
  const from = (i, key) => tensors[i][key] ?? NaN, after = (i, key) => of(i)?.[key] ?? NaN;
  const other = (s) => ({
    key: state.metric + '@' + s,
    label: FIGURES[state.metric].short,
    under: shortTestName(s, 24),
    cell: (i) => printFigure(state.metric, tests[s].tensors[i]),
    value: (i) => figureValue(state.metric, tests[s].tensors[i])
  });
  const errors = ['rel_rmse', 'sqnr_db'].map(figure);
  const origin = [
    numeral('layer', 'Layer', (i) => from(i, 'layer'), (value) => isNumber(value) ? String(value) : NOTHING),
    textual('codec', 'Codec', (i) => of(i)?.codec ?? 'missing')
  ];
  const nameLength = isNarrow() ? 25 : printing || window.innerWidth >= 1340 ? 52 : 42;
  const common = [
    textual('name', 'Tensor', (i) => tensors[i].name, {
      pin: true,
      cell: (i) =>
          element('span', {class: 'name', title: printable(tensors[i].name)}, shortened(tensors[i].name, nameLength))
    }),
    ...isNarrow() ? [...errors, ...origin] : [...origin, ...errors],
    ...['rmse', 'mae', 'max_abs', 'mean_rel', 'cosine', 'bits_per_weight'].map(figure),
  ];
  const rest = [
    ...state.show.filter((s) => s !== t).map(other),
    numeral(
        'entropy', 'entropy', (i) => after(i, 'entropy'), (value) => isNumber(value) ? value.toFixed(2) : NOTHING,
        {title: 'Of the codes, in bits'}),
    numeral('after', 'after', (i) => after(i, 'bytes'), bytes),
    numeral('before', 'before', (i) => from(i, 'bytes'), bytes),
    numeral('weights', 'weights', (i) => from(i, 'weights'), count),
    textual('shape', 'Shape', (i) => shape(tensors[i])),
    textual('dtype', 'Type', (i) => tensors[i].dtype),
    numeral('rms', 'RMS', (i) => from(i, 'rms'), number, {title: 'Of the reference'}),
    numeral(
        'kurtosis', 'kurtosis', (i) => from(i, 'kurtosis'), number,
        {title: 'Of the reference; 3 for a normal distribution'}),
    numeral('outlier_columns', 'outlier col.', (i) => from(i, 'outlier_columns'), count),
    numeral('outlier_energy', 'outlier energy', (i) => from(i, 'outlier_energy'), percent),
    numeral('unusual', 'NaN, inf', (i) => of(i) ? after(i, 'nan') + after(i, 'inf') : NaN, count),
  ];
  return [...common, ...rest.map((one) => ({...one, rest: true}))];
}

const lowerNames = [];
function passes(words) {
  if (words.length && lowerNames.length === 0)
    for (const tensor of tensors) lowerNames.push(tensor.name.toLowerCase());
  const records = tests[state.test].tensors;
  return (i) => (!state.kind || tensors[i].kind === state.kind) &&
      (!state.codec || (records[i]?.codec ?? 'missing') === state.codec) &&
      words.every((word) => lowerNames[i].includes(word));
}

// What fits a window of 1280 pixels, unless all are asked for; and what the table is sorted by.
const shownColumns = () => columns.filter((one) => state.all || !one.rest || one.key === state.sort);

function arrange() {
  columns = tableColumns();
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean), pass = passes(words);
  order = [];
  for (let i = 0; i < tensors.length; ++i)
    if (pass(i)) order.push(i);
  const column = columns.find((one) => one.key === state.sort) ?? columns.find((one) => one.key === 'rel_rmse');
  if (column.value || column.rank) {
    const of = column.rank ? column.rank() : column.value, key = new Float64Array(tensors.length),
          descending = state.dir === 'desc';
    for (const i of order) key[i] = of(i);
    order.sort((a, b) => compareValues(key[a], key[b], descending) || a - b);
  }
  const found = order.length === tensors.length ? `${count(tensors.length)} tensor${tensors.length === 1 ? '' : 's'}` :
                                                  `${count(order.length)} of ${count(tensors.length)} tensors`;
  byId('found').textContent = found + (order.length > ROWS_SHOWN ? `, the first ${count(ROWS_SHOWN)} shown` : '');
  order.length = Math.min(order.length, ROWS_SHOWN);

  const choose = ({key, text}) => {
    change({sort: key, dir: state.sort === key ? (state.dir === 'desc' ? 'asc' : 'desc') : text ? 'asc' : 'desc'});
    byId('grid').querySelector(`th[data-column="${CSS.escape(key)}"] button`)?.focus({preventScroll: true});
  };
  const left = byId('grid').scrollLeft;
  fill(
      byId('grid'),
      element(
          'table', {
            role: 'grid',
            'aria-label': 'All tensors',
            'aria-rowcount': order.length + 1,
            'aria-colcount': shownColumns().length
          },
          element(
              'thead', {},
              element(
                  'tr', {'aria-rowindex': 1},
                  ...shownColumns().map(
                      (one) =>
                          headerOf(one, one === column, state.dir === 'desc', one.value || one.rank ? choose : null)))),
          element('tbody', {})));
  byId('grid').scrollLeft = left;
  drawn = [-1, -1];
  drawRows();
}

function gap(rows) {
  const cell = element('td', {colspan: shownColumns().length});
  cell.style.height = rows * ROW + 'px';
  return element('tr', {class: 'gap', 'aria-hidden': 'true'}, cell);
}

function drawRows(all) {
  const grid = byId('grid'), body = grid.querySelector('tbody');
  if (!body) return;
  const top = Math.floor(grid.scrollTop / ROW),
        height = Math.ceil((parseFloat(getComputedStyle(grid).maxHeight) || grid.clientHeight) / ROW);
  const from = all ? 0 : Math.max(0, Math.min(top, order.length - 1) - MARGIN),
        to = all ? Math.min(PRINTED, order.length) : Math.min(order.length, top + height + MARGIN);
  if (from === drawn[0] && to === drawn[1]) return;
  drawn = [from, to];
  const rows = [], shown = shownColumns();
  for (let at = from; at < to; ++at) {
    const i = order[at];
    rows.push(element(
        'tr', {
          id: 'row-' + i,
          'data-tensor': i,
          'aria-rowindex': at + 2,
          'aria-selected': String(i === state.tensor),
          on: {click: () => showTensor(i)}
        },
        ...shown.map((one) => cellOf(one, i))));
  }
  if (order.length === 0)
    rows.push(element(
        'tr', {},
        element(
            'td', {class: 'text empty-note', colspan: shownColumns().length},
            tensors.length ? 'No tensor matches.' : 'There is nothing to compare.')));
  const above = all ? 0 : from, below = all ? 0 : order.length - to;
  fill(body, above ? gap(above) : null, ...rows, below ? gap(below) : null);
  if (state.tensor >= 0 && body.querySelector('#row-' + state.tensor))
    grid.setAttribute('aria-activedescendant', 'row-' + state.tensor);
  else
    grid.removeAttribute('aria-activedescendant');
}

function markRow() {
  for (const row of byId('grid').querySelectorAll('tr[data-tensor]'))
    row.setAttribute('aria-selected', String(Number(row.dataset.tensor) === state.tensor));
}

function moveInTable(event) {
  if (event.target !== byId('grid') || event.altKey || event.ctrlKey || event.metaKey || !order.length) return;
  const page = Math.max(1, Math.floor(byId('grid').clientHeight / ROW) - 2), at = order.indexOf(state.tensor);
  const to = {
    ArrowUp: at - 1,
    ArrowDown: at + 1,
    PageUp: at - page,
    PageDown: at + page,
    Home: 0,
    End: order.length - 1
  }[event.key];
  if (event.key === 'Enter' && at >= 0) return void showTensor(order[at]);
  if (to === undefined) return;
  event.preventDefault();
  const next = Math.min(Math.max(to, 0), order.length - 1);
  const grid = byId('grid'), y = next * ROW, room = grid.clientHeight - 3 * ROW;
  if (y < grid.scrollTop)
    grid.scrollTop = y;
  else if (y > grid.scrollTop + room)
    grid.scrollTop = y - room;
  change({tensor: order[next]});
  drawn = [-1, -1];
  drawRows();
}

function drawFilters() {
  const kinds = [...new Set(tensors.map((tensor) => tensor.kind))].sort(numeric.compare);
  const codecs =
      [...new Set(tests[state.test].tensors.map((tensor) => tensor?.codec ?? 'missing'))].sort(numeric.compare);
  if (state.kind && !kinds.includes(state.kind)) kinds.push(state.kind);
  if (state.codec && !codecs.includes(state.codec)) codecs.push(state.codec);
  setOptions(byId('kind'), [['', 'all'], ...kinds.map((kind) => [kind, shortened(kind, 60)])], state.kind);
  setOptions(byId('codec'), [['', 'all'], ...codecs.map((codec) => [codec, printable(codec)])], state.codec);
  if (byId('filter').value !== state.filter) byId('filter').value = state.filter;
}
