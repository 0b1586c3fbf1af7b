'use strict';
// Tables that are sorted by a click and filtered by words and comparisons.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function shown(value) {
  if (value === null || value === undefined) return '';
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(5)));
}

// Words that a row must have anywhere, and comparisons such as time_s<20.
function conditions(text, columns) {
  return text.split(/\s+/).filter(Boolean).map((part) => {
    const found = /^(.+?)(<=|>=|!=|=|<|>)(.+)$/.exec(part);
    const column = found ? columns.indexOf(found[1]) : -1;
    if (column < 0) {
      const word = part.toLowerCase();
      return (row) => row.some((v) => shown(v).toLowerCase().includes(word));
    }
    const [, , sign, wanted] = found;
    const number = Number(wanted);
    return (row) => {
      const value = row[column];
      if (sign === '=') return shown(value) === wanted || value === number;
      if (sign === '!=') return shown(value) !== wanted && value !== number;
      if (typeof value !== 'number' || Number.isNaN(number)) return false;
      if (sign === '<') return value < number;
      if (sign === '<=') return value <= number;
      return sign === '>' ? value > number : value >= number;
    };
  });
}

// Numbers before texts, and what is not known last in both directions.
function compared(a, b, way) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === 'number' && typeof b === 'number') return way * (a - b);
  return way * String(a).localeCompare(String(b), 'en', {numeric: true});
}

// changed(runs, table) is told the runs of the rows that are left, in order.
function addTable(table, {changed, chosen}) {
  const order = table.rows.map((_, k) => k);
  const state = {column: -1, way: 1, all: false, left: order};
  const words = element('input', {
    type: 'search', 'aria-label': 'Filter rows',
    placeholder: 'Filter: words, or COLUMN<NUMBER', oninput: refresh,
  });
  const all = element('input', {
    type: 'checkbox', onchange: () => { state.all = all.checked; fill(); },
  });
  const more = table.columns.length > table.seen.length;
  const count = element('span', {class: 'note', role: 'status'});
  const head = element('thead');
  const body = element('tbody');
  const numeric = table.columns.map((_, k) => table.rows.every(
    (row) => row[k] === null || typeof row[k] === 'number'));

  function sort(column) {
    state.way = state.column === column ? -state.way : 1;
    state.column = column;
    refresh();
  }

  function refresh() {
    const all = conditions(words.value, table.columns);
    state.left = order.filter((k) => all.every((met) => met(table.rows[k])));
    const {column, way} = state;
    if (column >= 0) {
      state.left.sort((a, b) =>
        compared(table.rows[a][column], table.rows[b][column], way));
    }
    count.textContent = `${state.left.length} of ${order.length} rows`;
    fill();
    changed(state.left.map((k) => table.runs[k]).filter((r) => r !== null));
  }

  function fill() {
    const places = table.columns.map((_, k) => k).filter(
      (k) => state.all || table.seen.includes(table.columns[k]));
    const titles = places.map((k) => {
      const sorted = state.column === k;
      const mark = sorted ? (state.way > 0 ? ' ▲' : ' ▼') : '';
      const button = element(
        'button', {type: 'button', onclick: () => sort(k)},
        table.columns[k] + mark);
      const way = state.way > 0 ? 'ascending' : 'descending';
      return element('th', {
        scope: 'col', class: numeric[k] ? 'number' : false,
        'aria-sort': sorted ? way : 'none',
      }, button);
    });
    head.replaceChildren(element('tr', {}, ...titles));
    body.replaceChildren(...state.left.map((k) => line(k, places)));
  }

  function line(k, places) {
    const row = table.rows[k];
    const run = table.runs[k];
    const cells = places.map((place) => {
      const text = shown(row[place]);
      const wide = !numeric[place] && text.length > 40 && run === null;
      const kind = numeric[place] ? 'number' : wide ? 'wide' : false;
      const link = run !== null && table.columns[place] === 'run';
      const inside = link ? element(
        'button', {type: 'button', onclick: () => chosen(run)}, text) : text;
      const title = text.length > 30 ? text : null;
      return element('td', {class: kind, title}, inside);
    });
    return element('tr', {'data-run': run}, ...cells);
  }

  const section = element(
    'section', {class: 'table'}, element('h2', {}, table.title),
    element('div', {class: 'controls'}, words,
      more ? element('label', {}, all, ' all columns') : null, count),
    element('div', {class: 'scroll', tabindex: 0},
      element('table', {}, head, body)));
  document.getElementById('tables').append(section);
  refresh();
}
