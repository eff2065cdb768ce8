// Several runs on one axis, and the settings in which they differ.
import { LiveRun, useRepeated } from "../api.js";
import { Chart, COLOURS } from "../chart.js";
import { address, Empty, fixed, go, html, Loading, percent, Problem, Title, Verdict } from "../parts.js";
import { useMemo, useReducer, useRef, useState } from "../vendor/hooks.js";
import uPlot from "../vendor/uplot.js";

const AXES = { step: "step", tokens: "trained tokens", hours: "hours" };
const FIRST = ["reward/mean", "reward/success", "holdout/pass@1", "length/mean", "policy/entropy", "kl/k3"];

export function axisOf(run, axis) {
  if (axis === "tokens") {
    let sum = 0;
    return (run.columns["train/tokens"] || []).map((n) => (sum += (n || 0) * run.bucket));
  }
  if (axis === "hours") {
    const total = run.columns["time/total"], at = run.columns.time;
    if (total) return total.map((t) => (t === null ? null : t / 3600));
    return at ? at.map((t) => (t === null ? null : (t - at[0]) / 3600)) : [];
  }
  return run.steps;
}

// One x axis for curves that have their own.
export function joined(runs, metric, axis) {
  const tables = runs.map((run) => {
    const x = axisOf(run, axis), y = run.columns[metric] || [];
    const kept = x.map((at, i) => [at, y[i] ?? null]).filter(([at, value]) => at !== null && at !== undefined && value !== null);
    kept.sort((a, b) => a[0] - b[0]);
    return [kept.map((p) => p[0]), kept.map((p) => p[1])];
  });
  const usable = tables.map((t, i) => [t, i]).filter(([t]) => t[0].length);
  if (!usable.length) return { x: [], lists: runs.map(() => []) };
  const [x, ...lists] = uPlot.join(usable.map(([t]) => t));
  return { x, lists: runs.map((_, i) => { const at = usable.findIndex(([, k]) => k === i); return at < 0 ? x.map(() => null) : lists[at]; }) };
}

export function differences(configs) {
  const names = [...new Set(configs.flatMap((config) => Object.keys(config)))];
  return names.filter((name) => new Set(configs.map((config) => JSON.stringify(config[name]))).size > 1)
    .map((name) => [name, configs.map((config) => (name in config ? String(config[name]) : "–"))]);
}

export function Compare({ ids, all }) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  const [error, setError] = useState(null);
  const live = useRef(new Map());
  for (const id of ids) if (!live.current.has(id)) live.current.set(id, new LiveRun(id));
  const runs = ids.map((id) => live.current.get(id));
  useRepeated(async (isOver) => {
    try {
      const changed = await Promise.all(runs.map((run) => run.refresh()));
      if (!isOver()) { setError(null); if (changed.some(Boolean)) redraw(); }
    } catch (problem) {
      if (!isOver()) setError(problem);
    }
  }, [ids.join()]);
  const [axis, setAxis] = useState("step");
  const [smooth, setSmooth] = useState(0);
  const [range, setRange] = useState(null);
  const [chosen, setChosen] = useState(null);
  const loaded = runs.filter((run) => run.loaded);
  const names = [...new Set(loaded.flatMap((run) => Object.keys(run.columns)))].filter((name) => name !== "time");
  const metrics = chosen ? [chosen] : FIRST.filter((name) => names.includes(name));
  const toggle = (id) => go("compare", (ids.includes(id) ? ids.filter((x) => x !== id) : [...ids, id]).join(","));
  return html`
    <${Title}>Compare<//>
    <fieldset class="chooser"><legend>Runs</legend>${(all || []).map((run) => html`<label key=${run.id}><input type="checkbox" checked=${ids.includes(run.id)} onChange=${() => toggle(run.id)} /> ${run.name}</label>`)}</fieldset>
    ${error && html`<${Problem} error=${error} />`}
    ${ids.length < 2 ? html`<${Empty}><p>Select two or more runs.</p><//>` : loaded.length < ids.length ? !error && html`<${Loading} />` : html`
      <div class="toolbar" role="group" aria-label="How curves are drawn">
        <label>Along <select value=${axis} onChange=${(e) => { setAxis(e.target.value); setRange(null); }}>${Object.entries(AXES).map(([key, name]) => html`<option value=${key}>${name}</option>`)}</select></label>
        <label>Metric <select value=${chosen || ""} onChange=${(e) => setChosen(e.target.value || null)}><option value="">the main ones</option>${names.sort().map((name) => html`<option>${name}</option>`)}</select></label>
        <label>Smoothing <input type="range" min="0" max="0.98" step="0.02" value=${smooth} onInput=${(e) => setSmooth(Number(e.target.value))} /></label>
        <button disabled=${!range} onClick=${() => setRange(null)}>Reset zoom</button>
      </div>
      <div class="charts">${metrics.map((name) => html`<${Together} key=${name} name=${name} runs=${runs} axis=${axis} smooth=${smooth} range=${range} onRange=${setRange} />`)}</div>
      <h2>Latest values</h2>
      <div class="cards">${runs.map((run, i) => html`<article class="card" key=${run.id}><h3><span class="swatch" style=${{ background: `var(${COLOURS[i % COLOURS.length]})` }}></span> <a href=${address("run", run.id)}>${run.info.name}</a></h3><${Verdict} run=${run.info} />
        <p class="facts">step ${run.info.step}, success ${percent(run.info.last["reward/success"])}, reward ${fixed(run.info.last["reward/mean"])}</p></article>`)}</div>
      <h2>Settings that differ</h2><${Settings} runs=${runs} />`}`;
}

function Together({ name, runs, axis, ...rest }) {
  const key = runs.map((run) => `${run.id}:${run.steps.length}`).join();
  const { x, series } = useMemo(() => {
    const { x, lists } = joined(runs, name, axis);
    return { x, series: runs.map((run, i) => ({ label: run.info.name, values: lists[i], colour: COLOURS[i % COLOURS.length] })) };
  }, [key, name, axis]);
  if (!x.length) return html`<p class="hint">No run has ${name} along ${AXES[axis]}.</p>`;
  return html`<${Chart} title=${name} x=${x} series=${series} unit=${axis} ...${rest} />`;
}

function Settings({ runs }) {
  const rows = differences(runs.map((run) => run.info.config));
  if (!rows.length) return html`<p class="hint">Their settings are the same.</p>`;
  return html`<div class="scroll"><table class="list"><thead><tr><th scope="col">Setting</th>${runs.map((run) => html`<th scope="col">${run.info.name}</th>`)}</tr></thead>
    <tbody>${rows.map(([name, values]) => html`<tr><th scope="row"><code>${name}</code></th>${values.map((value) => html`<td>${value}</td>`)}</tr>`)}</tbody></table></div>`;
}
