// Search over all samples of a run.
import { get, isBundle, offer, save } from "../api.js";
import { address, count, html, Problem, RewardChip, rewardRange } from "../parts.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";

const FIELDS = ["text", "regex", "reward_min", "reward_max", "component", "component_min", "component_max", "stop", "error", "step_min", "step_max"];
const ENOUGH = 200;

export function Search({ run }) {
  const [wanted, setWanted] = useState(null);
  const [found, setFound] = useState({ rows: [], searched: 0, next: null, busy: false, error: null });
  const round = useRef(0);
  const first = useRef(null);
  useEffect(() => first.current?.focus(), []);

  const search = async (filter, rows, after) => {
    const mine = ++round.current;
    const enough = rows.length + ENOUGH;
    setFound({ rows, searched: 0, next: null, busy: true, error: null });
    try {
      let answer;
      do {
        answer = await get(`runs/${run.id}/search`, { ...filter, after: after ? after.join(",") : "" });
        if (mine !== round.current) return;
        rows = [...rows, ...answer.rows];
        after = answer.next;
        setFound({ rows, searched: answer.searched, next: after, busy: after !== null && rows.length < enough, error: null });
      } while (after && rows.length < enough);
    } catch (error) {
      if (mine === round.current) setFound({ rows, searched: 0, next: null, busy: false, error });
    }
  };
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const filter = Object.fromEntries(FIELDS.map((name) => [name, String(form.get(name) ?? "")]).filter(([, value]) => value !== ""));
    setWanted(filter);
    search(filter, [], null);
  };
  const range = rewardRange(found.rows);
  return html`
    <form class="search" onSubmit=${submit} role="search" aria-label="Search samples">
      <label class="wide">Text <input ref=${first} name="text" placeholder="in the prompt or the answer" maxlength="1000" /></label>
      <label class="wide">Regular expression <input name="regex" placeholder="in the answer, such as ^The answer is \\d+" maxlength="1000" spellcheck="false" /></label>
      <fieldset><legend>Reward</legend><label>from <input name="reward_min" type="number" step="any" /></label><label>to <input name="reward_max" type="number" step="any" /></label></fieldset>
      <fieldset><legend>Step</legend><label>from <input name="step_min" type="number" /></label><label>to <input name="step_max" type="number" /></label></fieldset>
      <fieldset><legend>Component</legend><label><span class="visually-hidden">name</span><select name="component"><option value="">any</option>${(run.info?.components || []).map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
        <label>from <input name="component_min" type="number" step="any" /></label><label>to <input name="component_max" type="number" step="any" /></label></fieldset>
      <fieldset><legend>Ended by</legend><label><span class="visually-hidden">stop reason</span><select name="stop"><option value="">anything</option><option value="stop">a stop</option><option value="length">max_tokens</option></select></label></fieldset>
      <fieldset><legend>Reward error</legend><label><span class="visually-hidden">error</span><select name="error"><option value="">with or without</option><option value="any">with</option><option value="none">without</option></select></label></fieldset>
      <div class="buttons"><button class="main" type="submit">Search</button><button type="reset" onClick=${() => { round.current++; setWanted(null); }}>Clear</button></div>
    </form>
    ${found.error && html`<${Problem} error=${found.error} />`}
    ${wanted && !found.error && html`<div class="toolbar">
      <span role="status">${found.busy ? `Searching… ${Math.round(100 * found.searched)}%, ` : ""}${count(found.rows.length, "sample")}${found.next && !found.busy ? ", and more" : ""}</span>
      ${found.next && !found.busy && html`<button onClick=${() => search(wanted, found.rows, found.next)}>Find more</button>`}
      <span class="spacer"></span>${found.rows.length > 0 && html`<${Export} run=${run} wanted=${wanted} rows=${found.rows} />`}
    </div>`}
    ${wanted && found.rows.length > 0 && html`<div class="scroll"><table class="list hits"><thead><tr><th scope="col">Where</th><th scope="col">Reward</th><th scope="col">Prompt</th><th scope="col">Answer</th></tr></thead>
      <tbody>${found.rows.map((row) => html`<tr key=${`${row.step}.${row.group}.${row.index}`}><th scope="row"><a href=${address("run", run.id, "sample", row.step, row.group, row.index)}>step ${row.step}, ${row.group + 1}.${row.index + 1}</a></th>
        <td><${RewardChip} row=${row} range=${range} /></td><td class="clip">${(row.prompt || "").slice(0, 120)}</td><td class="clip">${row.response.slice(0, 200)}</td></tr>`)}</tbody></table></div>`}`;
}

function Export({ run, wanted, rows }) {
  const [error, setError] = useState(null);
  const download = (format) => save(`runs/${run.id}/export`, { ...wanted, format }, `${run.id}.${format}`).then(() => setError(null), setError);
  if (isBundle()) return html`<button onClick=${() => offer(new Blob(rows.map((row) => JSON.stringify(row) + "\n")), `${run.id}.jsonl`)}>Export JSONL</button>`;
  return html`<span role="group" aria-label="Export all hits">Export
    ${["jsonl", "parquet", "csv"].map((format) => html` <button onClick=${() => download(format)}>${format === "parquet" ? "Parquet" : format.toUpperCase()}</button>`)}</span>
    ${error && html`<${Problem} error=${error} />`}`;
}
