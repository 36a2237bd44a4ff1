// Figures and pictures to take along.

// A link that is clicked at once: the page may neither ask a server nor write a file by itself.
function saveFile(name, url) {
  const link = element('a', {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
}

// A spreadsheet takes a text that begins like this for a formula; an apostrophe before it says that it is none. The
// same rule as that of `nibble measure --csv`.
function csvCell(value) {
  if (typeof value === 'number') return Number.isNaN(value) ? '' : String(value).replace('Infinity', 'inf');
  const text = /^[=+\-@\t\r]/.test(value) ? '\'' + value : value;
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

// The rows of the table as they are filtered and sorted, with all columns. Figures have all their digits.
function csvText() {
  const raw = {
    name: (i) => tensors[i].name,
    codec: (i) => tests[state.test].tensors[i]?.codec ?? 'missing',
    shape: (i) => tensors[i].shape.join('x'),
    dtype: (i) => tensors[i].dtype
  };
  const lines = [columns.map(({key}) => csvCell(key)).join(',')];
  for (const i of order)
    lines.push(columns.map(({key, value}) => csvCell(raw[key] ? raw[key](i) : value ? value(i) : '')).join(','));
  return lines.join('\n') + '\n';
}

function saveCsv() {
  const url = URL.createObjectURL(new Blob([csvText()], {type: 'text/csv;charset=utf-8'}));
  saveFile('tensors.csv', url);
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Canvases are transparent: the picture gets the colour of the page under it.
function pngOf(canvas) {
  const picture = document.createElement('canvas');
  picture.width = canvas.width;
  picture.height = canvas.height;
  const context = picture.getContext('2d');
  context.fillStyle = colour('surface');
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(canvas, 0, 0);
  return picture.toDataURL('image/png');
}
function savePng(canvas, id) { saveFile(id + '.png', pngOf(canvas)); }
