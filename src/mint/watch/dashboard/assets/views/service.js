// The service that the dashboard is attached to: what it does now, and a chat with its checkpoints.
import { get, NeedsKey, request, setKey, useRepeated } from "../api.js";
import { address, ago, count, Empty, fixed, go, html, Loading, Problem, Text, Title } from "../parts.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";

export function Service({ model }) {
  const [state, setState] = useState({ value: null, error: null });
  useRepeated(async (isOver) => {
    try {
      const value = await get("service");
      if (!isOver()) setState({ value, error: null });
    } catch (error) {
      if (!isOver()) setState((old) => ({ ...old, error }));
    }
  }, [], 2000);
  const { value, error } = state;
  return html`<${Title}>Service<//>
    ${error && html`<${Problem} error=${error} />`}
    ${!value && !error && html`<${Loading} what="Waiting for the service" />`}
    ${value && html`<${Now} value=${value} /><${Playground} value=${value} model=${model} />
      <${Runs} runs=${value.runs} /><${Checkpoints} checkpoints=${value.checkpoints} />`}`;
}

function Tile({ name, children }) {
  return html`<div class="tile"><dt>${name}</dt><dd>${children}</dd></div>`;
}

function Now({ value }) {
  return html`<dl class="tiles">
      <${Tile} name="State">${value.ready ? "ready" : "loading"}<//>
      <${Tile} name="Operations waiting">${value.queues.operations}<//>
      <${Tile} name="Samples waiting">${value.queues.samples}<//>
      <${Tile} name="Training runs">${value.runs.length}<//>
      <${Tile} name="Checkpoints">${value.checkpoints.length}<//></dl>
    ${value.models.map((model) => html`<section class="card model" key=${model.name}><h2>${model.name}</h2>
      <dl class="tiles">
        <${Tile} name="Calls in progress">${model.calls}<//>
        ${model.memory.runs_resident !== undefined && html`<${Tile} name="Adapters in memory">${model.memory.runs_resident} training, ${model.memory.samplers_resident ?? 0} sampling<//>`}
        ${model.memory.cache_tokens_capacity > 0 && html`<${Tile} name="KV cache">
          <meter min="0" max="1" value=${(model.memory.cache_tokens_used ?? 0) / model.memory.cache_tokens_capacity} aria-label="KV cache in use"></meter>
          ${fixed(model.memory.cache_tokens_used)} of ${fixed(model.memory.cache_tokens_capacity)} tokens<//>`}
        ${model.memory.device_bytes_capacity > 0 && html`<${Tile} name="GPU memory">
          <meter min="0" max="1" value=${model.memory.device_bytes_used / model.memory.device_bytes_capacity} aria-label="GPU memory in use"></meter>
          ${gib(model.memory.device_bytes_used)} of ${gib(model.memory.device_bytes_capacity)} GiB<//>`}
        ${model.memory.process_bytes !== undefined && html`<${Tile} name="Memory of the process">${gib(model.memory.process_bytes)} GiB<//>`}
      </dl>${model.plan && html`<p class="hint">${model.plan}</p>`}</section>`)}`;
}

