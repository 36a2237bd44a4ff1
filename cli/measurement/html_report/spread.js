// How the errors of tensors are spread, and where the bytes are.

const BINS = 40;  // at most

// The tensors of a test that were converted and have an error.
function inexactTensors(t) {
  return tests[t].tensors.filter((tensor) => tensor && tensor.converted !== false && isNumber(tensor.sqnr_db));
}

function drawSpread() {
  const shown = state.show.filter((t) => inexactTensors(t).length > 0);
  const values = shown.map((t) => inexactTensors(t).map((tensor) => tensor.sqnr_db));
  let low = Infinity, high = -Infinity;
  for (const value of values.flat()) low = Math.min(low, value), high = Math.max(high, value);
  const step =
      [.1, .2, .5, 1, 2, 5, 10, 20].find((width) => (high - low) / width < BINS - 1) ?? (high - low) / (BINS - 1);
  const first = Math.floor(low / step), bins = shown.length ? Math.floor(high / step) - first + 1 : 0;
  const edge = (bin) => Number(((first + bin) * step).toPrecision(6));
  draw(
      'spread-chart', bins ? 'Number of tensors by SQNR, for each test' : 'No converted tensor has an error.',
      bins ?
          {
            type: 'bar',
            data: {
              labels: Array.from({length: bins}, (_, bin) => edge(bin)),
              datasets: shown.map((t, s) => {
                const counts = Array(bins).fill(0);
                for (const value of values[s]) counts[Math.min(bins - 1, Math.floor(value / step) - first)] += 1;
                return {...series(t, counts), borderWidth: 0, categoryPercentage: .95, barPercentage: 1};
              })
            },
            options: {
              scales: {
                x: axis('SQNR (dB)', {grid: {display: false}, ticks: {color: colour('muted'), maxRotation: 0}}),
                y: axis('tensors', {beginAtZero: true, ticks: {color: colour('muted'), precision: 0}})
              }
            },
            tooltip:
                {
                  callbacks:
                      {
                        title: (items) => `${edge(items[0].dataIndex)} to ${edge(items[0].dataIndex + 1)} dB`,
                        label: (item) => `${item.dataset.label}: ${count(item.raw)} tensor${item.raw === 1 ? '' : 's'}`
                      }
                }
          } :
          null);
}

function drawBytes() {
  const t = state.test, limit = 24, kinds = new Map(), codecs = [];
  tests[t].tensors.forEach((tensor, i) => {
    if (!tensor) return;
    if (!codecs.includes(tensor.codec)) codecs.push(tensor.codec);
    const {kind} = tensors[i];
    if (!kinds.has(kind)) kinds.set(kind, {before: 0, after: 0, of: new Map()});
    const sums = kinds.get(kind);
    sums.before += tensors[i].bytes;
    sums.after += tensor.bytes;
    sums.of.set(tensor.codec, (sums.of.get(tensor.codec) ?? 0) + tensor.bytes);
  });
  const rows = [...kinds.entries()].sort((a, b) => b[1].after - a[1].after).slice(0, limit);
  byId('bytes-caption').textContent = (tests.length > 1 ? shortTestName(t, 30) : '') +
      (kinds.size > limit ? ` the ${limit} largest of ${count(kinds.size)} kinds` : '');
  draw(
      'bytes-chart', rows.length ? 'Bytes of each kind of module, by codec' : 'There is nothing to compare.',
      rows.length ? {
        type: 'bar',
        data: {
          labels: rows.map(([kind]) => shortened(kind, isNarrow() ? 20 : 28)),
          datasets: codecs.map((codec, c) => ({
                                 label: shortened(codec, 30),
                                 data: rows.map(([, sums]) => sums.of.get(codec) ?? 0),
                                 backgroundColor: seriesColour(c),
                                 maxBarThickness: 18,
                                 pointStyle: 'rect'
                               }))
        },
        options: {
          indexAxis: 'y',
          scales: {
            x: axis('', {
              stacked: true,
              ticks: {
                color: colour('muted'),
                callback: (value) => bytes(value).replace(/\.0+ /, ' '),
                maxTicksLimit: isNarrow() ? 3 : 5,
                maxRotation: 0
              }
            }),
            y: axis('', {stacked: true, grid: {display: false}, ticks: {color: colour('text'), autoSkip: false}})
          }
        },
        tooltip: {
          filter: (item) => item.raw > 0,
          callbacks: {
            title: (items) => items.length ? printable(rows[items[0].dataIndex][0]) : '',
            label: (item) => `${item.dataset.label}: ${bytes(item.raw)}`,
            footer: (items) => items.length ? `in the reference: ${bytes(rows[items[0].dataIndex][1].before)}` : ''
          }
        }
      } :
                    null,
      90 + rows.length * 22);
}
