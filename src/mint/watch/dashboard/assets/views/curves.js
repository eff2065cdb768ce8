// The curves of a run, with its events on the same axis. A click on a point opens that step.
import { Chart, COLOURS } from "../chart.js";
import { address, count, Empty, go, html, Problem, Verdict } from "../parts.js";
import { useEffect, useMemo, useState } from "../vendor/hooks.js";

// The charts, in reading order. `pick` selects metrics by name.
const CHARTS = [
  { title: "Reward", help: "on training prompts and on the holdout", lines: [["reward/mean", "training"], ["holdout/reward", "holdout", { points: true }]] },
  { title: "Success rate", help: "share of right answers; the band is the holdout's 95% interval", lines: [["reward/success", "training"], ["holdout/pass@1", "holdout", { points: true, band: ["holdout/pass@1_low", "holdout/pass@1_high"] }]] },
  { title: "Reward components", help: "stacked means", pick: /^component\//, stack: true },
  { title: "Groups", help: "only groups with signal are learned from", lines: [["groups/signal", "signal"], ["groups/all_right", "all right"], ["groups/all_wrong", "all wrong"], ["groups/all_equal", "all equal"], ["groups/unscored", "unscored"]], stack: true },
  { title: "Answer length", help: "tokens", lines: [["length/mean", "mean"], ["length/max", "longest"]] },
  { title: "Truncation", help: "share of answers cut off", lines: [["length/truncated", "truncated"]] },
  { title: "Entropy", help: "nats per token", lines: [["train/entropy", "exact"], ["policy/entropy", "estimate"]] },
  { title: "KL to the reference", help: "nats per token", pick: /^kl\// },
  { title: "Sampler and trainer", help: "difference of logprobs", pick: /^mismatch\/(mean|max|k3)$/ },
  { title: "Clipped tokens", help: "share", pick: /clip/ },
  { title: "Gradient norm", lines: [["train/grad_norm", "norm"]] },
  { title: "Staleness", help: "steps between sampling and training", lines: [["staleness/mean", "mean"], ["staleness/max", "oldest"], ["policy/staleness", "steps"]] },
  { title: "Time per step", help: "seconds, stacked", pick: /^time\/(?!total)/, stack: true },
  { title: "Tokens per second", pick: /tokens_per_s|\/tps$/ , computed: "tokens/s" },
];
const QUIET = /^(time$|step$|rollouts$|datums|groups$|time\/total|holdout\/.*_(low|high)$)/;

export function chartsOf(columns) {
  const used = new Set();
  const found = [];
  for (const chart of CHARTS) {
    let lines = (chart.lines || []).filter(([name]) => columns[name]);
    if (chart.pick) lines = Object.keys(columns).filter((name) => chart.pick.test(name)).map((name) => [name, name.replace(/^[a-z]+\//, "")]);
    for (const [name] of lines) used.add(name);
    if (lines.length || chart.computed && columns["train/tokens"] && columns["time/train"]) found.push({ ...chart, lines });
  }
  const rest = Object.keys(columns).filter((name) => !used.has(name) && !QUIET.test(name));
  return { charts: found, others: rest.map((name) => ({ title: name, lines: [[name, name]] })) };
}

export function seriesOf(chart, columns) {
  if (!chart.lines.length && chart.computed) {
    const tokens = columns["train/tokens"], sample = columns["time/sample"] || [], train = columns["time/train"];
    const values = tokens.map((n, i) => (n === null || !(train[i] + (sample[i] || 0)) ? null : n / (train[i] + (sample[i] || 0))));
    return [{ label: chart.computed, values, colour: COLOURS[0] }];
  }
  return chart.lines.map(([name, label, more = {}], i) => ({
    label,
    values: columns[name],
    colour: COLOURS[i % COLOURS.length],
    points: more.points,
    band: more.band && columns[more.band[0]] ? more.band.map((side) => columns[side]) : null,
  }));
}

export function Curves({ run, error }) {
  const [smooth, setSmooth] = useState(0);
  const [log, setLog] = useState(false);
  const [range, setRange] = useState(null);
  const [detail, setDetail] = useState(null);
  const [others, setOthers] = useState(false);

  useEffect(() => {
    let current = true;
    setDetail(null);
    if (range && run.bucket > 1) run.range(Math.floor(range[0]), Math.ceil(range[1])).then((found) => current && setDetail(found), () => {});
    return () => { current = false; };
  }, [range, run.id]);

  const data = detail || run;
  const marks = useMemo(() => run.events.map((event) => ({ ...event, x: event.step })), [run.events]);
  if (error && !run.loaded) return html`<${Problem} error=${error} />`;
  if (!run.steps.length) return html`
    ${run.info && html`<${Verdict} run=${run.info} long />`}
    <${Empty}><p>${["failed", "interrupted"].includes(run.info?.status) ? "It ended before its first step was recorded." : "No steps are recorded yet. They appear here as they are written."}</p><//>
    ${run.events.length > 0 && html`<${Events} run=${run} />`}`;
  const { charts, others: rest } = chartsOf(data.columns);
  const pick = (step) => go("run", run.id, "step", String(step));
  const zoom = (wanted) => setRange(wanted && wanted[1] - wanted[0] > 0 ? wanted : null);
  const draw = (chart) => html`<${CurveChart} key=${chart.title} chart=${chart} data=${data} marks=${marks} log=${log} smooth=${smooth} range=${range} onRange=${zoom} onPick=${pick} />`;
  return html`
    ${run.info && html`<${Verdict} run=${run.info} long />`}
    <div class="toolbar" role="group" aria-label="How curves are drawn">
      <label>Smoothing <input type="range" min="0" max="0.98" step="0.02" value=${smooth} onInput=${(e) => setSmooth(Number(e.target.value))} /></label>
      <label><input type="checkbox" checked=${log} onChange=${(e) => setLog(e.target.checked)} /> Log scale</label>
      <${Zoom} run=${run} range=${range} onRange=${zoom} />
      <span class="hint">Drag to zoom, double-click to reset, click a point to open its step.</span>
    </div>
    <div class="charts">${charts.map(draw)}</div>
    ${rest.length > 0 && html`<details class="others" open=${others} onToggle=${(e) => setOthers(e.target.open)}>
      <summary>${count(rest.length, "more metric")}</summary>${others && html`<div class="charts">${rest.map(draw)}</div>`}</details>`}
    <${Events} run=${run} />`;
}

function CurveChart({ chart, data, ...rest }) {
  const series = useMemo(() => seriesOf(chart, data.columns), [data.columns, chart.title, chart.lines.length]);
  return html`<${Chart} title=${chart.title} help=${chart.help} x=${data.steps} series=${series} stack=${chart.stack} ...${rest} log=${rest.log && !chart.stack} />`;
}

function Zoom({ run, range, onRange }) {
  const [first, last] = [run.steps[0], run.steps[run.steps.length - 1]];
  const [from, to] = range || [first, last];
  const change = (low, high) => onRange(low < high ? [low, high] : null);
  return html`<span class="zoom">
    <label>Steps <input type="number" aria-label="From step" value=${Math.round(from)} min=${first} max=${last} onChange=${(e) => change(Number(e.target.value), to)} /></label>
    <label>to <input type="number" aria-label="To step" value=${Math.round(to)} min=${first} max=${last} onChange=${(e) => change(from, Number(e.target.value))} /></label>
    <button disabled=${!range} onClick=${() => onRange(null)}>Whole run</button></span>`;
}

const NAMES = { finding: "Finding", evaluation: "Evaluation", checkpoint: "Checkpoint", interrupted: "Interrupted", resumed: "Resumed", finished: "Finished", stopped: "Stopped", lost: "Service lost", failure: "Failed", sink_failed: "Sink failed", data: "Data" };

function Events({ run }) {
  const [all, setAll] = useState(false);
  const listed = run.events.filter((event) => all || event.event !== "evaluation" && event.event !== "checkpoint").slice(-200).reverse();
  return html`<section class="events" aria-labelledby="events-title">
    <h2 id="events-title">Events</h2>
    <label><input type="checkbox" checked=${all} onChange=${(e) => setAll(e.target.checked)} /> Show checkpoints and evaluations</label>
    ${!listed.length && html`<p class="hint">Nothing needs attention.</p>`}
    <ol>${listed.map((event) => html`<li class=${event.event}>
      ${event.step === null ? html`<span class="at"></span>` : html`<a class="at" href=${address("run", run.id, "step", event.step)}>step ${event.step}</a>`}
      <strong>${NAMES[event.event] || event.event}</strong> <span>${(event.text || event.name).replace(/^Data: /, "")}</span></li>`)}</ol>
  </section>`;
}
