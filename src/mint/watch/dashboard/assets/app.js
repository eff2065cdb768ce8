// The page: which view is open, the frame around it, and the theme.
import { get, NeedsKey, setKey, useLiveRun, useRuns } from "./api.js";
import { address, html, plain, Problem, Text, Title, useKeys } from "./parts.js";
import { render } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { Compare } from "./views/compare.js";
import { Curves } from "./views/curves.js";
import { Prompt, Prompts } from "./views/prompt.js";
import { Runs } from "./views/runs.js";
import { Sample } from "./views/sample.js";
import { Search } from "./views/search.js";
import { Service } from "./views/service.js";
import { Step } from "./views/step.js";

function readAddress() {
  return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
}

function App() {
  const [route, setRoute] = useState(readAddress());
  const [about, setAbout] = useState(null);
  const [locked, setLocked] = useState(null);
  const state = useRuns();
  useEffect(() => {
    const change = () => { setRoute(readAddress()); scrollTo(0, 0); };
    addEventListener("hashchange", change);
    get("about").then(setAbout, (error) => (error instanceof NeedsKey ? setLocked(error) : setAbout({})));
    return () => removeEventListener("hashchange", change);
  }, []);
  const help = useRef(null);
  const [kind, ...rest] = route;
  useKeys({
    "?": () => help.current?.showModal(),
    "/": () => kind === "run" && (location.hash = address("run", rest[0], "search").slice(1)),
    g: () => (location.hash = "/"),
  });
  useEffect(() => { document.title = kind === "run" ? `${plain(nameOf(state.runs, rest[0]))} · mint watch` : "mint watch"; });
  if (locked || state.error instanceof NeedsKey && !state.runs) return html`<${Unlock} error=${locked || state.error} />`;
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/">mint <span>watch</span></a>
      <nav aria-label="Main">
        <${Tab} to=${address()} on=${!kind}>Runs<//>
        <${Tab} to=${address("compare")} on=${kind === "compare"}>Compare<//>
        ${about?.service && html`<${Tab} to=${address("service")} on=${kind === "service"}>Service<//>`}
      </nav>
      ${about?.demo && html`<span class="badge plain" title="A recorded run: mint watch DIR shows your own">demo</span>`}
      <span class="spacer"></span>
      <button class="quiet for-keys" onClick=${() => help.current?.showModal()} aria-label="Keyboard shortcuts">?</button>
      <${Theme} />
    </header>
    <main id="main" tabindex="-1">${view(kind, rest, state)}</main>
    <dialog ref=${help} aria-labelledby="help-title"><h2 id="help-title">Keyboard</h2>
      <dl class="keys"><div><dt>g</dt><dd>all runs</dd></div><div><dt>/</dt><dd>search this run</dd></div><div><dt>[ ]</dt><dd>previous step, next step</dd></div><div><dt>j k</dt><dd>next answer, previous answer</dd></div><div><dt>arrows</dt><dd>move along a curve, a heat map or tokens</dd></div><div><dt>Enter</dt><dd>open the selected item</dd></div></dl>
      <form method="dialog"><button class="main">Close</button></form></dialog>`;
}

function nameOf(runs, id) {
  return runs?.find((run) => run.id === id)?.name || id || "";
}

function view(kind, rest, state) {
  if (kind === undefined) return html`<${Runs} state=${state} />`;
  if (kind === "compare") return html`<${Compare} ids=${(rest[0] || "").split(",").filter(Boolean)} all=${state.runs} />`;
  if (kind === "service") return html`<${Service} model=${rest[0]} />`;
  if (kind === "run" && rest[0]) return html`<${Run} key=${rest[0]} id=${rest[0]} view=${rest[1] || "curves"} rest=${rest.slice(2)} />`;
  return html`<${Title}>No such page<//><p><a href=${address()}>All runs</a></p>`;
}

