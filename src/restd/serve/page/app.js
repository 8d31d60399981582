/** What all views share: the state and its changes, the served models, announcements, problems. */

import { Problem, ask } from "./api.js";
import { h } from "./dom.js";
import { openKeyDialog } from "./key_dialog.js";
import { addressOf, readState } from "./state.js";

/** @typedef {import("./state.js").State} State */

export class App {
  /** @type {any} */
  info = null;
  /** @type {State} */
  state = readState(location.search);
  /** @type {() => void} */
  changed = () => {};

  constructor() {
    addEventListener("popstate", () => {
      this.state = readState(location.search);
      this.changed();
    });
  }

  /** The model that answers. */
  get model() {
    return this.info.models[this.state.model] ?? this.info.models.main;
  }

  /** @returns {"search" | "recommend"} */
  get task() {
    return this.info.task;
  }

  /** How the model searches with the present settings. */
  get mode() {
    return this.state.heads ? "generative" : this.state.mode || this.model.default_mode;
  }

  async load() {
    this.info = await ask("/v1/info");
    if (!this.info.models[this.state.model]) this.state.model = "main";
  }

  /**
   * Show something else.
   * @param {Partial<State>} changes
   * @param {{ replace?: boolean }} [options] `replace`: without a step for the browser's back button
   */
  go(changes, { replace = false } = {}) {
    this.state = { ...this.state, ...changes };
    const address = addressOf(this.state);
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    this.changed();
  }

  /**
   * A link to another state; other clicks than a plain one are the browser's.
   * @param {Partial<State>} changes
   * @param {Record<string, any>} [attributes]
   * @param {...any} children
   * @returns {HTMLAnchorElement}
   */
  link(changes, attributes = {}, ...children) {
    const click = (/** @type {MouseEvent} */ event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
      event.preventDefault();
      this.go(changes);
    };
    const href = addressOf({ ...this.state, ...changes });
    return h("a", { ...attributes, href, on: { ...attributes.on, click } }, ...children);
  }

  /** Say something to screen readers. @param {string} text */
  announce(text) {
    const status = document.getElementById("status");
    if (status && status.textContent !== text) status.textContent = text;
  }

  /**
   * A problem as a box with what can be done about it.
   * @param {Problem} problem
   * @param {() => void} again
   * @returns {HTMLElement}
   */
  problem(problem, again) {
    const wait = problem.retryAfter ? ` Try again in ${problem.retryAfter} s.` : "";
    const isKey = problem.status === 401;
    this.announce(`${problem.title}. ${problem.message}`);
    return h(
      "div",
      { class: "problem" },
      h("p", {}, h("strong", {}, `${problem.title}. `), problem.message, wait),
      isKey
        ? h("button", { type: "button", on: { click: () => openKeyDialog(problem.message, again) } }, "Enter a key")
        : h("button", { type: "button", on: { click: again } }, "Try again"),
    );
  }
}
