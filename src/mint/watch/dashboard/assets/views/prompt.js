// One prompt over the steps: how its answers and rewards changed.
import { get } from "../api.js";
import { Chart } from "../chart.js";
import { Difference } from "../diff.js";
import { address, count, Empty, fixed, go, html, Loading, Problem, RewardChip, rewardRange, Text, useLoaded } from "../parts.js";
import { useMemo, useState } from "../vendor/hooks.js";

export function Prompts({ run }) {
  const { value, error } = useLoaded(() => get(`runs/${run.id}/prompts`), [run.id]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!value) return html`<${Loading} what="Looking for prompts" />`;
  if (!value.prompts.length) return html`<${Empty}><p>No rollouts are recorded yet.</p><//>`;
  return html`<p class="lead">Prompts that occur in the most steps. Choose one to see how its answers changed.</p>
    <div class="scroll"><table class="list"><thead><tr><th scope="col">Prompt</th><th scope="col">Steps</th><th scope="col">First</th><th scope="col">Last</th><th scope="col">Mean reward</th></tr></thead>
    <tbody>${value.prompts.map((p) => html`<tr key=${p.identity}><th scope="row"><a href=${address("run", run.id, "prompt", p.identity)}>${(p.prompt || p.identity).slice(0, 160)}</a></th>
      <td>${p.steps}</td><td>${p.first}</td><td>${p.last}</td><td>${fixed(p.reward, 2)}</td></tr>`)}</tbody></table></div>`;
}

export function Prompt({ run, identity }) {
  const { value, error } = useLoaded(() => get(`runs/${run.id}/prompt`, { identity }), [run.id, identity]);
  const [shown, setShown] = useState(20);
  const rows = value?.rollouts || [];
  const steps = useMemo(() => byStep(rows), [value]);
  const numbers = useMemo(() => [...steps.keys()], [steps]);
  const series = useMemo(() => [{ label: "mean reward", colour: "--series-1", points: numbers.length < 60, values: numbers.map((n) => mean(steps.get(n))) }], [steps]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!value) return html`<${Loading} what="Reading the prompt's answers" />`;
  if (!rows.length) return html`<${Empty}><p>This prompt has no answers in this run.</p><//>`;
  const range = rewardRange(rows);
  const late = numbers.slice(-shown);
  return html`
    <p class="lead"><a href=${address("run", run.id, "prompts")}>← All prompts</a></p>
    <div class="message prompt"><${Text} text=${rows[0].prompt} limit=${2000} label="The prompt" /></div>
    <p class="lead">${count(rows.length, "answer")} in ${count(numbers.length, "step")}${value.answers > rows.length ? `, of ${value.answers.toLocaleString("en")} in total; the steps in between are left out` : ""}.</p>
    ${numbers.length > 1 && html`<div class="charts wide"><${Chart} title="Reward of this prompt" x=${numbers} series=${series} onPick=${(step) => go("run", run.id, "step", step)} /></div>`}
    ${rows.length > 1 && html`<${Between} run=${run} steps=${steps} numbers=${numbers} />`}
    <h2>Answers over time</h2>
    ${late.length < numbers.length && html`<button onClick=${() => setShown(shown + 100)}>Show earlier steps</button>`}
    <ol class="timeline">${late.map((n) => html`<li key=${n}><a class="at" href=${address("run", run.id, "step", n)}>step ${n}</a>
      <div class="answers">${steps.get(n).map((row) => html`<article class="card small" key=${row.index}>
        <header><${RewardChip} row=${row} range=${range} /> <a href=${address("run", run.id, "sample", row.step, row.group, row.index)} aria-label="Answer ${row.index + 1} of step ${n}">open</a></header>
        <${Text} text=${row.response + (row.cut ? " …" : "")} /></article>`)}</div></li>`)}</ol>`;
}

function byStep(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.step, [...(found.get(row.step) || []), row]);
  return found;
}

function mean(rows) {
  const rewards = rows.filter((row) => row.reward !== null).map((row) => row.reward);
  return rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
}

function Between({ run, steps, numbers }) {
  const [before, setBefore] = useState(numbers[0]);
  const [after, setAfter] = useState(numbers[numbers.length - 1]);
  const [which, setWhich] = useState([0, steps.get(numbers[numbers.length - 1]).length > 1 && numbers.length === 1 ? 1 : 0]);
  const pick = (step, i) => steps.get(step)?.[i] || steps.get(step)?.[0];
  const [a, b] = [pick(before, which[0]), pick(after, which[1])];
  const whole = useLoaded(async () => {
    const load = (row) => (row.cut ? get(`runs/${run.id}/samples/${row.step}/${row.group}/${row.index}`) : row);
    return Promise.all([load(a), load(b)]);
  }, [a, b]);
  const choose = (label, step, setStep, side) => html`<label>${label} step <select value=${step} onChange=${(e) => setStep(Number(e.target.value))}>${numbers.map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
    <label>answer <select value=${which[side]} onChange=${(e) => setWhich(side ? [which[0], Number(e.target.value)] : [Number(e.target.value), which[1]])}>${steps.get(step).map((row, i) => html`<option value=${i}>${row.index + 1} (${row.reward === null ? "error" : fixed(row.reward, 2)})</option>`)}</select></label>`;
  return html`<section class="between" aria-labelledby="between-title"><h2 id="between-title">What changed between two steps</h2>
    <div class="toolbar">${choose("Before:", before, setBefore, 0)} ${choose("After:", after, setAfter, 1)}</div>
    ${whole.value && html`<${Difference} before=${whole.value[0].response} after=${whole.value[1].response} label="Difference between step ${before} and step ${after}" />`}
  </section>`;
}
