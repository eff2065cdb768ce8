// One sample: the conversation, the reward with its reasons, and the tokens.
import { get } from "../api.js";
import { address, CopyButton, fixed, go, html, Loading, Problem, RewardChip, Text, useKeys, useLoaded } from "../parts.js";
import { Tokens } from "../tokens.js";

export function Sample({ run, step, group, index }) {
  const { value: row, error } = useLoaded(() => get(`runs/${run.id}/samples/${step}/${group}/${index}`), [run.id, step, group, index]);
  const move = (to) => to >= 0 && go("run", run.id, "sample", step, group, to);
  useKeys({ j: () => move(index + 1), k: () => move(index - 1) });
  if (error) return html`<${Problem} error=${error} /><p><a href=${address("run", run.id, "step", step)}>Back to step ${step}</a></p>`;
  if (!row) return html`<${Loading} what="Reading the sample" />`;
  const isOld = row.step !== step || row.group !== group || row.index !== index;
  return html`
    <div class="toolbar">
      <a class="button" href=${address("run", run.id, "step", step, "group", group)}>← Step ${step}, group ${group + 1}</a>
      <button onClick=${() => move(index - 1)} disabled=${index === 0} aria-label="Previous answer" title="Previous answer (k)">‹</button>
      <button onClick=${() => move(index + 1)} aria-label="Next answer" title="Next answer (j)">›</button>
      <a class="button" href=${address("run", run.id, "prompt", row.identity)}>This prompt over the steps</a>
      <span class="spacer"></span>
      <${CopyButton} text=${() => JSON.stringify(row, null, 2)}>Copy as JSON<//>
      <${CopyButton} text=${() => testCase(row)}>Copy as test case<//>
      <${CopyButton} text=${() => command(row, run)}>Copy as command<//>
    </div>
    <div class=${isOld ? "stale" : ""} inert=${isOld}><div class="sample">
      <section aria-labelledby="talk-title"><h2 id="talk-title">Conversation</h2><${Conversation} row=${row} /></section>
      <section aria-labelledby="reward-title"><h2 id="reward-title">Reward</h2><${Reward} row=${row} /></section>
    </div>
    <${Tokens} segments=${row.segments} />
    ${Array.isArray(row.trace) && row.trace.length > 0 && html`<details class="trace"><summary>Trace (${row.trace.length})</summary><${Text} text=${JSON.stringify(row.trace, null, 2)} /></details>`}</div>`;
}

export function messagesOf(row) {
  if (!Array.isArray(row.messages) || !row.messages.length) return [{ role: "prompt", content: row.prompt }, { role: "answer", content: row.response }];
  const last = row.messages[row.messages.length - 1];
  const said = last?.role === "assistant" && String(last.content ?? "").trim() === String(row.response ?? "").trim();
  const turns = row.messages.some((m) => m?.role === "assistant" && !m.example);
  return said || turns && row.trace?.length ? row.messages : [...row.messages, { role: "assistant", content: row.response }];
}

const ROLES = { system: "System", user: "User", assistant: "Model", tool: "Tool", prompt: "Prompt", answer: "Model" };

function Conversation({ row }) {
  return html`<ol class="talk">${messagesOf(row).map((message, i) => html`<li key=${i} class="message ${message.role}">
    <div class="who">${ROLES[message.role] || message.role}${message.name ? html` <code>${String(message.name)}</code>` : ""}${message.example ? " (example)" : ""}</div>
    ${content(message.content) !== "" && html`<${Text} text=${content(message.content)} />`}
    ${(message.tool_calls || []).map((call) => html`<div class="call"><span class="who">calls <code>${String(call.name ?? call.function?.name ?? "tool")}</code></span>
      <${Text} text=${argumentsOf(call)} /></div>`)}
  </li>`)}</ol>
  ${row.truncated && html`<p class="notice">The answer was cut off by max_tokens.</p>`}
  ${row.cut?.length > 0 && html`<p class="notice">Only the first part of ${row.cut.join(", ")} is shown: it is very long.</p>`}`;
}

function content(value) {
  return typeof value === "string" ? value : value === null || value === undefined ? "" : JSON.stringify(value, null, 2);
}

