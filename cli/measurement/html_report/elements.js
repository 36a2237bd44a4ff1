// Elements, and small tables that sort. Names come from files of strangers: they are only ever text.

const byId = (id) => document.getElementById(id);
const numeric = new Intl.Collator('en', {numeric: true});
let printing = false;  // paper is wide and light, whatever the screen is
const isNarrow = () => !printing && window.innerWidth <= 620;

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === 'on')
      for (const event in value) made.addEventListener(event, value[event]);
    else
      made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function fill(target, ...children) { target.replaceChildren(...children.filter((child) => child !== null)); }

const classes = (...names) => names.filter(Boolean).join(' ') || null;

function setOptions(select, options, chosen) {
  fill(select, ...options.map(([value, text]) => {
    const option = element('option', {}, text);
    option.value = value;
    option.selected = String(value) === String(chosen);
    return option;
  }));
}

const seriesColour = (t) => getComputedStyle(document.documentElement).getPropertyValue('--series-' + t % 6).trim();

// The policy of this page forbids style attributes in markup; properties set from here are not markup.
function swatch(t) {
  const made = element('span', {class: 'swatch', 'aria-hidden': 'true'});
  made.style.background = `var(--series-${t % 6})`;
  return made;
}

function cellOf(column, row) {
  const content = column.cell(row);
  const value = column.value ? column.value(row) : undefined;
  const attributes = {
    class: classes(
        column.text && 'text', column.pin && 'pin', content === NOTHING && 'nothing', column.emphasis?.(row) && 'best'),
    'data-figure': column.key,
    'data-value': typeof value === 'number' ? String(value) : null
  };
  return element(column.pin ? 'th' : 'td', column.pin ? {...attributes, scope: 'row'} : attributes, content);
}

function compareValues(a, b, descending) {
  if (typeof a === 'string') return descending ? numeric.compare(b, a) : numeric.compare(a, b);
  const none = Number.isNaN(a) - Number.isNaN(b);  // what is not there is last in either order
  return none || (a === b ? 0 : (a < b) === descending ? 1 : -1);
}

function headerOf(column, sorted, descending, choose) {
  return element(
      'th', {
        scope: 'col',
        class: classes(column.text && 'text', column.pin && 'pin'),
        'data-column': column.key,
        title: column.title,
        'aria-sort': sorted ? (descending ? 'descending' : 'ascending') : null
      },
      choose ? element(
                   'button', {type: 'button', on: {click: () => choose(column)}}, element('span', {}, column.label),
                   column.under ? element('small', {}, column.under) : null) :
               element('span', {}, column.label));
}

// A table of few enough rows to draw all of them. Columns: key, label, cell(row), value(row) to sort by, text, pin.
function sortingTable(target, caption, columns, rows) {
  let sort = null;
  const draw = (focused) => {
    const column = sort && columns.find((one) => one.key === sort.key);
    const shown =
        column ? [...rows].sort((a, b) => compareValues(column.value(a), column.value(b), sort.descending)) : rows;
    const choose = (chosen) => {
      const again = sort && sort.key === chosen.key;
      sort = {key: chosen.key, descending: again ? !sort.descending : !chosen.text};
      draw(chosen.key);
    };
    fill(
        target,
        element(
            'table', {'aria-label': caption},
            element(
                'thead', {},
                element(
                    'tr', {},
                    ...columns.map(
                        (one) => headerOf(one, one === column, sort && sort.descending, one.value ? choose : null)))),
            element('tbody', {}, ...shown.map((row) => element('tr', {}, ...columns.map((one) => cellOf(one, row)))))));
    if (focused) target.querySelector(`th[data-column="${CSS.escape(focused)}"] button`).focus();
  };
  draw();
}

function tensorButton(i, length) {
  return element(
      'button', {type: 'button', class: 'name', title: printable(tensors[i].name), on: {click: () => showTensor(i)}},
      shortened(tensors[i].name, length));
}

function showTensor(i) {
  change({tensor: i});
  byId('tensor').scrollIntoView({block: 'start'});
  byId('tensor').focus({preventScroll: true});
}
