// Layers against kinds of module. Viridis reads the same with every kind of colour vision. What is worse is darker, on
// a light page and on a dark one, so that two pictures of a map can be compared.

const VIRIDIS = [
  [68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140], [40, 174, 128], [94, 201, 98],
  [173, 220, 48], [253, 231, 37]
];
const MAP_LAYERS = 1500;
const MAP_CELLS = 6000;  // more would take the browser seconds; the table below has them all

// What all colours together span at least: differences that mean nothing must not look like the best and the worst.
// 3 dB is what a tensor may be off and count as expected; factors are of the same size.
const LEAST_SPAN = {
  sqnr_db: 3,
  cosine: 1e-3,
  bits_per_weight: 1
};
const LEAST_FACTOR = Math.SQRT2;

// The tensors of each layer and kind. Kinds outside of layers are listed apart.
const grid = (() => {
  const cells = new Map(), layers = new Set(), kinds = new Map(), outside = new Map();
  tensors.forEach((tensor, i) => {
    if (!isNumber(tensor.layer)) {
      if (!outside.has(tensor.kind)) outside.set(tensor.kind, []);
      return outside.get(tensor.kind).push(i);
    }
    layers.add(tensor.layer);
    if (!kinds.has(tensor.kind)) kinds.set(tensor.kind, {weights: 0, indices: []});
    kinds.get(tensor.kind).weights += tensor.weights;
    kinds.get(tensor.kind).indices.push(i);
    const key = tensor.layer + ' ' + tensor.kind;
    if (!cells.has(key)) cells.set(key, []);
    return cells.get(key).push(i);
  });
  return {cells, kinds, outside, layers: [...layers].sort((a, b) => a - b)};
})();

function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low].map((from, i) => Math.round(from + (at - low) * (VIRIDIS[low + 1][i] - from)));
}

// 0: the best of the map, 1: the worst.
function badnessScale(figure, values) {
  const known = values.filter(Number.isFinite).filter((value) => !FIGURES[figure].ratio || value > 0);
  if (known.length === 0) return null;
  let low = Infinity, high = -Infinity;
  for (const value of known) low = Math.min(low, value), high = Math.max(high, value);
  const along = FIGURES[figure].ratio ? Math.log : (value) => value;
  const back = FIGURES[figure].ratio ? Math.exp : (value) => value;
  const least = FIGURES[figure].ratio ? Math.log(LEAST_FACTOR) : LEAST_SPAN[figure];
  const width = Math.max(along(high) - along(low), least), from = (along(low) + along(high) - width) / 2;
  const rising = FIGURES[figure].worse === 'high';
  return {
    badness: (value) => {
      const share = (along(value) - from) / width;
      return Math.min(Math.max(rising ? share : 1 - share, 0), 1);
    },
    at: (badness) => back(from + (rising ? badness : 1 - badness) * width)
  };
}

function paint(cell, badness) {
  const [r, g, b] = ramp(1 - badness);
  cell.style.background = `rgb(${r} ${g} ${b})`;
  const light = (channel) => {
    const c = channel / 255;
    return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  };
  cell.style.color = .2126 * light(r) + .7152 * light(g) + .0722 * light(b) > .18 ? '#000' : '#fff';
}

let tipOf = null;
function showTip(target, lines) {
  const tip = byId('tip');
  fill(tip, element('b', {class: 'names'}, lines[0]), ...lines.slice(1).map((line) => element('div', {}, line)));
  tip.hidden = false;
  tipOf = target;
  placeTip();
}
function placeTip() {
  const tip = byId('tip');
  if (tip.hidden) return;
  const box = tipOf.getBoundingClientRect(), own = tip.getBoundingClientRect();
  tip.style.left =
      Math.max(6, Math.min(box.left + (box.width - own.width) / 2, window.innerWidth - own.width - 6)) + 'px';
  tip.style.top = (box.top > own.height + 10 ? box.top - own.height - 6 : box.bottom + 6) + 'px';
}
function hideTip() { byId('tip').hidden = true; }

function describe(indices, figures) {
  const one = indices.length === 1;
  const name = one ? shortened(tensors[indices[0]].name, 80) :
                     `${indices.length} tensors, ${shortened(tensors[indices[0]].name, 60)} …`;
  if (!figures) return [name, 'not in this test'];
  const kept = one ? [`${tests[state.test].tensors[indices[0]].codec}, ${shape(tensors[indices[0]])}`] : [];
  return [
    name, ...kept,
    ...['rel_rmse', 'sqnr_db', 'max_abs', 'bits_per_weight'].map(
        (figure) => `${FIGURES[figure].short} ${printFigure(figure, figures)}`)
  ];
}

