// One tensor: what it is, and its figures in every test that is shown.

function currentTensor() {
  if (state.tensor >= 0) return state.tensor;
  return tests[state.test]?.worst?.[0] ?? (tensors.length ? 0 : -1);
}

function drawTensor() {
  const i = currentTensor(), tensor = tensors[i];
  byId('tensor').hidden = !tensor;
  if (!tensor) return;
  byId('tensor-name').textContent = printable(tensor.name);
  const anchor = byName.get(tensor.name) === i && tensor.name.isWellFormed?.() !== false && tensor.name !== '';
  byId('tensor-link').hidden = !anchor;
  if (anchor) byId('tensor-link').href = '#' + encodeURIComponent(tensor.name);
  const blocks = tensor.absmax;
  const facts = [
    ['Kind', printable(tensor.kind)], ['Layer', isNumber(tensor.layer) ? tensor.layer : NOTHING],
    ['Type', printable(tensor.dtype)], ['Shape', shape(tensor)], ['Weights', count(tensor.weights)],
    ['Size before', bytes(tensor.bytes)], ['Mean', number(tensor.mean)], ['RMS', number(tensor.rms)],
    ['Kurtosis (normal: 3)', number(tensor.kurtosis)], ['Outlier columns', count(tensor.outlier_columns)],
    ['Their energy', percent(tensor.outlier_energy)],
    ['absmax of blocks of 64', blocks ? `${number(blocks.min)} to ${number(blocks.max)}` : NOTHING],
    ['its mean ± deviation', blocks ? `${number(blocks.mean)} ± ${number(blocks.std)}` : NOTHING],
    [
      'NaN, infinite',
      `${count(tensor.nan)}, ${count(tensor.inf)}` +
          (tensor.beyond_fp32 ? `; ${count(tensor.beyond_fp32)} beyond fp32` : '')
    ]
  ];
  fill(
      byId('tensor-reference'),
      ...facts.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value))));

  // Figures are rows here: tests stand side by side, and few of them fit onto a phone.
  const of = (t) => tests[t].tensors[i];
  const figure = (key) =>
      ({key, label: FIGURES[key].label, print: (t) => printFigure(key, of(t)), value: (t) => figureValue(key, of(t))});
  const unlessExact = (t, print) => of(t) && !isExact(of(t)) ? print(of(t)) : NOTHING;
  const rows = [
    {key: 'codec', label: 'Codec', print: (t) => of(t) ? printable(of(t).codec) : 'missing'},
    ...['sqnr_db', 'rel_rmse', 'rmse', 'mae', 'max_abs'].map(figure), {
      key: 'max_abs_at',
      label: '… at weight',
      print: (t) => unlessExact(t, (test) => position(tensor, test.max_abs_at))
    },
    ...['mean_rel', 'cosine'].map(figure), {
      key: 'worst_block',
      label: 'RMSE of the worst block',
      print: (t) => unlessExact(t, (test) => number(test.worst_block?.rmse)),
      value: (t) => of(t)?.worst_block?.rmse ?? NaN
    },
    {
      key: 'worst_block_at',
      label: '… its first weight',
      print: (t) => unlessExact(t, (test) => position(tensor, test.worst_block?.at))
    },
    figure('bits_per_weight'),
    {key: 'bytes', label: 'Size', print: (t) => bytes(of(t)?.bytes), value: (t) => of(t)?.bytes ?? NaN}, {
      key: 'unusual',
      label: 'NaN, infinite',
      print: (t) => of(t) ?
          `${count(of(t).nan)}, ${count(of(t).inf)}` + (of(t).lost ? `; ${count(of(t).lost)} had a number` : '') :
                                                                     NOTHING
    }
  ];
  fill(
      byId('tensor-figures'),
      element(
          'table', {'aria-label': 'Figures of this tensor in every test'},
          element(
              'thead', {},
              element(
                  'tr', {}, element('td', {class: 'text pin'}),
                  ...state.show.map(
                      (t) => element(
                          'th', {scope: 'col'}, tests.length > 1 ? swatch(t) : null,
                          element(
                              'span', {class: 'names test-name', title: printable(tests[t].name)},
                              shortTestName(t, isNarrow() ? 16 : 26)))))),
          element(
              'tbody', {},
              ...rows.map(
                  (row) => element(
                      'tr', {}, element('th', {class: 'text pin', scope: 'row'}, row.label),
                      ...state.show.map((t) => cellOf({key: row.key, cell: row.print, value: row.value}, t)))))));
  drawErrors(i);
  drawCodes(i);
}

// The neighbour in the order of the table above, so that a sorted and filtered list can be gone through.
function stepTensor(by) {
  const at = order.indexOf(currentTensor());
  const next = order[at < 0 ? 0 : at + by];
  if (next !== undefined) change({tensor: next});
}
