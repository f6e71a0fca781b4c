// From what a form holds to a campaign's configuration, and from the API's field names back to the form. No page here.
//
// A draft is plain text as typed. `configured` also says which input each part of the configuration came from, so that a
// message about `variables[1].levels` finds it, whatever rows were left empty.

export const UNITS = { minutes: 60, hours: 3_600, days: 86_400 };
export const KINDS = { levels: "names", cuts: "a number, cut into levels", range: "a number as it is" };

export const emptyVariable = (id) => ({ id, name: "", kind: "levels", levels: "", cuts: "", labels: "", low: "", high: "", signal: true });

export const emptyDraft = () => ({
  name: "",
  actions: [{ id: 1, text: "" }, { id: 2, text: "" }],
  variables: [emptyVariable(1)],
  rewardLow: "", rewardHigh: "", wait: "", unit: "days", missing: "",
  share: "0.1", control: "uniform", floor: "",
  regimes: "auto", stage: "", clock: "", clockUnit: "hours", alertRounds: "", webhook: "", retention: "", labels: "",
});

const listed = (text) => text.split(",").map((part) => part.trim()).filter((part) => part !== "");

// A number if it is one; else as typed, so that the API says what is wrong with it.
export function amount(text) {
  const given = text.trim();
  if (given === "") return null;
  return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(given) ? Number(given) : given;
}

const seconds = (text, unit) => {
  const given = amount(text);
  return typeof given === "number" ? given * UNITS[unit] : given;
};

function variableOf(draft) {
  const found = { name: draft.name.trim() };
  if (draft.kind === "levels") found.levels = listed(draft.levels);
  if (draft.kind === "cuts") {
    found.cuts = listed(draft.cuts).map(amount);
    if (draft.labels.trim()) found.levels = listed(draft.labels);
  }
  if (draft.kind === "range") found.range = [amount(draft.low), amount(draft.high)];
  return found;
}

const untouched = ({ name, levels, cuts, labels, low, high }) => ![name, levels, cuts, labels, low, high].some((text) => text.trim());

// {config, inputs}: the configuration, and a Map from its parts to the names of the inputs they came from.
export function configured(draft) {
  const inputs = new Map();
  const config = { name: draft.name.trim() };
  const actions = draft.actions.filter(({ text }) => text.trim());
  config.actions = actions.map(({ text }) => text.trim());
  actions.forEach(({ id }, i) => inputs.set(`actions[${i}]`, `action-${id}`));
  const empty = draft.actions.find(({ text }) => !text.trim()) ?? draft.actions.at(-1);
  inputs.set("name", "name").set("actions", `action-${empty.id}`);

  const variables = draft.variables.filter((variable) => !untouched(variable));
  config.variables = variables.map(variableOf);
  variables.forEach(({ id, kind }, i) => {
    const at = `variables[${i}]`, own = (part) => `variable-${id}-${part}`;
    inputs.set(at, own("kind")).set(`${at}.name`, own("name")).set(`${at}.cuts`, own("cuts"));
    inputs.set(`${at}.levels`, own(kind === "cuts" ? "labels" : "levels"));
    inputs.set(`${at}.range`, own("low")).set(`${at}.range[0]`, own("low")).set(`${at}.range[1]`, own("high"));
  });
  if (variables.length) inputs.set("variables", `variable-${variables.at(-1).id}-name`);
  const signals = variables.filter(({ kind, signal }) => signal && kind !== "range");
  if (variables.some(({ kind }) => kind !== "range")) {
    config.signals = signals.map(({ name }) => name.trim());
    inputs.set("signals", "signals");
    signals.forEach(({ id }, i) => inputs.set(`signals[${i}]`, `variable-${id}-signal`));
  }

  const put = (path, value, input) => {
    inputs.set(path, input);
    if (value === null) return;
    const [part, field] = path.split(".");
    if (field) config[part] = { ...config[part], [field]: value };
    else config[part] = value;
  };
  const low = amount(draft.rewardLow), high = amount(draft.rewardHigh);
  put("rewards.range", low === null && high === null ? null : [low, high], "reward-low");
  inputs.set("rewards.range[0]", "reward-low").set("rewards.range[1]", "reward-high");
  put("rewards.wait_seconds", seconds(draft.wait, draft.unit), "wait");
  put("rewards.default", amount(draft.missing), "missing");
  const share = amount(draft.share);
  put("control.share", share === 0 ? null : share, "share");
  put("control.kind", share && draft.control !== "uniform" ? draft.control : null, "control");
  put("propensity_floor", amount(draft.floor), "floor");
  put("regimes", draft.regimes === "auto" ? null : Number(draft.regimes), "regimes");
  put("stage_length", amount(draft.stage), "stage");
  put("clock.period_seconds", seconds(draft.clock, draft.clockUnit), "clock");
  put("regime_labels", draft.labels.trim() ? listed(draft.labels) : null, "labels");
  put("alerts.rounds", amount(draft.alertRounds), "alert-rounds");
  put("alerts.webhook", draft.webhook.trim() || null, "webhook");
  put("retention_days", amount(draft.retention), "retention");
  inputs.set("clock", "clock");
  return { config, inputs };
}

// The input that a field of the API is about: its own, or that of the part it belongs to; null if there is none.
export function inputOf(field, inputs) {
  for (let part = field; part; part = part.replace(/(\[\d+\]|\.[^.[]*|^[^.[]+)$/, "")) {
    if (inputs.has(part)) return inputs.get(part);
  }
  return null;
}

// "'A b' is not a slug. Allowed: a-z, 0-9 …"
export function messageOf({ message, allowed }) {
  const text = `${message.charAt(0).toUpperCase()}${message.slice(1)}`;
  if (allowed === null || allowed === undefined || allowed === "") return `${text}.`;
  return `${text}. Allowed: ${Array.isArray(allowed) ? allowed.join(", ") || "nothing" : allowed}.`;
}

const fields = (value, written) => Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${written(item)}`);

function onOneLine(value) {
  if (Array.isArray(value)) return `[${value.map(onOneLine).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${fields(value, onOneLine).join(", ")}}`;
}

// JSON for people: what is short stays on one line.
export function pretty(value, indent = "") {
  const flat = onOneLine(value);
  if (value === null || typeof value !== "object" || (indent && flat.length + indent.length <= 46)) return flat;
  const inner = `${indent}  `;
  const parts = Array.isArray(value)
    ? value.map((item) => inner + pretty(item, inner))
    : fields(value, (item) => pretty(item, inner)).map((field) => inner + field);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${parts.join(",\n")}\n${indent}${close}`;
}

// The same as a command for a shell.
export function command(config, url, keys) {
  const key = keys ? ' \\\n  -H "Authorization: Bearer $KEY"' : "";
  return `curl ${url}${key} \\\n  -d '${pretty(config).replaceAll("'", "'\\''")}'`;
}
