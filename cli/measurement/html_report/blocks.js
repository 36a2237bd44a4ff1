// The summary, and what is worst.

// Figures of a test are those of the tensors that the document headlines; its size is that of all.
const headlined = (t) => tests[t][tests[t].headline];
const headline = (t) => ({...headlined(t), bits_per_weight: tests[t].total.bits_per_weight});

// What those figures leave out.
function othersText(t) {
  const test = tests[t], others = test.total.tensors - headlined(t).tensors;
  if (!others) return '';
  const parts = [];
  if (test.headline === 'quantized' && test.cast.tensors) parts.push(`${count(test.cast.tensors)} cast`);
  if (test.kept.tensors) parts.push(`${count(test.kept.tensors)} kept as they are`);
  return parts.join(', ') + `; SQNR of all ${count(test.total.tensors)}: ` + printFigure('sqnr_db', test.total);
}

function drawVerdicts() {
  const items = tests.flatMap((test, t) => {
    const of = tests.length > 1 ? `${testName(t)}: ` : '';
    const others = othersText(t);
    const said = test.verdicts ?? [];
    if (said.length === 0) return [element('li', {}, of + 'nothing was converted')];
    return said.map(
        ({text, worse_than_expected, broken, worst}, i) => element(
            'li', {class: broken || worse_than_expected ? 'warning' : null}, of + printable(text.split('; worst: ')[0]),
            isNumber(worst) && tensors[worst] ? '; worst: ' : null,
            isNumber(worst) && tensors[worst] ? tensorButton(worst, isNarrow() ? 30 : 60) : null,
            i + 1 === said.length && others ? '; ' + others : null));
  });
  fill(byId('verdicts'), ...items);
}

function bestOf(figure, t) {
  if (tests.length < 2 || figure === 'bits_per_weight') return false;
  const values =
      tests.map((test) => figureValue(figure, headline(tests.indexOf(test)))).filter((value) => !Number.isNaN(value));
  const best = FIGURES[figure].worse === 'low' ? Math.max(...values) : Math.min(...values);
  return values.some((value) => value !== best) && figureValue(figure, headline(t)) === best;
}

function drawTotals() {
  const several = tests.length > 1;
  const counts = tests.map((test) => {
    const of = {compared: 0, broken: 0};
    test.tensors.forEach((tensor, i) => {
      if (!tensor) return;
      of.compared += 1;
      of.broken += tensor.lost > 0 || tensor.nan + tensor.inf > tensors[i].nan + tensors[i].inf;
    });
    return of;
  });
  const shownBox = (t) => element('input', {
    type: 'checkbox',
    class: 'shown',
    'aria-label': 'Show ' + testName(t),
    checked: state.show.includes(t),
    on: {
      change: (event) => {
        const next =
            event.target.checked ? [...state.show, t].sort((a, b) => a - b) : state.show.filter((s) => s !== t);
        if (next.length)
          change({show: next});
        else
          event.target.checked = true;
      }
    }
  });
  const figure = (key) => ({
    key,
    label: FIGURES[key].short,
    title: FIGURES[key].about,
    cell: (t) => printFigure(key, headline(t)),
    value: (t) => figureValue(key, headline(t)),
    emphasis: (t) => bestOf(key, t)
  });
  sortingTable(
      byId('totals'), 'Totals of every test',
      [
        {
          key: 'name',
          label: several ? 'Tests shown' : 'Test',
          pin: true,
          text: true,
          value: (t) => testName(t),
          cell: (t) => element(
              'span', {}, several ? shownBox(t) : null, several ? swatch(t) : null,
              element(
                  'span', {class: 'names test-name', title: printable(tests[t].name)},
                  shortTestName(t, isNarrow() ? 17 : 40)))
        },
        {key: 'bytes', label: 'Size', cell: (t) => bytes(tests[t].bytes), value: (t) => tests[t].bytes},
        ...['sqnr_db', 'rel_rmse'].map(figure),
        figure('bits_per_weight'),
        {
          key: 'share',
          label: 'of ref.',
          title: 'Size as a share of the reference',
          cell: (t) => reference.bytes > 0 ? percent(tests[t].bytes / reference.bytes) : NOTHING,
          value: (t) => tests[t].bytes / reference.bytes
        },
        ...['rmse', 'mae', 'max_abs', 'mean_rel', 'cosine'].map(figure),
        {
          key: 'figures_of',
          label: 'figures of',
          title:
              'The tensors that the figures describe: the quantized ones; if there are none, the cast ones; if there ' +
              'are none of those either, the kept ones',
          cell: (t) => element(
              'span', {title: `of ${count(counts[t].compared)} compared tensors`},
              `${count(headlined(t).tensors)} ${tests[t].headline}`),
          value: (t) => headlined(t).tensors
        },
      ],
      tests.map((_, t) => t));

  const findings = [];
  tests.forEach((test, t) => {
    const of = several ? `${testName(t)}: ` : '';
    if (test.missing.length) {
      const shown = test.missing.slice(0, 1000);
      findings.push(element(
          'li', {class: 'warning'},
          element(
              'details', {class: 'missing'},
              element(
                  'summary', {},
                  `${of}${count(test.missing.length)} tensor${
                      test.missing.length === 1 ? '' : 's'} of the reference missing or not comparable`),
              element(
                  'ul', {}, ...shown.map((name) => element('li', {class: 'names'}, printable(name))),
                  shown.length < test.missing.length ?
                      element('li', {}, `and ${count(test.missing.length - shown.length)} more`) :
                      null))));
    }
    const {broken} = counts[t];
    if (broken)
      findings.push(element(
          'li', {class: 'warning'},
          `${of}${count(broken)} tensor${
              broken === 1 ? ' has' : 's have'} NaN or infinite values where the reference has numbers`));
  });
  const odd = tensors.filter((tensor) => tensor.nan + tensor.inf > 0).length;
  if (odd)
    findings.push(element(
        'li', {class: 'warning'},
        `reference: ${count(odd)} tensor${odd === 1 ? ' has' : 's have'} NaN or infinite values`));
  fill(byId('findings'), ...findings);
}

