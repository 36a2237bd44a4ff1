// Puts the parts onto the page, and again what a choice changes.

function applyTheme() {
  const theme = printing ? 'light' : state.theme;
  if (theme === 'auto')
    delete document.documentElement.dataset.theme;
  else
    document.documentElement.dataset.theme = theme;
}

function drawControls() {
  setOptions(byId('metric'), Object.entries(FIGURES).map(([key, figure]) => [key, figure.label]), state.metric);
  setOptions(byId('test'), tests.map((_, t) => [t, shortTestName(t, 34)]), state.test);
  byId('test-label').hidden = tests.length < 2;
  byId('theme').value = state.theme;
}

function drawAll() {
  applyTheme();
  drawControls();
  drawVerdicts();
  drawTotals();
  drawSizes();
  drawSpread();
  drawBytes();
  drawLayers();
  drawKinds();
  drawMap();
  drawWorst();
  drawFilters();
  arrange();
  drawTensor();
}

listeners.push((changed) => {
  const any = (...keys) => keys.some((key) => changed.has(key));
  if (any('theme')) return drawAll();
  if (any('metric', 'test')) drawControls();
  if (any('show')) drawSizes(), drawSpread();
  if (any('test')) drawBytes();
  if (any('metric', 'show', 'exact')) drawLayers(), drawKinds();
  if (any('metric', 'test', 'show', 'exact', 'tensor')) drawMap();
  if (any('test')) drawWorst(), drawFilters();
  if (any('all')) byId('all-columns').checked = state.all;
  if (any('sort', 'dir', 'filter', 'kind', 'codec', 'test', 'metric', 'show', 'all')) {
    if (any('sort', 'dir', 'filter', 'kind', 'codec')) byId('grid').scrollTop = 0;
    arrange();
  }
  if (any('tensor')) markRow();
  if (any('tensor', 'show', 'test')) drawTensor();
});

function start() {
  const weights = tensors.length ?
      `${count(reference.weights)} weights in ${count(tensors.length)} tensor${tensors.length === 1 ? '' : 's'}, ` :
      'no tensors, ';
  byId('reference').textContent = printable(reference.name);
  byId('facts').textContent =
      `${weights}${bytes(reference.bytes)}; ${tests.length} test${tests.length === 1 ? '' : 's'}`;
  const made = readMade();
  fill(
      byId('made'), made.date ? printable(made.date) + ': ' : null,
      made.command ? element('code', {}, printable(made.command)) : null);
  document.title = 'Quantization error: ' + shortened(reference.name, 60);
  byId('generator').textContent =
      'Written by ' + printable(report.generator) + '. Everything shown is in this file; it loads nothing.';
  fill(
      byId('meanings'),
      ...Object.values(FIGURES).flatMap(
          (figure) => [element('dt', {}, figure.label), element('dd', {}, figure.about)]));
  if (tests.length === 0) return problem('This report has no test to show.');
  byId('report').hidden = false;

  Object.assign(state, readFragment());
  byId('all-columns').checked = state.all;
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  drawAll();

  byId('metric').addEventListener('change', (event) => change({metric: event.target.value}));
  byId('test').addEventListener('change', (event) => change({test: Number(event.target.value)}));
  byId('theme').addEventListener('change', (event) => change({theme: event.target.value}));
  byId('exact').addEventListener('change', (event) => change({exact: event.target.checked}));
  byId('filter').addEventListener('input', (event) => change({filter: event.target.value}));
  byId('kind').addEventListener('change', (event) => change({kind: event.target.value}));
  byId('codec').addEventListener('change', (event) => change({codec: event.target.value}));
  byId('all-columns').addEventListener('change', (event) => change({all: event.target.checked}));
  byId('save-csv').addEventListener('click', saveCsv);
  byId('previous').addEventListener('click', () => stepTensor(-1));
  byId('next').addEventListener('click', () => stepTensor(1));
  byId('grid').addEventListener('keydown', moveInTable);
  byId('grid').addEventListener('scroll', () => requestAnimationFrame(() => drawRows()), {passive: true});
  // These links go to a part of the page; the fragment stays what the view is.
  for (const link of document.querySelectorAll('.links a, .skip'))
    link.addEventListener('click', (event) => {
      event.preventDefault();
      const part = byId(link.hash.slice(1));
      part.scrollIntoView();
      part.focus({preventScroll: true});
    });
  window.addEventListener('hashchange', () => {
    const toTensor = anchorOf(location.hash.slice(1)) >= 0;
    change(readFragment());
    if (toTensor) byId('tensor').scrollIntoView();
  });
  if (location.hash && anchorOf(location.hash.slice(1)) >= 0) byId('tensor').scrollIntoView();
  window.addEventListener('scroll', placeTip, {passive: true});
  window.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') hideTip();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);

  let width = window.innerWidth, waiting = 0;
  window.addEventListener('resize', () => {
    if (window.innerWidth === width || printing) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  window.addEventListener('beforeprint', () => {
    printing = true;
    applyTheme();
    drawAll();
    drawRows(true);
    byId('print-note').textContent =
        order.length > PRINTED ? `The first ${PRINTED} of ${count(order.length)} tensors, as sorted.` : '';
    for (const chart of charts.values()) chart.resize();
  });
  window.addEventListener('afterprint', () => {
    printing = false;
    byId('print-note').textContent = '';
    drawAll();
  });
}

function problem(text) {
  byId('problem').textContent = text;
  byId('problem').hidden = false;
}

if (report)
  start();
else
  problem('This page contains no report, or the report is damaged.');
