// One step: prompts × answers, coloured by reward.
import { get } from "../api.js";
import { address, count, Empty, fixed, go, html, Loading, Problem, RewardChip, rewardRange, share, Text, useKeys, useLoaded } from "../parts.js";
import { useRef, useState } from "../vendor/hooks.js";

const BARS = 20;

export function groupsOf(rows) {
  const found = new Map();
  for (const row of rows) {
    if (!found.has(row.group)) found.set(row.group, { group: row.group, identity: row.identity, prompt: row.prompt, replaced: row.replaced, rows: [] });
    found.get(row.group).rows.push(row);
  }
  for (const group of found.values()) {
    const rewards = group.rows.filter((row) => row.reward !== null && !row.masked).map((row) => row.reward + (row.penalty || 0));
    group.mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
    group.unscored = group.rows.every((row) => row.reward === null);
    group.silent = rewards.length < 2 || rewards.every((reward) => reward === rewards[0]);
  }
  return [...found.values()];
}

export function histogram(rows, range) {
  const [low, high] = range;
  const bars = Array.from({ length: BARS }, (_, i) => ({ from: low + (i * (high - low)) / BARS, to: low + ((i + 1) * (high - low)) / BARS, count: 0 }));
  for (const row of rows) if (row.reward !== null) bars[barOf(row.reward, range)].count += 1;
  return bars;
}

// The part of each prompt that differs: without a common beginning, such as examples or what a chat template adds.
export function distinct(prompts) {
  let common = prompts[0] || "";
  for (const prompt of prompts) while (!prompt.startsWith(common)) common = common.slice(0, -1);
  const start = common.search(/\S*$/);
  const rests = prompts.map((prompt) => (prompts.length > 1 && start > 16 && prompt.length > start ? "… " + prompt.slice(start) : prompt));
  return rests.map((rest) => (rest.length > 90 && !rest.startsWith("… ") ? "… " + rest.slice(-88) : rest.slice(0, 90)));
}

function whySilent(groups) {
  const same = "all of their answers got the same reward", none = "none of their answers has a reward";
  return groups.every((g) => g.unscored) ? none : groups.some((g) => g.unscored) ? `${same}, or none has one` : same;
}

function barOf(reward, [low, high]) {
  return Math.max(0, Math.min(BARS - 1, Math.floor(((reward - low) / (high - low || 1)) * BARS)));
}

