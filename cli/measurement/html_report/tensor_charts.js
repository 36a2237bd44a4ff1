// How the errors of one tensor are spread, and how its codes are used.

const RAISED = '⁻⁰¹²³⁴⁵⁶⁷⁸⁹';
const raised = (exponent) => '2' + String(exponent).replace(/[-0-9]/g, (c) => RAISED['-0123456789'.indexOf(c)]);

function drawErrors(i) {
  const shown = state.show.filter((t) => tests[t].tensors[i]?.error_histogram?.length);
  const bins = shown.map((t) => new Map(tests[t].tensors[i].error_histogram));
  const exponents = bins.flatMap((of) => [...of.keys()].filter(isNumber));
  const labels = bins.some((of) => of.has('zero')) ? ['zero'] : [];
  if (exponents.length)
    for (let b = Math.min(...exponents); b <= Math.max(...exponents); ++b) labels.push(b);
  draw(
      'error-chart',
      labels.length ? 'Histogram of the error of this tensor' : 'None of the tests shown has figures for this tensor.',
      labels.length ? {
        type: 'bar',
        data: {
          labels: labels.map((b) => b === 'zero' ? '0' : raised(b)),
          datasets: shown.map((t, s) => {
            const total = [...bins[s].values()].reduce((a, b) => a + b, 0);
            return {
              ...series(t, labels.map((b) => (bins[s].get(b) ?? 0) / total)),
              borderWidth: 0,
              categoryPercentage: .9,
              barPercentage: 1
            };
          })
        },
        options: {
          scales: {
            x: axis('|error|', {grid: {display: false}, ticks: {color: colour('muted'), maxRotation: 0}}),
            y: axis('', {ticks: {color: colour('muted'), callback: (value) => tick(100 * value) + ' %'}})
          }
        },
        tooltip: {
          callbacks: {
            title: (items) => labels[items[0].dataIndex] === 'zero' ?
                'no error' :
                `${raised(labels[items[0].dataIndex])} ≤ |error| < ${raised(labels[items[0].dataIndex] + 1)}`,
            label: (item) => `${item.dataset.label}: ${percent(item.raw)}`
          }
        },
      } :
                null);
}

function drawCodes(i) {
  const shown = state.show.filter((t) => tests[t].tensors[i]?.code_use?.length);
  const entropy = (t) => isNumber(tests[t].tensors[i].entropy) ? tests[t].tensors[i].entropy.toFixed(2) : NOTHING;
  byId('code-caption').textContent = !shown.length ?
      '' :
      shown.length > 1 ?
      'with their entropy in bits' :
      `entropy: ${entropy(shown[0])} of ${tick(Math.log2(tests[shown[0]].tensors[i].code_use.length))} bits`;
  if (!shown.length) return draw('code-chart', 'The use of codes is counted for 4-bit codecs only.', null);
  const codes = Math.max(...shown.map((t) => tests[t].tensors[i].code_use.length));
  draw('code-chart', 'Share of the weights that have each code', {
    type: 'bar',
    data: {
      labels: Array.from({length: codes}, (_, code) => code),
      datasets: [
        ...shown.map((t) => {
          const use = tests[t].tensors[i].code_use, total = use.reduce((a, b) => a + b, 0) || 1;
          return {
            ...series(t, use.map((uses) => uses / total)),
            label: `${shortTestName(t, isNarrow() ? 32 : 50)}: ${entropy(t)}`,
            borderWidth: 0,
            categoryPercentage: .85,
            barPercentage: 1
          };
        }),
        {
          type: 'line',
          label: 'if all were used equally often',
          data: Array(codes).fill(1 / codes),
          borderColor: colour('muted'),
          backgroundColor: 'transparent',
          borderWidth: 1,
          borderDash: [4, 4],
          pointRadius: 0,
          pointStyle: 'line'
        }
      ]
    },
    options: {
      scales: {
        x: axis('code', {grid: {display: false}, ticks: {color: colour('muted'), maxRotation: 0}}),
        y: axis('', {beginAtZero: true, ticks: {color: colour('muted'), callback: (value) => tick(100 * value) + ' %'}})
      }
    },
    tooltip: {
      callbacks:
          {title: (items) => 'code ' + items[0].label, label: (item) => `${item.dataset.label}: ${percent(item.raw)}`}
    }
  });
}