function worstOf(indices) {
  return indices.reduce((worst, i) => {
    const value = (of) => figureValue('rel_rmse', tests[state.test].tensors[of]);
    return compareValues(value(i), value(worst), true) < 0 ? i : worst;
  }, indices[0]);
}

function mapCell(tag, indices, figures, scale, label, text) {
  const value = figureValue(state.metric, figures);
  const exact = isExact(figures) && state.metric !== 'bits_per_weight';
  const made = element(tag, {
    class: classes('cell', !figures && 'no-cell', exact && 'exact-cell', indices.includes(state.tensor) && 'chosen'),
    type: tag === 'button' ? 'button' : null,
    'data-value': figures && isNumber(value) ? String(value) : null,
    'aria-label': `${label}: ${figures ? printFigure(state.metric, figures) : 'not in this test'}`
  });
  if (figures && !exact && Number.isFinite(value) && scale) paint(made, scale.badness(value));
  if (text) made.append(text);
  if (indices.length) {
    const tell = () => showTip(made, describe(indices, figures));
    made.addEventListener('mouseenter', tell);
    made.addEventListener('focus', tell);
    made.addEventListener('mouseleave', hideTip);
    made.addEventListener('blur', hideTip);
    made.addEventListener('click', () => {
      hideTip();
      showTensor(worstOf(indices));
    });
  }
  return made;
}

// What fits into a cell: the figure without its unit, which the caption names.
function cellText(figures) {
  if (isExact(figures)) return '';
  const value = figures[state.metric];
  if (!isNumber(value)) return '';
  if (FIGURES[state.metric].print === percent)
    return 100 * value < 1000 && 100 * value >= 1e-3 ? number(100 * value) : '';
  if (state.metric === 'sqnr_db') return ratio(value, 1);
  if (state.metric === 'bits_per_weight') return value.toFixed(value < 10 ? 2 : 1);
  return '';
}

// Units are in the caption.
function tickText(value) {
  const {print} = FIGURES[state.metric];
  return print === percent ? number(100 * value) : print === decibels ? value.toFixed(1) : print(value);
}

function drawLegend(scale, some) {
  const legend = byId('map-legend');
  const bar = element('div', {class: 'ramp'});
  const stops = Array.from({length: 17}, (_, i) => `rgb(${ramp(1 - i / 16).join(' ')})`);
  bar.style.background = `linear-gradient(to right, ${stops.join(', ')})`;
  const worse = FIGURES[state.metric] === FIGURES.bits_per_weight ? ['fewer', 'more'] : ['better', 'worse'];
  const ticks = !scale ? [] : isNarrow() ? [0, .5, 1].map(scale.at) : [0, .25, .5, .75, 1].map(scale.at);
  const key = (style, text) => element('span', {}, element('span', {class: 'key ' + style}), text);
  fill(
      legend,
      scale ? element(
                  'div', {class: 'scale'}, element('span', {}, worse[0]), bar, element('span', {}, worse[1]),
                  element('div', {class: 'ticks'}, ...ticks.map((value) => element('span', {}, tickText(value))))) :
              null,
      some.exact ? key('exact-cell', 'exact') : null, some.none ? key('no-cell', 'no such tensor') : null);
}