function drawWorst() {
  const test = tests[state.test], length = isNarrow() ? 23 : window.innerWidth < 1100 ? 60 : 27;
  const worst = test.worst.filter((i) => test.tensors[i] && !isExact(test.tensors[i])).slice(0, 10);
  const name = {
    key: 'name',
    label: 'Tensor',
    pin: true,
    text: true,
    cell: (i) => tensorButton(i, length),
    value: (i) => tensors[i].name
  };
  const figure = (key) => ({
    key,
    label: FIGURES[key].short,
    cell: (i) => printFigure(key, test.tensors[i]),
    value: (i) => figureValue(key, test.tensors[i])
  });
  if (worst.length)
    sortingTable(
        byId('worst-tensors'), 'The worst tensors', [name, figure('rel_rmse'), figure('sqnr_db'), figure('max_abs')],
        worst);
  else
    fill(byId('worst-tensors'), element('p', {class: 'empty-note'}, 'No tensor has an error.'));

  const blocks = [];
  test.tensors.forEach((tensor, i) => {
    if (tensor?.worst_block && tensor.worst_block.rmse > 0) blocks.push(i);
  });
  blocks.sort((a, b) => test.tensors[b].worst_block.rmse - test.tensors[a].worst_block.rmse);
  const block = (i) => test.tensors[i].worst_block;
  if (blocks.length)
    sortingTable(
        byId('worst-blocks'), 'The worst blocks',
        [
          name, {key: 'rmse', label: 'RMSE', cell: (i) => number(block(i).rmse), value: (i) => block(i).rmse},
          {key: 'absmax', label: 'absmax', cell: (i) => number(block(i).absmax), value: (i) => block(i).absmax},
          {key: 'at', label: 'first weight', cell: (i) => position(tensors[i], block(i).at), value: (i) => block(i).at},
          {
            key: 'times',
            label: '× tensor',
            title: 'RMSE of the block divided by that of its tensor',
            cell: (i) => number(block(i).rmse / test.tensors[i].rmse),
            value: (i) => block(i).rmse / test.tensors[i].rmse
          }
        ],
        blocks.slice(0, 10));
  else
    fill(byId('worst-blocks'), element('p', {class: 'empty-note'}, 'No block has an error.'));
}

// "[12, 64]": of a matrix the row and the column, which say more than an index into all of it.
function position(tensor, at) {
  if (!isNumber(at)) return NOTHING;
  const indices = [];
  for (let rest = at, d = tensor.shape.length - 1; d >= 0; --d) {
    indices.unshift(tensor.shape[d] > 0 ? rest % tensor.shape[d] : 0);
    rest = Math.floor(rest / Math.max(tensor.shape[d], 1));
  }
  return '[' + indices.join(', ') + ']';
}
