/** What is shown, as the page's address has it: a link shows another person the same. */

/**
 * @typedef {object} State
 * @property {string} view
 * @property {string} q query
 * @property {string[]} history ids of the items of a user so far, for models that recommend
 * @property {number} k
 * @property {number | null} beam null for what the model's task usually takes
 * @property {string} mode "" for what the model was fitted for
 * @property {string} norm
 * @property {string} heads
 * @property {string} model
 * @property {string[]} where
 * @property {string} item the one that is explained
 * @property {string} show the one whose details are open
 * @property {string} prefix
 * @property {string} left
 * @property {string} right
 */

/** @type {State} */
export const DEFAULTS = {
  view: "search",
  q: "",
  history: [],
  k: 10,
  beam: null,
  mode: "",
  norm: "",
  heads: "",
  model: "main",
  where: [],
  item: "",
  show: "",
  prefix: "",
  left: "",
  right: "",
};
const NUMBERS = ["k", "beam"];
export const VIEWS = ["search", "why", "compare", "catalogue", "map", "report"];

/**
 * Read a state from the part of an address behind the question mark; what cannot be read has its default.
 * @param {string} search
 * @returns {State}
 */
export function readState(search) {
  const parameters = new URLSearchParams(search);
  /** @type {any} */
  const state = structuredClone(DEFAULTS);
  for (const name of Object.keys(DEFAULTS)) {
    if (!parameters.has(name)) continue;
    if (Array.isArray(state[name])) state[name] = parameters.getAll(name).filter(Boolean);
    else if (!NUMBERS.includes(name)) state[name] = parameters.get(name);
    else if (/^[1-9]\d{0,5}$/.test(parameters.get(name) ?? "")) state[name] = Number(parameters.get(name));
  }
  if (!VIEWS.includes(state.view)) state.view = DEFAULTS.view;
  if (!["main", "beside"].includes(state.model)) state.model = DEFAULTS.model;
  return state;
}

/**
 * An address of this page; defaults are left out.
 * @param {State} state
 */
export function addressOf(state) {
  const parameters = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = /** @type {any} */ (state)[name];
    if (Array.isArray(value)) for (const one of value) parameters.append(name, one);
    else if (value !== usual && value !== null && value !== "") parameters.set(name, String(value));
  }
  return parameters.size ? `?${parameters}` : location.pathname;
}

/**
 * The options of a search as a request has them.
 * @param {State} state
 * @param {{ model?: string, mode?: string }} [instead] of what the state says
 */
export function searchOptions(state, { model = state.model, mode = state.mode } = {}) {
  /** @type {Record<string, any>} */
  const options = { k: state.k, model };
  if (state.beam) options.beam = state.beam;
  if (mode) options.mode = mode;
  if (state.norm) options.score_norm = state.norm;
  if (state.where.length) options.where = state.where;
  if (state.heads && mode !== "hybrid") Object.assign(options, { heads: { mode: state.heads }, mode: "generative" });
  return options;
}

/**
 * What is searched for, as a request has it; null where nothing is.
 * @param {State} state
 * @param {string} task
 * @returns {Record<string, any> | null}
 */
export function queryOf(state, task) {
  if (task === "recommend") return state.history.length ? { history: state.history } : null;
  return state.q.trim() ? { query: state.q.trim() } : null;
}