function Run({ id, view, rest }) {
  const { run, error } = useLiveRun(id);
  const last = run.steps.length ? run.steps[run.steps.length - 1] : 1;
  const title = { step: `Step ${rest[0]}`, sample: `Step ${rest[0]}, group ${Number(rest[1]) + 1}, answer ${Number(rest[2]) + 1}`, prompts: "Prompts", prompt: "One prompt over the steps", search: "Search", settings: "Settings", curves: "Curves" }[view] ?? "No such page";
  const status = run.info && html`<span class="status ${run.info.status}">${run.info.status}</span> step ${run.info.step}${run.info.steps ? ` of ${run.info.steps}` : ""}`;
  return html`
    <nav class="tabs" aria-label="Views of the run">
      <${Tab} to=${address("run", id)} on=${view === "curves"}>Curves<//>
      <${Tab} to=${address("run", id, "step", last)} on=${view === "step" || view === "sample"}>Steps<//>
      <${Tab} to=${address("run", id, "prompts")} on=${view.startsWith("prompt")}>Prompts<//>
      <${Tab} to=${address("run", id, "search")} on=${view === "search"}>Search<//>
      <${Tab} to=${address("run", id, "settings")} on=${view === "settings"}>Settings<//>
    </nav>
    <${Title} key=${view} sub=${status}><span class="run-name">${run.info?.name || id}</span> <span class="view-name">${title}</span><//>
    ${error && run.loaded && html`<${Problem} error=${error} />`}
    ${view === "curves" && html`<${Curves} run=${run} error=${error} />`}
    ${view === "step" && html`<${Step} run=${run} step=${Number(rest[0])} group=${rest[1] === "group" ? Number(rest[2]) : undefined} />`}
    ${view === "sample" && html`<${Sample} run=${run} step=${Number(rest[0])} group=${Number(rest[1])} index=${Number(rest[2])} />`}
    ${view === "prompts" && html`<${Prompts} run=${run} />`}
    ${view === "prompt" && html`<${Prompt} key=${rest[0]} run=${run} identity=${rest[0]} />`}
    ${view === "search" && html`<${Search} run=${run} />`}
    ${view === "settings" && html`<${Settings} run=${run} />`}`;
}

function Settings({ run }) {
  const config = run.info?.config || {};
  const names = Object.keys(config);
  return html`${run.info && html`<p class="lead">In <code>${run.info.path}</code></p>`}
    ${names.length ? html`<div class="scroll"><table class="list settings"><thead><tr><th scope="col">Setting</th><th scope="col">Value</th></tr></thead><tbody>${names.map((name) => html`<tr><th scope="row"><code>${name}</code></th><td>${String(config[name])}</td></tr>`)}</tbody></table></div>`
    : html`<${Text} text=${run.info?.config_text || "No settings were recorded."} />`}`;
}

function Tab({ to, on, children }) {
  return html`<a href=${to} class=${on ? "on" : ""} aria-current=${on ? "page" : undefined}>${children}</a>`;
}

function Theme() {
  const [theme, setTheme] = useState(stored());
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("mint-theme", theme); } catch { /* a page without storage forgets it */ }
    dispatchEvent(new Event("mint-theme"));
  }, [theme]);
  const next = { system: "light", light: "dark", dark: "system" }[theme];
  return html`<button class="quiet" onClick=${() => setTheme(next)} aria-label="Theme: ${theme}. Change to ${next}">${{ system: "◐", light: "☀", dark: "☾" }[theme]}</button>`;
}

function stored() {
  try { return ["light", "dark"].find((t) => t === localStorage.getItem("mint-theme")) || "system"; } catch { return "system"; }
}

function Unlock({ error }) {
  const send = (event) => {
    event.preventDefault();
    setKey(new FormData(event.target).get("key"));
    location.reload();
  };
  return html`<main class="unlock"><${Title}>mint watch<//><p>${error.message}</p>
    <form onSubmit=${send}><label>Key <input name="key" type="password" autocomplete="off" required /></label><button class="main">Open</button></form></main>`;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("mint-theme")));
render(html`<${App} />`, document.getElementById("app"));
