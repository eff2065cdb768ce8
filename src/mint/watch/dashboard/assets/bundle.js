// Answers from a bundle, in place of those of the server.

export class Bundle {
  constructor(answers) {
    this.answers = answers;
  }

  static async read(text) {
    const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Bundle(JSON.parse(await new Response(stream).text()));
  }

  answer(path, parameters) {
    const [, id, what] = /^runs\/([^/]+)\/([a-z]+)/.exec(path) || [];
    if (what === "search") return this.search(id, parameters);
    if (what === "metrics" && (parameters.from || parameters.to)) return this.range(id, parameters);
    if (what === "metrics" || what === "events") return this.whole(path, parameters);
    const found = this.answers[path + (what === "prompt" ? `?${parameters.identity}` : "")];
    if (found === undefined) throw new Error("This part of the run is not in the bundle. Write the bundle with a larger --size.");
    return found;
  }

  whole(path, parameters) {
    const found = this.answers[path];
    if (!parameters.cursor) return found;
    return path.endsWith("metrics")
      ? { ...found, steps: [], columns: {}, reset: false }
      : { ...found, events: [], reset: false };
  }

  range(id, { from, to }) {
    const found = this.answers[`runs/${id}/metrics`];
    const inside = found.steps.map((step) => (!from || step >= from) && (!to || step <= to));
    const pick = (list) => list.filter((_, i) => inside[i]);
    const columns = Object.fromEntries(Object.entries(found.columns).map(([name, list]) => [name, pick(list)]));
    return { ...found, steps: pick(found.steps), columns };
  }

  search(id, wanted) {
    let pattern = null;
    try {
      pattern = wanted.regex ? new RegExp(wanted.regex) : null;
    } catch (error) {
      throw new Error(`The regular expression is not valid: ${error.message}`);
    }
    const number = (name) => (wanted[name] === undefined || wanted[name] === "" ? null : Number(wanted[name]));
    const between = (value, low, high) => (low === null || value >= low) && (high === null || value <= high);
    const rows = [];
    const steps = Object.entries(this.answers).filter(([path]) => path.startsWith(`runs/${id}/steps/`)).map(([, answer]) => answer);
    for (const { rollouts } of steps.sort((a, b) => a.step - b.step)) {
      for (const row of rollouts) {
        const component = wanted.component ? row.components[wanted.component] : 0;
        const fits =
          (!wanted.text || row.response.includes(wanted.text) || (row.prompt || "").includes(wanted.text)) &&
          (!pattern || pattern.test(row.response)) &&
          ((number("reward_min") === null && number("reward_max") === null) ||
            (row.reward !== null && between(row.reward, number("reward_min"), number("reward_max")))) &&
          component !== undefined && (!wanted.component || between(component, number("component_min"), number("component_max"))) &&
          (!wanted.stop || row.stop === wanted.stop) &&
          (!wanted.error || (wanted.error === "any" ? row.error : wanted.error === "none" ? !row.error : (row.error || "").includes(wanted.error))) &&
          between(row.step, number("step_min"), number("step_max"));
        if (fits && rows.length < 200) rows.push(row);
      }
    }
    return { rows, next: null, searched: 1 };
  }
}
