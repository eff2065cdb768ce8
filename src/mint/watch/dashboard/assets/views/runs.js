// All runs: whether they are learning, since when, and what to do if not.
import { isBundle } from "../api.js";
import { address, ago, count, duration, Empty, fixed, go, html, Loading, percent, Problem, Spark, Title, Verdict } from "../parts.js";
import { useState } from "../vendor/hooks.js";

export function Runs({ state }) {
  const [chosen, setChosen] = useState([]);
  if (state.error && !state.runs) return html`<${Problem} error=${state.error} />`;
  if (!state.runs) return html`<${Loading} what="Looking for runs" />`;
  const toggle = (id) => setChosen(chosen.includes(id) ? chosen.filter((x) => x !== id) : [...chosen, id]);
  const active = state.runs.filter((run) => run.status === "running").length;
  return html`
    <${Title} sub=${state.runs.length ? `${count(state.runs.length, "run")}, ${active} running` : ""}>Runs<//>
    ${state.error && html`<${Problem} error=${state.error} />`}
    ${!state.runs.length && html`<${Nothing} hidden=${state.hidden} />`}
    ${state.runs.length > 1 && html`<p class="toolbar">
      <button disabled=${chosen.length < 2} onClick=${() => go("compare", chosen.join(","))}>Compare ${chosen.length > 1 ? count(chosen.length, "run") : "selected runs"}</button>
      <span class="hint">Select two or more with their checkboxes.</span></p>`}
    <ul class="runs">${state.runs.map((run) => html`<${Card} key=${run.id} run=${run} alone=${state.runs.length === 1}
      chosen=${chosen.includes(run.id)} onChoose=${() => toggle(run.id)} />`)}</ul>`;
}

function Nothing({ hidden }) {
  if (hidden) return html`<${Empty}><p>Run directories are shown on the service's own machine only.</p><//>`;
  return html`<${Empty}>
    <h2>No runs here yet</h2>
    <p>A run appears as soon as training writes its first step. Start one:</p>
    <pre>mint train +experiment=quick_test</pre>
    <p>or record from any script:</p>
    <pre>${'record = mint.watch.record("runs/x")\nrecord.step({"reward": 0.5})\nrecord.close()'}</pre>
    <p>or look at a recorded one: <code>mint watch --demo</code></p>
  <//>`;
}

function Card({ run, alone, chosen, onChoose }) {
  const main = ["reward/success", "reward/mean", "holdout/pass@1"].find((name) => run.spark[name]?.length > 1);
  const values = run.spark[main];
  const shown = main === "reward/mean" ? fixed : percent;
  const [first, last] = main ? ends(values) : [];
  const label = { "reward/success": "Success rate", "reward/mean": "Reward", "holdout/pass@1": "Held-out success" }[main];
  const open = address("run", run.id);
  const progress = run.steps ? Math.min(1, run.step / run.steps) : null;
  return html`<li class="card run">
    <div class="head">
      <h2><a href=${open}>${run.name}</a></h2>
      ${!alone && html`<label class="choose"><input type="checkbox" checked=${chosen} onChange=${onChoose} /><span class="visually-hidden">Choose ${run.name} for a comparison</span></label>`}
    </div>
    <p class="facts">${[run.task && run.task !== run.name ? run.task : null, run.model].filter(Boolean).join(" · ")}</p>
    <${Verdict} run=${run} long />
    ${main && html`<a class="trend" href=${open}>
      <span class="caption">${label}</span>
      <span class="numbers">${shown(first)} <span aria-label="to">→</span> <strong>${shown(last)}</strong></span>
      <${Spark} values=${values} label="${label} from ${shown(first)} to ${shown(last)}" />
    </a>`}
    <div class="foot">
      ${progress !== null && html`<progress max="1" value=${progress} aria-label="Progress of ${run.name}"></progress>`}
      <span>step ${run.step}${run.steps ? ` of ${run.steps}` : ""}</span>
      <span class="status ${run.status}">${run.status}</span>
      ${run.status === "running" && html`<span>${left(run)}</span>`}
      ${!isBundle() && run.updated && html`<span>${run.status === "running" ? "updated " : ""}${ago(run.updated)}</span>`}
    </div>
  </li>`;
}

// The start and the end of a curve: means, because single steps are noisy.
function ends(values) {
  const count = Math.max(1, Math.min(5, Math.floor(values.length / 4)));
  const mean = (part) => part.reduce((sum, value) => sum + value, 0) / part.length;
  return [mean(values.slice(0, count)), mean(values.slice(-count))];
}

function left(run) {
  if (!run.started || !run.updated || !run.step || !run.steps) return "";
  return `about ${duration(((run.updated - run.started) / run.step) * (run.steps - run.step))} left`;
}
