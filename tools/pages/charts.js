// Charts of one run and of several; colors are those of the pictures.

const PHASES = {
  pull: '#56B4E9', compute: '#0072B2', push: '#009E73', wait: '#E69F00'};
const LINES = [
  '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00', '#888888'];
const DASHES = ['solid', 'dash', 'dot', 'dashdot'];
const LATE = '#D55E00';
const narrow = () => window.innerWidth < 600;
const HEIGHT = 320;
const redraws = new Map();  // What charts show, by where they are.

// Plotly reads tags in texts: names are to be seen as they are.
function plain(text) {
  return String(text).replace(/&/g, '&amp;').replace(/</g, '&lt;')
    .replace(/>/g, '&gt;');
}

function short(text, most) {
  return plain(text.length > most ? text.slice(0, most - 1) + '…' : text);
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function look(k) {
  return {color: LINES[k % LINES.length],
    dash: DASHES[Math.floor(k / LINES.length) % DASHES.length], width: 2};
}

const near = new IntersectionObserver((entries) => {
  for (const {isIntersecting, target} of entries) {
    if (isIntersecting) drawn(target);
  }
}, {rootMargin: '400px'});

// Draws once it is nearly in sight, and again whenever colors change.
function draw(where, make) {
  redraws.set(where, make);
  where.style.minHeight = `${make().layout.height || HEIGHT}px`;
  if (where.classList.contains('js-plotly-plot')) drawn(where);
  else near.observe(where);
}

function drawn(where) {
  near.unobserve(where);
  const {traces, layout} = redraws.get(where)();
  const grid = {gridcolor: style('--line'), zerolinecolor: style('--line'),
    linecolor: style('--line'), automargin: true};
  const whole = {
    height: HEIGHT, margin: {l: 50, r: 12, t: 30, b: 45},
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
    font: {color: style('--text'), size: 12}, colorway: LINES,
    hoverlabel: {namelength: -1},
    modebar: {bgcolor: 'rgba(0,0,0,0)', color: style('--faint'),
      activecolor: style('--text')},
    legend: {orientation: 'h', y: 1, yanchor: 'bottom', x: 0,
      traceorder: 'normal'},
    ...layout,
    xaxis: {...grid, ...layout.xaxis}, yaxis: {...grid, ...layout.yaxis},
  };
  Plotly.react(where, traces, whole, {responsive: true, displaylogo: false,
    showSendToCloud: false, plotlyServerURL: '',
    displayModeBar: narrow() ? false : 'hover',
    modeBarButtonsToRemove: ['select2d', 'lasso2d', 'autoScale2d']});
}

// Of what is still there: all, or what has been in sight.
function redraw(all) {
  for (const where of redraws.keys()) {
    if (!where.isConnected) redraws.delete(where);
    else if (all || where.classList.contains('js-plotly-plot')) drawn(where);
  }
}

// Of evaluations; the first that a run has is shown first.
const FIGURES = {bits_per_byte: 'Bits per byte', perplexity: 'Perplexity',
  accuracy: 'Accuracy'};
const AXES = {time: 'time (s)', iterations: 'iterations of all workers',
  examples: 'examples in updates'};

// A config's seeds look alike, and are in the legend once.
function figures(runs, figure, against) {
  const measured = runs.filter((run) => run.figures[figure]);
  const key = (run) => JSON.stringify({...run.config, seed: null});
  const groups = measured.map(key);
  const keys = [...new Set(groups)];
  const seen = new Set();
  const traces = measured.map((run, k) => {
    const group = groups[k];
    const first = !seen.has(group);
    seen.add(group);
    const more = groups.filter((each) => each === group).length - 1;
    const name = short(run.name, narrow() ? 34 : 60);
    return {
      x: run.figures[figure][against], y: run.figures[figure].values,
      name: name + (first && more ? ` and ${more} more` : ''),
      legendgroup: group, showlegend: first, mode: 'lines+markers',
      line: look(keys.indexOf(group)), marker: {size: 4}};
  });
  const lines = narrow() ? keys.length : Math.ceil(keys.length / 3);
  return {traces, layout: {
    height: 330 + (traces.length > 1 ? 20 * lines : 0),
    showlegend: traces.length > 1,
    xaxis: {title: {text: AXES[against]}, rangemode: 'tozero'},
    yaxis: {title: {text: measured[0].figures[figure].label}}}};
}

// Shares of the workers' time, a bar for each run.
function waiting(runs) {
  const names = runs.map((run) => short(run.name, narrow() ? 20 : 50));
  const rows = runs.map((_, k) => k);
  const traces = Object.keys(PHASES).map((phase) => ({
    type: 'bar', orientation: 'h', name: phase, y: rows,
    marker: {color: PHASES[phase]},
    x: runs.map((run) => {
      const all = Object.values(run.waiting).reduce((a, b) => a + b, 0);
      return all ? 100 * (run.waiting[phase] || 0) / all : 0;
    }),
    customdata: names, hovertemplate: `%{customdata}<br>${phase} %{x:.1f} %<extra></extra>`,
  })).filter((trace) => trace.x.some((share) => share > 0));
  return {traces, layout: {
    barmode: 'stack', height: 130 + 24 * runs.length, showlegend: true,
    xaxis: {title: {text: "share of the workers' time (%)"}, range: [0, 100]},
    yaxis: {tickvals: rows, ticktext: names, range: [runs.length - 0.5, -0.5]}}};
}

function staleness(run) {
  const {versions, shares, width} = run.staleness;
  return {traces: [{
    type: 'bar', x: versions.map((v) => v + (width - 1) / 2),
    y: shares.map((s) => 100 * s), width: 0.9 * width,
    marker: {color: LINES[0]}}],
  layout: {xaxis: {title: {text: 'staleness (versions)'},
    dtick: Math.max(...versions) < 12 ? 1 : null},
    yaxis: {title: {text: 'applied pushes (%)'}}}};
}

function timeline(run) {
  const {window: shown, workers, phases, barriers} = run.timeline;
  const rows = new Map(workers.map((worker, k) => [worker, k]));
  const traces = Object.entries(phases).filter(([, bars]) => bars.start.length)
    .map(([phase, bars]) => ({
      type: 'bar', orientation: 'h', name: phase, base: bars.start,
      x: bars.length, y: bars.worker.map((worker) => rows.get(worker)),
      width: 0.8, marker: {color: PHASES[phase] || LINES[6], line: {width: 0}},
      customdata: bars.worker,
      hovertemplate: `worker %{customdata}: ${plain(phase)}<br>` +
        'from %{base:.4g} s, %{x:.3g} s<extra></extra>'}));
  const ticks = workers.map((_, k) => k).filter(
    (k) => k % Math.ceil(workers.length / 16) === 0);
  return {traces, layout: {
    barmode: 'overlay', height: Math.min(150 + 26 * workers.length, 640),
    shapes: barriers.map((time) => ({type: 'line', x0: time, x1: time,
      yref: 'paper', y0: 0, y1: 1, line: {color: style('--text'), width: 1}})),
    xaxis: {title: {text: 'time (s)'}, range: shown},
    yaxis: {tickvals: ticks, ticktext: ticks.map((k) => `worker ${workers[k]}`),
      range: [workers.length - 0.5, -0.5]}}};
}

function batches(run) {
  return {traces: run.batches.map((each, k) => ({
    x: each.time, y: each.examples, name: `worker ${each.worker}`,
    mode: 'lines', line: {...look(k), shape: 'hv'}})),
  layout: {xaxis: {title: {text: 'time (s)'}, rangemode: 'tozero'},
    yaxis: {title: {text: 'worker batch (examples)'}, rangemode: 'tozero'}}};
}

function breakdown(run) {
  const {ids, phases} = run.workers;
  return {traces: Object.keys(PHASES).map((phase) => ({
    type: 'bar', name: phase, x: ids.map(Number), y: phases[phase],
    marker: {color: PHASES[phase]}})),
  layout: {barmode: 'stack',
    xaxis: {title: {text: 'worker'}, tickformat: 'd'},
    yaxis: {title: {text: 'median seconds of an iteration'}}}};
}

function bandwidth(run) {
  const {step_s: step, MBps} = run.bandwidth;
  return {traces: [{x: MBps.map((_, k) => k * step), y: MBps, mode: 'lines',
    line: {...look(0), shape: 'hv'}}],
  layout: {xaxis: {title: {text: 'time (s)'}},
    yaxis: {title: {text: 'arriving (MB/s)'}, rangemode: 'tozero'}}};
}

// Slowest against plan first.
function rates(run) {
  const links = run.links.links.filter((l) => l.ratio !== null).slice(0, 16);
  const names = links.map((l) => `${l.src} to ${l.dst}`);
  const rows = links.map((_, k) => k);
  return {traces: [
    {type: 'bar', orientation: 'h', name: 'measured', y: rows,
      x: links.map((l) => l.MBps),
      marker: {color: links.map((l) => ratioColor(l.ratio))},
      text: links.map((l) => `${(100 * l.ratio).toFixed(0)} %`)},
    {mode: 'markers', name: 'planned', y: rows,
      x: links.map((l) => l.planned_MBps),
      marker: {symbol: 'line-ns-open', size: 14, color: style('--text'),
        line: {width: 2}}}],
  layout: {height: 130 + 24 * links.length, showlegend: true,
    xaxis: {title: {text: 'MB/s while something was on its way'}},
    yaxis: {tickvals: rows, ticktext: names, range: [links.length - 0.5, -0.5]}}};
}

function ratioColor(ratio) {
  if (ratio === null) return '#BBBBBB';
  return ratio < 0.6 ? LATE : ratio < 0.9 ? '#E69F00'
    : ratio < 1.2 ? '#7F7F7F' : '#0072B2';
}

// Nodes with arrows between them; tree -1 shows what links have carried.
function graph(run, tree) {
  const {links, trees} = run.links;
  const nodes = tree < 0 ? run.links.members : run.links.nodes;
  const places = new Map(nodes.map((node) => [node.id, node]));
  const byWorker = new Map(nodes.map((node) => [String(node.worker), node]));
  const arrows = [];
  if (tree < 0) {
    for (const link of links) {
      arrows.push([byWorker.get(String(link.src)), byWorker.get(String(link.dst)),
        ratioColor(link.ratio)]);
    }
  } else {
    for (const [hops, color] of [
      [trees[tree].up, '#0072B2'], [trees[tree].down, '#D55E00']]) {
      for (const hop of hops) {
        for (let k = 1; k < hop.length; k++) {
          arrows.push([places.get(hop[k - 1]), places.get(hop[k]), color]);
        }
      }
    }
  }
  const annotations = arrows.filter(([a, b]) => a && b).map(([a, b, color]) => {
    const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    const [dx, dy] = [(b.x - a.x) / length, (b.y - a.y) / length];
    const [sx, sy] = [0.06 * dy, -0.06 * dx];  // Both directions are seen.
    return {x: b.x - 0.2 * dx + sx, y: b.y - 0.2 * dy + sy,
      ax: a.x + 0.2 * dx + sx, ay: a.y + 0.2 * dy + sy,
      xref: 'x', yref: 'y', axref: 'x', ayref: 'y', text: '', showarrow: true,
      arrowhead: 2, arrowsize: 1, arrowwidth: 1.6, arrowcolor: color};
  });
  const root = tree < 0 ? null : trees[tree].root;
  const xs = nodes.map((node) => node.x);
  const ys = nodes.map((node) => node.y);
  const around = (values) => [Math.min(...values) - 0.6, Math.max(...values) + 0.6];
  const bare = {visible: false, fixedrange: true};
  return {traces: [{
    x: xs, y: ys, mode: 'markers+text', hoverinfo: 'text',
    hovertext: nodes.map((node) => node.worker === null
      ? `switch ${plain(node.id)}` : `worker ${plain(node.worker)}`),
    text: nodes.map((node) => node.worker === null ? '' : plain(node.worker)),
    textfont: {color: '#000000'},
    marker: {size: 24, line: {color: style('--text'), width: 1.2},
      symbol: nodes.map((node) => node.worker === null ? 'square' : 'circle'),
      color: nodes.map((node) => node.id === root ? '#F0E442'
        : node.worker === null ? '#D9D9D9' : '#FFFFFF')}}],
  layout: {annotations, height: 400, margin: {l: 5, r: 5, t: 5, b: 5},
    xaxis: {...bare, range: around(xs)},
    yaxis: {...bare, range: around(ys), scaleanchor: 'x'}}};
}