// A checkpoint's name and the beginning of its run's.
function brief(path) {
  const parts = path.replace(/^\w+:\/\//, "").split("/");
  return `${parts[parts.length - 1]} of ${parts[0].slice(0, 8)}`;
}

function gib(bytes) {
  return fixed(bytes / 2 ** 30, 2);
}

function Runs({ runs }) {
  return html`<section><h2>Training runs</h2>${runs.length === 0 ? html`<p class="hint">None yet.</p>` : html`<div class="scroll"><table class="list"><thead><tr><th scope="col">Run</th><th scope="col">Task</th><th scope="col">Base model</th><th scope="col">Rank</th><th scope="col">Last request</th></tr></thead>
    <tbody>${runs.map((run) => html`<tr key=${run.id}><th scope="row"><code>${run.id}</code></th><td>${run.task}</td><td>${run.base_model}</td><td>${run.rank}</td><td>${ago(run.last_request)}</td></tr>`)}</tbody></table></div>`}</section>`;
}

function Checkpoints({ checkpoints }) {
  return html`<section><h2>Checkpoints</h2>${checkpoints.length === 0 ? html`<p class="hint">None yet.</p>` : html`<div class="scroll"><table class="list"><thead><tr><th scope="col">Path</th><th scope="col">For</th><th scope="col">Created</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
    <tbody>${checkpoints.map((c) => html`<tr key=${c.path}><th scope="row"><code>${c.path}</code></th><td>${c.kind}</td><td>${ago(c.created)}</td>
      <td><a href=${address("service", c.path)} aria-label="Chat with ${c.path}">Chat</a></td></tr>`)}</tbody></table></div>`}</section>`;
}

// ---- playground ----

function Playground({ value, model }) {
  const chosen = value.checkpoints.find((c) => c.path === model) || (model ? { path: model, base_model: value.models[0]?.name } : null);
  const [base, setBase] = useState("");
  const names = value.models.map((m) => m.name);
  const beside = base || chosen?.base_model || names[0] || "";
  const [talks, setTalks] = useState({ left: [], right: [] });
  const [busy, setBusy] = useState(0);
  const [text, setText] = useState("");
  const [locked, setLocked] = useState(false);
  const [temperature, setTemperature] = useState(0.7);
  const [longest, setLongest] = useState(128);
  const section = useRef(null);
  useEffect(() => { setTalks({ left: [], right: [] }); if (model) section.current?.scrollIntoView({ block: "nearest" }); }, [model]);

  const ask = async (side, name, history) => {
    setBusy((n) => n + 1);
    const put = (content, error) => setTalks((old) => ({ ...old, [side]: [...history, { role: "assistant", content, error }] }));
    put("");
    try {
      const body = JSON.stringify({ model: name, messages: history.map(({ role, content }) => ({ role, content })), temperature, max_tokens: longest, stream: true });
      const answer = await request("../v1/chat/completions", { method: "POST", headers: { "content-type": "application/json" }, body });
      let said = "";
      for await (const event of eventsOf(answer)) {
        if (event.error) throw new Error(event.error.message);
        said += event.choices?.[0]?.delta?.content ?? "";
        put(said);
      }
      put(said || "(an empty answer)");
    } catch (error) {
      put("", error.message);
      if (error instanceof NeedsKey) setLocked(true);
    } finally {
      setBusy((n) => n - 1);
    }
  };
  const send = (event) => {
    event.preventDefault();
    const said = text.trim();
    if (!said) return;
    setText("");
    for (const [side, name] of [["left", chosen?.path], ["right", beside]]) {
      if (!name) continue;
      const history = [...talks[side].filter((m) => !m.error), { role: "user", content: said }];
      ask(side, name, history);
    }
  };
  const unlock = (event) => {
    event.preventDefault();
    setKey(new FormData(event.target).get("key"));
    setLocked(false);
    setTalks({ left: [], right: [] });
  };
  return html`<section class="card playground" ref=${section} aria-labelledby="playground-title"><h2 id="playground-title">Playground</h2>
    <div class="toolbar">
      <label>Checkpoint <select value=${chosen?.path || ""} onChange=${(e) => go("service", e.target.value)}><option value="">choose one</option>${value.checkpoints.map((c) => html`<option value=${c.path}>${brief(c.path)}</option>`)}</select></label>
      <label>next to <select value=${beside} onChange=${(e) => setBase(e.target.value)}>${[...new Set([beside, ...names])].filter(Boolean).map((name) => html`<option>${name}</option>`)}</select></label>
      <label>Temperature <input type="number" min="0" max="2" step="0.1" value=${temperature} onInput=${(e) => setTemperature(Number(e.target.value))} /></label>
      <label>Maximum tokens <input type="number" min="1" max="4096" value=${longest} onInput=${(e) => setLongest(Number(e.target.value) || 1)} /></label>
    </div>
    ${!names.length && !chosen ? html`<${Empty}><p>No model is loaded. Start the service with --model, or run a script.</p><//>` : html`
      <div class="talks">${chosen && html`<${Talk} name=${chosen.path} label="checkpoint" messages=${talks.left} />`}<${Talk} name=${beside} label="base model" messages=${talks.right} /></div>
      <form class="say" onSubmit=${send}><label class="wide"><span class="visually-hidden">Message</span><input value=${text} onInput=${(e) => setText(e.target.value)} placeholder="Message to both" maxlength="20000" /></label>
        <button class="main" disabled=${busy > 0}>Send</button><button type="button" onClick=${() => setTalks({ left: [], right: [] })}>Clear</button></form>
      ${locked && html`<form class="say" onSubmit=${unlock}><label>Key of the service <input name="key" type="password" autocomplete="off" required /></label><button class="main">Use this key</button>
        <span class="hint">A script prints the dashboard's address with the key of its service in it.</span></form>`}`}
  </section>`;
}

function Talk({ name, label, messages }) {
  return html`<div class="talk-box" role="log" aria-label="Chat with the ${label}"><p class="who">${label}: <code>${name}</code></p>
    <ol class="talk">${messages.map((m, i) => html`<li key=${i} class="message ${m.role}"><div class="who">${m.role === "user" ? "You" : "Model"}</div>${m.error ? html`<${Problem} error=${m.error} />` : html`<${Text} text=${m.content || "…"} />`}</li>`)}</ol></div>`;
}

async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}
