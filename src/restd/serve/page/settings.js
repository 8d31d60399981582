/** How the search is done: model, mode, number of results, beam, normalisation, heads. */

import { h, put } from "./dom.js";

/** @typedef {import("./app.js").App} App */

export const MODE_NAMES = { generative: "Generative", hybrid: "Hybrid" };
const NORMS = {
  "": "Whole vocabulary",
  level_codes: "Codes of the level",
  trie_children: "Codes that can follow",
};
const HEADS = {
  "": "Not used",
  rerank: "Rerank",
  fuse: "Fuse",
  "look-ahead": "Look ahead",
  "one-shot": "One shot, no beam",
};

/** Name of a served model. @param {App} app @param {string} name */
export function modelName(app, name) {
  const own = app.info.models[name];
  return own ? own.name : name;
}

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void }}
 */
export function settingsBar(app) {
  const fields = h("div", { class: "settings-fields", id: "settings-fields" });
  const toggle = h(
    "button",
    {
      type: "button",
      class: "settings-toggle",
      "aria-expanded": "false",
      "aria-controls": "settings-fields",
      on: { click: open },
    },
    "Settings",
  );
  const root = h("div", { class: "settings" }, toggle, fields);
  let shown = "";

  function open() {
    const isOpen = root.classList.toggle("open");
    toggle.setAttribute("aria-expanded", String(isOpen));
  }

  function update() {
    const { state, model, info } = app;
    const isComparing = state.view === "compare";
    const key = JSON.stringify([state.k, state.beam, state.mode, state.norm, state.heads, state.model, isComparing]);
    if (key === shown) return;
    shown = key;
    const usual = model.beams[app.mode] ?? "";
    const models = Object.fromEntries(Object.keys(info.models).map((name) => [name, modelName(app, name)]));
    const modes = { "": `Default: ${MODE_NAMES[/** @type {"hybrid"} */ (model.default_mode)]}`, ...MODE_NAMES };
    const active = document.activeElement?.id;
    put(
      fields,
      !isComparing &&
        Object.keys(models).length > 1 &&
        choice("Model", "model", models, state.model, (model) => ({ model, mode: "", heads: "" })),
      !isComparing &&
        model.modes.length > 1 &&
        choice("Mode", "mode", modes, state.heads ? "generative" : state.mode, (mode) => ({ mode, heads: "" })),
      whole("Results", "k", state.k, info.limits.max_k, "10"),
      whole("Beam", "beam", state.beam, info.limits.max_beam, String(usual)),
      choice("Normalised over", "norm", NORMS, state.norm, (norm) => ({ norm })),
      !isComparing &&
        model.heads &&
        choice("Horizon heads", "heads", HEADS, state.heads, (heads) => ({ heads, mode: heads ? "generative" : "" })),
    );
    if (active) document.getElementById(active)?.focus();
  }

  /**
   * @param {string} label
   * @param {string} name
   * @param {Record<string, string>} values
   * @param {string} chosen
   * @param {(value: string) => Partial<import("./state.js").State>} change
   */
  function choice(label, name, values, chosen, change) {
    const options = Object.entries(values).map(([value, text]) =>
      h("option", { value, selected: value === chosen }, text),
    );
    const select = h("select", { id: `set-${name}`, on: { change: () => app.go(change(select.value)) } }, options);
    return h("label", { class: "field" }, h("span", {}, label), select);
  }

  /**
   * @param {string} label
   * @param {"k" | "beam"} name
   * @param {number | null} value
   * @param {number} most
   * @param {string} usual
   */
  function whole(label, name, value, most, usual) {
    const change = () => {
      const entered = Math.round(Number(input.value));
      const next = entered >= 1 ? Math.min(entered, most) : name === "k" ? 10 : null;
      if (next !== app.state[name]) app.go({ [name]: next });
      input.value = next ?? "";
    };
    const input = h("input", {
      type: "number",
      id: `set-${name}`,
      min: 1,
      max: most,
      step: 1,
      value: value ?? "",
      placeholder: usual,
      on: { change },
    });
    return h("label", { class: "field narrow" }, h("span", {}, label), input);
  }

  return { root, update };
}