function argumentsOf(call) {
  const given = call.arguments ?? call.function?.arguments ?? call;
  return typeof given === "string" ? given : JSON.stringify(given, null, 2);
}

function Reward({ row }) {
  const names = [...new Set([...Object.keys(row.components), ...Object.keys(row.reasons)])];
  return html`<div class="card reward-card">
    <p class="total"><${RewardChip} row=${row} /> ${row.masked && html`<span class="badge plain">excluded from training</span>`}</p>
    ${row.error && html`<div class="problem"><strong>The reward failed.</strong> <${Text} text=${row.error} />${row.traceback && html`<details><summary>Traceback</summary><${Text} text=${row.traceback} /></details>`}</div>`}
    ${names.length > 0 && html`<div class="scroll"><table class="components"><thead><tr><th scope="col">Component</th><th scope="col">Value</th><th scope="col">Reason</th></tr></thead>
      <tbody>${names.map((name) => html`<tr><th scope="row">${name}</th><td>${fixed(row.components[name])}</td><td><${Text} text=${row.reasons[name]} limit=${1000} /></td></tr>`)}</tbody></table></div>`}
    <dl class="facts-list">
      <div><dt>Advantage</dt><dd>${fixed(row.advantage)}</dd></div>
      ${row.penalty ? html`<div><dt>Penalty</dt><dd>${fixed(row.penalty)}</dd></div>` : ""}
      <div><dt>Tokens</dt><dd>${row.length}</dd></div>
      <div><dt>Ended by</dt><dd>${row.stop === "length" ? "max_tokens" : row.stop || "–"}</dd></div>
      <div><dt>Weights of step</dt><dd>${row.version}</dd></div>
      <div><dt>Prompt</dt><dd><code>${row.identity || ""}</code></dd></div>
    </dl>
  </div>`;
}

// ---- copies ----

export function testCase(row) {
  const lines = [
    "def test_reward_of_a_recorded_answer() -> None:",
    `    prompt = ${python(row.prompt)}`,
    `    response = ${python(row.response)}`,
    `    # step ${row.step}, group ${row.group}, answer ${row.index}: ${row.reward === null ? "the reward failed" : `the reward was ${fixed(row.reward, 6)}`}`,
    `    assert my_reward(response, prompt) == ${row.reward === null ? "..." : row.reward}`,
  ];
  return lines.join("\n") + "\n";
}

function python(text) {
  const escaped = JSON.stringify(String(text ?? "")).replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
  return escaped.replace(/(?:\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}/g, (pair) => {
    const [high, low] = pair.match(/[0-9a-f]{4}/g).map((x) => parseInt(x, 16));
    return "\\U" + (0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)).toString(16).padStart(8, "0");
  });
}

export function command(row, run) {
  const quote = (text) => `'${String(text).replace(/'/g, `'\\''`)}'`;
  const messages = Array.isArray(row.messages) ? row.messages : null;
  const model = checkpointOf(run) || run.info?.model;
  const parts = ["mint sample"];
  if (model) parts.push(`--model ${quote(model)}`);
  const system = messages?.find((m) => m.role === "system");
  if (system) parts.push(`--system ${quote(content(system.content))}`);
  if (!messages) parts.push("--raw");
  const temperature = temperatureOf(run, row.step);
  if (temperature !== null) parts.push(`--temperature ${temperature}`);
  if (run.info?.config?.max_tokens) parts.push(`--max-tokens ${run.info.config.max_tokens}`);
  for (const stop of run.info?.stop || []) parts.push(`--stop ${quote(stop)}`);
  const asked = messages?.find((m) => m.role === "user" && !m.example);
  parts.push(quote(asked ? content(asked.content) : row.prompt));
  return parts.join(" ");
}

// The final weights, or else the newest checkpoint.
function checkpointOf(run) {
  const paths = (kind) => run.events.filter((event) => event.event === kind && event.path).map((event) => event.path);
  return [...paths("checkpoint"), ...paths("finished")].pop() || null;
}

function temperatureOf(run, step) {
  const recorded = run.columns["policy/temperature"]?.[run.steps.indexOf(step)];
  return recorded ?? run.info?.config?.temperature ?? null;
}