export function Step({ run, step, group }) {
  const steps = run.steps;
  const { value, error, busy } = useLoaded(() => get(`runs/${run.id}/steps/${step}`), [run.id, step, run.bucket > 1 ? 0 : steps.includes(step)]);
  const [bar, setBar] = useState(null);
  const [onlySignal, setOnlySignal] = useState(false);
  const last = steps.length ? steps[steps.length - 1] : step;
  const open = (to) => go("run", run.id, "step", String(Math.max(steps[0] ?? 0, Math.min(last, to))));
  useKeys({ "[": () => open(step - 1), "]": () => open(step + 1) });
  const rows = value?.rollouts || [];
  const range = rewardRange(rows), groups = groupsOf(rows);
  const shown = groups.filter((g) => !onlySignal || !g.silent);
  const opened = group === undefined ? null : groups.find((g) => g.group === group);
  const silent = groups.filter((g) => g.silent);
  return html`
    <div class="toolbar" role="group" aria-label="Which step">
      <button onClick=${() => open(step - 1)} disabled=${step <= (steps[0] ?? 0)} aria-label="Previous step">←</button>
      <label>Step <input type="number" value=${step} min=${steps[0] ?? 0} max=${last} onChange=${(e) => open(Number(e.target.value))} /></label>
      <button onClick=${() => open(step + 1)} disabled=${step >= last} aria-label="Next step">→</button>
      <span class="hint">of ${last}; keys [ and ]</span>
      <label><input type="checkbox" checked=${onlySignal} onChange=${(e) => setOnlySignal(e.target.checked)} /> Only groups with signal</label>
    </div>
    ${error && html`<${Problem} error=${error} />`}
    ${busy && !value && html`<${Loading} what="Reading the step" />`}
    ${value && !rows.length && html`<${Empty}><p>Step ${step} has no rollouts on disk. They are written at the end of a step.</p><//>`}
    ${rows.length > 0 && html`<div class=${value.step === step ? "" : "stale"} inert=${value.step !== step}>
      <p class="lead">${count(rows.length, "answer")} to ${count(groups.length, "prompt")}${silent.length ? html`; <strong>${silent.length} of ${groups.length} groups give no signal</strong>, because ${whySilent(silent)}` : ", every group gives signal"}.</p>
      ${rows.some((row) => row.reward !== null) && html`<${Histogram} rows=${rows} range=${range} bar=${bar} onBar=${setBar} />`}
      <${HeatMap} run=${run} groups=${shown} range=${range} bar=${bar} opened=${opened} />
      ${opened && html`<${SideBySide} run=${run} group=${opened} range=${range} />`}</div>`}`;
}

function Histogram({ rows, range, bar, onBar }) {
  const bars = histogram(rows, range);
  const most = Math.max(...bars.map((b) => b.count));
  return html`<section class="histogram" aria-label="Rewards of this step: choose a bar to filter">
    <div class="bars">${bars.map((b, i) => html`<button key=${i} class=${bar === i ? "on" : ""} aria-pressed=${bar === i} disabled=${!b.count}
      onClick=${() => onBar(bar === i ? null : i)} title="${fixed(b.from, 2)} to ${fixed(b.to, 2)}: ${b.count}"
      aria-label="${count(b.count, "answer")} from ${fixed(b.from, 2)} to ${fixed(b.to, 2)}">
      <span style=${{ height: `${(100 * b.count) / most}%`, "--v": share((b.from + b.to) / 2, range) }}></span></button>`)}</div>
    <div class="ends"><span>${fixed(range[0], 2)}</span><span>reward</span><span>${fixed(range[1], 2)}</span></div>
  </section>`;
}

function HeatMap({ run, groups, range, bar, opened }) {
  const table = useRef(null);
  const width = Math.max(...groups.map((g) => g.rows.length), 1);
  const names = distinct(groups.map((g) => g.prompt || g.identity || ""));
  const move = (event) => {
    const to = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const cell = event.target.closest("[data-row]");
    if (!to || !cell) return;
    event.preventDefault();
    const [row, column] = [Number(cell.dataset.row) + to[0], Number(cell.dataset.column) + to[1]];
    table.current.querySelector(`[data-row="${row}"][data-column="${column}"]`)?.focus();
  };
  return html`<div class="scroll"><table class="heat" ref=${table} onKeyDown=${move} aria-label="Rewards: one row per prompt, one column per answer. Arrow keys move.">
    <thead><tr><th scope="col">Prompt</th>${Array.from({ length: width }, (_, i) => html`<th scope="col">${i + 1}</th>`)}<th scope="col">Mean</th><th scope="col"><span class="visually-hidden">Signal</span></th></tr></thead>
    <tbody>${groups.map((g, i) => html`<tr key=${g.group} class="${g.silent ? "silent" : ""} ${opened === g ? "opened" : ""}">
      <th scope="row"><a href=${address("run", run.id, "step", g.rows[0].step, "group", g.group)} title="See its answers side by side">${names[i]}</a></th>
      ${Array.from({ length: width }, (_, k) => html`<td>${g.rows[k] && html`<${Cell} run=${run} row=${g.rows[k]} range=${range} bar=${bar} at=${[i, k]} />`}</td>`)}
      <td class="mean">${fixed(g.mean, 2)}</td>
      <td>${g.silent && html`<span class="badge" title=${g.unscored ? "No rewards: nothing to learn from" : "Equal rewards: nothing to learn from"}>no signal</span>`}${g.replaced && html`<span class="badge plain" title="Sampled, and replaced by a group with signal">replaced</span>`}</td></tr>`)}</tbody>
  </table></div>`;
}

function Cell({ run, row, range, bar, at }) {
  const known = row.reward !== null;
  const hidden = bar !== null && (!known || barOf(row.reward, range) !== bar);
  const words = row.error ? "error" : known ? `reward ${fixed(row.reward)}` : "no reward";
  return html`<a class="cell ${known && !row.error ? "" : "unknown"} ${hidden ? "dim" : ""} ${row.truncated ? "cut" : ""}" style=${known ? { "--v": share(row.reward, range) } : {}}
    href=${address("run", run.id, "sample", row.step, row.group, row.index)} data-row=${at[0]} data-column=${at[1]}
    tabindex=${at[0] === 0 && at[1] === 0 ? 0 : -1}
    title="${words}: ${row.response.slice(0, 200)}" aria-label="Answer ${row.index + 1} to prompt ${row.group + 1}: ${words}${row.truncated ? ", cut off" : ""}">${row.error ? "!" : ""}</a>`;
}

function SideBySide({ run, group, range }) {
  const best = [...group.rows].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  return html`<section class="side" aria-labelledby="side-title">
    <h2 id="side-title">Group ${group.group + 1}: the answers side by side</h2>
    <div class="message prompt"><${Text} text=${group.prompt} limit=${1000} /></div>
    <p class="lead"><a href=${address("run", run.id, "prompt", group.identity)}>This prompt over all steps</a></p>
    <div class="answers">${best.map((row) => html`<article class="card" key=${row.index}>
      <header><${RewardChip} row=${row} range=${range} /> <a href=${address("run", run.id, "sample", row.step, row.group, row.index)}>Answer ${row.index + 1}</a>
        <span class="hint">${row.length} tokens${row.truncated ? ", cut off" : ""}${row.advantage !== null ? `, advantage ${fixed(row.advantage, 2)}` : ""}</span></header>
      <${Text} text=${row.response + (row.cut ? " …" : "")} />
    </article>`)}</div>
  </section>`;
}
