// Converts the form's draft to a campaign's configuration, and the API's field names back to inputs. Does not touch the page.
//
// A draft is plain text as typed. `buildConfig` also returns which input each part of the configuration came from, so that
// a message about `variables[1].levels` appears at the right input even if some rows are empty.

const UNITS = { minutes: 60, hours: 3_600, days: 86_400 };
export const VARIABLE_KINDS = { levels: "a category", cuts: "a number, cut into levels", range: "a number" };

export const makeEmptyVariable = (id) => ({ id, name: "", kind: "levels", levels: "", cuts: "", labels: "", low: "", high: "", signal: true, lenient: false });

export const makeEmptyDraft = () => ({
  name: "",
  actions: [{ id: 1, text: "" }, { id: 2, text: "" }],
  variables: [makeEmptyVariable(1)],
  rewardLow: "", rewardHigh: "", wait: "", unit: "days", missing: "",
  share: "0.1", control: "uniform", floor: "",
  regimes: "auto", stage: "", clock: "", clockUnit: "hours", alertRounds: "", webhook: "", retention: "", labels: "",
});

const splitList = (text) => text.split(",").map((part) => part.trim()).filter((part) => part !== "");

// A number if the text is one; otherwise the text itself, so that the API can say what is wrong with it.
function parseAmount(text) {
  const given = text.trim();
  if (given === "") return null;
  return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(given) ? Number(given) : given;
}

const parseSeconds = (text, unit) => {
  const given = parseAmount(text);
  return typeof given === "number" ? given * UNITS[unit] : given;
};

function buildVariable(draft) {
  const variable = { name: draft.name.trim() };
  if (draft.kind === "levels") variable.levels = splitList(draft.levels);
  if (draft.kind === "cuts") {
    variable.cuts = splitList(draft.cuts).map(parseAmount);
    if (draft.labels.trim()) variable.levels = splitList(draft.labels);
  }
  if (draft.kind === "range") variable.range = [parseAmount(draft.low), parseAmount(draft.high)];
  if (draft.lenient) variable.missing = "level";
  if (draft.lenient && draft.kind === "levels") variable.unseen = "other";
  if (draft.lenient && draft.kind === "range") variable.outside = "clip";
  return variable;
}

const isEmpty = ({ name, levels, cuts, labels, low, high }) => ![name, levels, cuts, labels, low, high].some((text) => text.trim());

// {config, inputs}: the configuration, and a Map from its fields to the ids of the inputs they came from.
export function buildConfig(draft) {
  const inputs = new Map();
  const config = { name: draft.name.trim() };
  const actions = draft.actions.filter(({ text }) => text.trim());
  config.actions = actions.map(({ text }) => text.trim());
  actions.forEach(({ id }, i) => inputs.set(`actions[${i}]`, `action-${id}`));
  const empty = draft.actions.find(({ text }) => !text.trim()) ?? draft.actions.at(-1);
  inputs.set("name", "name").set("actions", `action-${empty.id}`);

  const variables = draft.variables.filter((variable) => !isEmpty(variable));
  config.variables = variables.map(buildVariable);
  variables.forEach(({ id, kind }, i) => {
    const at = `variables[${i}]`, own = (part) => `variable-${id}-${part}`;
    inputs.set(at, own("kind")).set(`${at}.name`, own("name")).set(`${at}.cuts`, own("cuts"));
    inputs.set(`${at}.levels`, own(kind === "cuts" ? "labels" : "levels"));
    for (const setting of ["missing", "unseen", "outside"]) inputs.set(`${at}.${setting}`, own("lenient"));
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
  const low = parseAmount(draft.rewardLow), high = parseAmount(draft.rewardHigh);
  put("rewards.range", low === null && high === null ? null : [low, high], "reward-low");
  inputs.set("rewards.range[0]", "reward-low").set("rewards.range[1]", "reward-high");
  put("rewards.wait_seconds", parseSeconds(draft.wait, draft.unit), "wait");
  put("rewards.default", parseAmount(draft.missing), "missing");
  const share = parseAmount(draft.share);
  put("control.share", share === 0 ? null : share, "share");
  put("control.kind", share && draft.control !== "uniform" ? draft.control : null, "control");
  put("propensity_floor", parseAmount(draft.floor), "floor");
  put("regimes", draft.regimes === "auto" ? null : Number(draft.regimes), "regimes");
  put("stage_length", parseAmount(draft.stage), "stage");
  put("clock.period_seconds", parseSeconds(draft.clock, draft.clockUnit), "clock");
  put("regime_labels", draft.labels.trim() ? splitList(draft.labels) : null, "labels");
  put("alerts.rounds", parseAmount(draft.alertRounds), "alert-rounds");
  put("alerts.webhook", draft.webhook.trim() || null, "webhook");
  put("retention_days", parseAmount(draft.retention), "retention");
  inputs.set("clock", "clock");
  return { config, inputs };
}

// The id of the input for a field of the API: its own or its nearest parent's; null if there is none.
export function findInput(field, inputs) {
  for (let part = field; part; part = part.replace(/(\[\d+\]|\.[^.[]*|^[^.[]+)$/, "")) {
    if (inputs.has(part)) return inputs.get(part);
  }
  return null;
}

// "'A b' is not a slug. Allowed: a-z, 0-9 …"
export function formatMessage({ message, allowed }) {
  const text = `${message.charAt(0).toUpperCase()}${message.slice(1)}`;
  if (allowed === null || allowed === undefined || allowed === "") return `${text}.`;
  return `${text}. Allowed: ${Array.isArray(allowed) ? allowed.join(", ") || "nothing" : allowed}.`;
}

const formatFields = (value, format) => Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${format(item)}`);

function formatOnOneLine(value) {
  if (Array.isArray(value)) return `[${value.map(formatOnOneLine).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${formatFields(value, formatOnOneLine).join(", ")}}`;
}

// Readable JSON: short parts stay on one line.
export function formatJson(value, indent = "") {
  const flat = formatOnOneLine(value);
  if (value === null || typeof value !== "object" || (indent && flat.length + indent.length <= 46)) return flat;
  const inner = `${indent}  `;
  const parts = Array.isArray(value)
    ? value.map((item) => inner + formatJson(item, inner))
    : formatFields(value, (item) => formatJson(item, inner)).map((field) => inner + field);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${parts.join(",\n")}\n${indent}${close}`;
}

// The request that creates the campaign, as a shell command.
export function formatCommand(config, url, keys) {
  const key = keys ? ' \\\n  -H "Authorization: Bearer $KEY"' : "";
  return `curl ${url}${key} \\\n  -d '${formatJson(config).replaceAll("'", "'\\''")}'`;
}
