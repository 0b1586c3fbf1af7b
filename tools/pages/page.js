// Puts the page together, and draws what is looked at.

const MOST = 30;  // Runs in a chart of several.
const content = JSON.parse(document.getElementById('data').textContent);
const left = content.tables.map(() => []);
const against = document.getElementById('against');
const figure = document.getElementById('figure');

function together() {
  const whole = left.flat().map((k) => content.runs[k]);
  const runs = whole.slice(0, MOST);
  document.getElementById('together').hidden = !content.runs.length;
  document.getElementById('which').textContent = whole.length > MOST
    ? `The first ${MOST} of the ${whole.length} runs that the filter leaves.`
    : 'The runs that the filter leaves.';
  const measured = Object.keys(FIGURES).filter(
    (name) => runs.some((run) => run.figures[name]));
  const curve = document.getElementById('together-figure');
  curve.hidden = against.parentElement.hidden = !measured.length;
  figure.parentElement.hidden = measured.length < 2;
  for (const option of figure.options) {
    option.hidden = option.disabled = !measured.includes(option.value);
  }
  if (!measured.includes(figure.value)) figure.value = measured[0] || '';
  const name = figure.value;
  if (measured.length) draw(curve, () => figures(runs, name, against.value));
  const spent = runs.filter((run) => Object.keys(run.waiting).length);
  const bars = document.getElementById('together-waiting');
  bars.hidden = !spent.length;
  if (spent.length) draw(bars, () => waiting(spent));
}

let due = 0;
function later() {  // Not at every key.
  clearTimeout(due);
  due = setTimeout(together, 120);
}

function choose(k) {
  const run = content.runs[k];
  for (const row of document.querySelectorAll('tr[data-run]')) {
    row.classList.toggle('chosen', row.dataset.run === String(k));
  }
  const section = document.getElementById('run');
  const charts = element('div', {class: 'charts'});
  section.replaceChildren(element('h2', {}, `Run ${run.name}`), charts);
  if (run.ended !== 'finished') {
    charts.before(element('p', {class: 'note'}, `Ended: ${run.ended}`));
  }
  charts.before(element('h3', {}, 'Diagnosis'), element('ul', {},
    ...run.diagnosis.map((verdict) => element('li', {}, verdict))));
  section.hidden = false;
  const add = (title, make, {whole = false, note = null, control = null} = {}) => {
    const where = element('div', {class: 'chart'});
    charts.append(element('div', {class: whole ? 'whole' : false},
      element('h3', {}, title), note ? element('p', {class: 'note'}, note) : null,
      control, where));
    if (make) draw(where, make);
    return where;
  };
  for (const [name, title] of Object.entries(FIGURES)) {
    if (run.figures[name]) add(title, () => figures([run], name, 'time'));
  }
  if (run.staleness) add('Staleness', () => staleness(run));
  if (Object.keys(run.waiting).length) {
    add("The workers' time", () => waiting([run]));
  }
  if (run.workers) add('Phases of an iteration', () => breakdown(run));
  if (run.timeline) {
    const {workers, of} = run.timeline;
    add('Timeline', () => timeline(run), {whole: true,
      note: `The middle of the run${
        workers.length < of ? `; ${workers.length} of ${of} workers` : ''}.`});
  }
  if (run.batches.length) {
    const of = run.config.cluster.workers;
    add('Batches', () => batches(run), {note: run.batches.length < of
      ? `${run.batches.length} of ${of} workers.` : null});
  }
  if (run.bandwidth) add('Bandwidth', () => bandwidth(run));
  if (run.links) addLinks(run, add);
  section.append(element('details', {},
    element('summary', {}, 'Config'),
    element('pre', {}, JSON.stringify(run.config, null, 2))));
}

function addLinks(run, add) {
  const {missing, links, count, members, trees, tree_count: all} = run.links;
  if (missing) {
    add('Links', null, {note: missing});
    return;
  }
  if (links.some((link) => link.ratio !== null)) {
    add('Slowest links against plan', () => rates(run),
      {note: links.length < count ? `${links.length} of ${count} links.` : null});
  }
  if (!members.length) return;
  const pick = element('select', {'aria-label': 'Links or a tree'},
    element('option', {value: -1}, 'all links, by measured of planned rate'),
    ...trees.map((tree, k) => element('option', {value: k},
      `tree of ${tree.root}: ${(100 * tree.share).toFixed(1)} % of the bytes`)));
  const note = 'Of a tree: blue towards its root, orange away from it.' + (
    trees.length < all
      ? ` The ${trees.length} of ${all} trees that carry the most.` : '');
  const make = () => graph(run, Number(pick.value));
  const where = add('Links and trees', make, {control: pick, note});
  pick.addEventListener('change', () => draw(where, make));
}

against.addEventListener('change', together);
figure.addEventListener('change', together);
content.tables.forEach((table, k) => addTable(table, {
  changed: (runs) => { left[k] = runs; later(); },
  chosen: (run) => {
    choose(run);
    document.getElementById('run').scrollIntoView({block: 'start'});
  },
}));
clearTimeout(due);
together();
if (content.runs.length) choose(0);
matchMedia('(prefers-color-scheme: dark)').addEventListener(
  'change', () => redraw(false));
addEventListener('beforeprint', () => redraw(true));
document.documentElement.dataset.ready = 'yes';