// One cell of the map takes part in the order of Tab; the arrow keys go from there.
function moveInMap(event) {
  const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
  const rows = [...byId('map-cells').querySelectorAll('[role=row]')]
                   .map((row) => [...row.querySelectorAll('.cell')])
                   .filter((row) => row.length);
  const y = rows.findIndex((row) => row.includes(document.activeElement));
  if (y < 0) return;
  if (event.key === 'Enter' || event.key === ' ') {
    event.preventDefault();
    return void document.activeElement.click();
  }
  if (!step) return;
  event.preventDefault();
  const x = rows[y].indexOf(document.activeElement);
  const next =
      rows[Math.min(Math.max(y + step[1], 0), rows.length - 1)][Math.min(Math.max(x + step[0], 0), rows[y].length - 1)];
  document.activeElement.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function drawMap() {
  const {outside} = grid, t = state.test, layers = grid.layers.slice(0, MAP_LAYERS);
  const compared = [...new Set([...state.show, t])];
  const hasError = (indices) =>
      indices.some((i) => compared.some((s) => tests[s].tensors[i] && !isExact(tests[s].tensors[i])));
  const ofKind = (kind) => layers.map((layer) => grid.cells.get(layer + ' ' + kind) ?? []);
  const kindsAll = [...grid.kinds.keys()], outsideAll = [...outside.keys()];
  const inexact = kindsAll.filter((kind) => hasError(grid.kinds.get(kind).indices));
  const outsideInexact = outsideAll.filter((kind) => hasError(outside.get(kind)));
  const exact = kindsAll.length + outsideAll.length - inexact.length - outsideInexact.length;
  byId('exact-label').hidden = exact === 0;
  byId('exact-text').textContent =
      exact === 1 ? 'also show the kind without errors' : `also show the ${exact} kinds without errors`;
  byId('exact').checked = state.exact;
  let kinds = state.exact ? kindsAll : inexact;
  const fitting = Math.max(1, Math.floor(MAP_CELLS / Math.max(layers.length, 1)));
  const cut = kinds.length > fitting;
  if (cut) kinds = [...kinds].sort((a, b) => grid.kinds.get(b).weights - grid.kinds.get(a).weights).slice(0, fitting);
  const chips = (state.exact ? outsideAll : outsideInexact).slice(0, 100);

  const rows =
      kinds.map((kind) => ({kind, cells: ofKind(kind).map((indices) => ({indices, figures: combined(t, indices)}))}));
  const apart = chips.map((kind) => ({kind, indices: outside.get(kind), figures: combined(t, outside.get(kind))}));
  const shown = [...rows.flatMap((row) => row.cells), ...apart];
  const scale = badnessScale(
      state.metric, shown.filter((one) => one.figures).map((one) => figureValue(state.metric, one.figures)));
  drawLegend(scale, {exact: shown.some((one) => isExact(one.figures)), none: shown.some((one) => !one.figures)});
  fill(
      byId('map-caption'), FIGURES[state.metric].label + (FIGURES[state.metric].print === percent ? ' (%)' : '') + ' ',
      element('small', {class: 'names'}, tests.length > 1 ? shortTestName(t, 60) : ''),
      cut ? element('small', {}, ` the ${fitting} kinds with the most weights`) : null);

  const node = byId('map-cells');
  node.hidden = rows.length === 0;
  const longest = kinds.reduce((most, kind) => Math.max(most, printable(kind).length), 0);
  const labelWidth = isNarrow() ? (layers.length > 16 ? 118 : 165) : Math.min(290, 14 + 8 * longest);
  const width =
      (node.parentElement.clientWidth - 2 * (isNarrow() ? 12 : 16) - labelWidth) / Math.max(layers.length, 1) - 2;
  const least = isNarrow() ? 5 : 8;
  const every = [1, 2, 4, 5, 8, 10, 20, 50, 100, 200].find((step) => (Math.max(width, least) + 2) * step >= 24) ?? 500;
  const withText = width >= 29 && FIGURES[state.metric].print !== number && FIGURES[state.metric].print !== cosine;
  const map = element(
      'div', {class: 'map', role: 'grid', 'aria-label': 'Layers and kinds of module', on: {keydown: moveInMap}});
  map.style.gridTemplateColumns = `${labelWidth}px repeat(${layers.length}, minmax(${least}px, 1fr))`;
  for (const {kind, cells} of rows)
    map.append(element(
        'div', {role: 'row'},
        element(
            'div', {role: 'rowheader', class: 'row-name names', title: printable(kind)},
            shortened(kind, isNarrow() ? Math.floor(labelWidth / 7.2) : 34)),
        ...cells.map(({indices, figures}, x) => {
          const made = mapCell(
              'div', indices, figures, scale, `layer ${layers[x]}, ${printable(kind)}`,
              withText && figures ? cellText(figures) : '');
          made.setAttribute('role', 'gridcell');
          made.tabIndex = -1;
          return made;
        })));
  map.append(element(
      'div', {role: 'row'}, element('div', {role: 'columnheader', class: 'row-name'}, 'layer'),
      ...layers.map(
          (layer, x) => element('div', {role: 'columnheader', class: 'column-name'}, x % every === 0 ? layer : ''))));
  const first = map.querySelector('.cell.chosen') ?? map.querySelector('.cell');
  if (first) first.tabIndex = 0;
  fill(node, map);

  fill(
      byId('map-outside'),
      apart.length ? element(
                         'div', {class: 'chips'}, element('span', {}, 'Outside the layers:'),
                         ...apart.map(
                             ({kind, indices, figures}) => mapCell(
                                 'button', indices, figures, scale, printable(kind),
                                 element(
                                     'span', {class: 'names'},
                                     `${shortened(kind, 40)}  ${printFigure(state.metric, figures)}`)))) :
                     null,
      rows.length === 0 && apart.length === 0 ?
          element(
              'p', {class: 'empty-note'},
              tensors.length ? 'No kind of module has an error.' : 'There is nothing to compare.') :
          null);
}
