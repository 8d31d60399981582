/** What is searched for: a text, or the items of a user for a model that recommends. */

import { Latest, ask } from "./api.js";
import { debounced, h, put, svg } from "./dom.js";
import { itemPicker } from "./item_picker.js";

/** @typedef {import("./app.js").App} App */

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void, focus: () => void }}
 */
export const queryBar = (app) => (app.task === "recommend" ? historyBar(app) : textBar(app));

/** Milliseconds without a key before a search as you type. */
const PAUSE = 180;

/** @param {App} app */
function textBar(app) {
  const type = debounced(() => app.go({ q: input.value, ...backToResults() }, { replace: true }), PAUSE);
  const input = h("input", {
    id: "query",
    type: "search",
    placeholder: "Search the catalogue",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: app.info.limits.max_query_chars,
    on: { input: type },
  });
  const backToResults = () => (app.state.view === "why" ? { view: "search", item: "" } : {});
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    type.cancel();
    if (input.value !== app.state.q || app.state.view === "why") app.go({ q: input.value, ...backToResults() });
  };
  const glass = svg(
    "svg",
    { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" },
    svg("circle", { cx: 11, cy: 11, r: 6.5 }),
    svg("path", { d: "m16 16 4.5 4.5" }),
  );
  const root = h(
    "form",
    { role: "search", class: "query", on: { submit } },
    h("label", { for: "query", class: "visually-hidden" }, "Search the catalogue"),
    glass,
    input,
    h("kbd", { "aria-hidden": "true", title: "Press / to search" }, "/"),
  );
  // the browser's back button also changes what somebody has just typed
  addEventListener("popstate", () => (input.value = app.state.q));
  function update() {
    if (document.activeElement !== input || input.value.trim() === "") input.value = app.state.q;
  }
  return { root, update, focus: () => (input.focus(), input.select()) };
}

/** @param {App} app */
function historyBar(app) {
  /** @type {Map<string, string>} */
  const titles = new Map();
  const latest = new Latest();
  const list = h("ol", { class: "history", "aria-label": "History, the latest item last" });
  const picker = itemPicker(app, {
    label: "History: what a user has liked so far, the latest last",
    placeholder: "Find an item to add",
    pick: (item) => {
      titles.set(item.item, item.title);
      change([...app.state.history, item.item]);
    },
  });
  const root = h("div", { class: "history-bar" }, picker, list);

  /** @param {string[]} history */
  const change = (history) => app.go({ history, ...(app.state.view === "why" ? { view: "search", item: "" } : {}) });

  function draw() {
    const own = app.state.history;
    const without = (/** @type {number} */ place) => own.filter((_, other) => other !== place);
    put(
      list,
      own.map((item, place) => {
        const title = titles.get(item) || item;
        const earlier = () => change([...without(place).slice(0, place - 1), item, ...without(place).slice(place - 1)]);
        const button = (/** @type {string} */ sign, /** @type {string} */ label, /** @type {() => void} */ click) =>
          h(
            "button",
            { type: "button", class: "quiet", "aria-label": `${label}: ${title}`, title: label, on: { click } },
            sign,
          );
        return h(
          "li",
          {},
          h("span", {}, title),
          place > 0 && button("←", "Move earlier", earlier),
          button("×", "Remove", () => change(without(place))),
        );
      }),
      own.length > 1 &&
        h(
          "li",
          { class: "bare" },
          h("button", { type: "button", class: "quiet", on: { click: () => change([]) } }, "Clear"),
        ),
    );
  }

  function update() {
    draw();
    const unknown = app.state.history.filter((item) => !titles.has(item));
    if (!unknown.length) return;
    latest.run(
      (signal) => Promise.all(unknown.map((item) => ask(`/v1/items/${encodeURIComponent(item)}`, { signal }))),
      (items) => {
        for (const item of items) titles.set(item.item, item.title);
        draw();
      },
      () => {}, // the search itself says what is wrong with the history
    );
  }
  return { root, update, focus: () => /** @type {HTMLElement} */ (picker.querySelector("input")).focus() };
}
