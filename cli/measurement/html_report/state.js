// What the reader has chosen. It is kept in the fragment of the address, so a view can be bookmarked and sent with
// the file: #metric=sqnr_db&test=1&sort=rel_rmse&filter=q_proj. The name of a tensor alone is an anchor, too:
// #model.layers.0.mlp.up_proj.weight

const DEFAULTS = {
  metric: 'rel_rmse',
  test: 0,
  show: [0, 1, 2, 3, 4, 5].filter((t) => t < tests.length),
  exact: false,
  all: false,
  sort: 'rel_rmse',
  dir: 'desc',
  filter: '',
  kind: '',
  codec: '',
  tensor: -1,
  theme: 'auto'
};
const state = {...DEFAULTS};
const listeners = [];  // each is told which keys have changed

const byName = new Map(tensors.map((tensor, i) => [tensor.name, i]).reverse());  // the first of several

// A tensor as a fragment names it: by its name, which other reports of the same model share, or else by its index.
const nameInFragment = (i) =>
    byName.get(tensors[i].name) === i && !/^-?\d+$/.test(tensors[i].name) ? tensors[i].name : String(i);

// The tensor whose anchor a fragment is, or -1.
function anchorOf(text) {
  try {
    return byName.get(decodeURIComponent(text)) ?? -1;
  } catch {
    return -1;
  }
}

function readFragment() {
  const text = location.hash.slice(1);
  if (text && anchorOf(text) >= 0) return {...DEFAULTS, tensor: anchorOf(text)};
  const given = new URLSearchParams(text.includes('=') ? text : '');
  const index = (key, size) => {
    const value = Number(given.get(key) ?? NaN);
    return Number.isInteger(value) && value >= 0 && value < size ? value : DEFAULTS[key];
  };
  const next = {...DEFAULTS};
  for (const key of ['sort', 'filter', 'kind', 'codec']) next[key] = given.get(key) ?? DEFAULTS[key];
  if (Object.hasOwn(FIGURES, given.get('metric') ?? '')) next.metric = given.get('metric');
  next.test = index('test', tests.length);
  next.tensor = byName.get(given.get('tensor')) ?? index('tensor', tensors.length);
  next.dir = given.get('dir') === 'asc' ? 'asc' : 'desc';
  next.exact = given.get('exact') === '1';
  next.all = given.get('all') === '1';
  if (['light', 'dark'].includes(given.get('theme'))) next.theme = given.get('theme');
  const show = (given.get('show') ?? '').split('.').map(Number);
  const known = show.filter((t, i) => Number.isInteger(t) && t >= 0 && t < tests.length && show.indexOf(t) === i);
  if (given.has('show') && known.length) next.show = known.sort((a, b) => a - b);
  return next;
}

function writeFragment() {
  const fragment = new URLSearchParams();
  for (const key in DEFAULTS) {
    const value = state[key];
    if (String(value) === String(DEFAULTS[key])) continue;
    fragment.set(
        key,
        Array.isArray(value) ? value.join('.') :
            value === true   ? '1' :
            key === 'tensor' ? nameInFragment(value) :
                               value);
  }
  const text = fragment.toString();
  if (text !== location.hash.slice(1)) history.replaceState(null, '', '#' + text);
}

function change(next) {
  const changed = new Set(Object.keys(next).filter((key) => String(next[key]) !== String(state[key])));
  if (changed.size === 0) return;
  Object.assign(state, next);
  writeFragment();
  for (const listener of listeners) listener(changed);
}
