/** Search, or what comes next for a user: filters beside a ranked list. */

import { Latest, ask } from "./api.js";
import { counted, h, moveFocus, number, put } from "./dom.js";
import { facetPanel } from "./facets.js";
import { partsLegend } from "./parts.js";
import { listedColumns, resultList, skeleton } from "./results.js";
import { MODE_NAMES } from "./settings.js";
import { queryOf, searchOptions } from "./state.js";

/** @typedef {import("./app.js").App} App */

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void }}
 */
export function searchView(app) {
  const latest = new Latest();
  const facets = facetPanel(app);
  const summary = h("div", { class: "summary" });
  const list = h("div", { class: "list", on: { keydown: move } });
  const root = h(
    "div",
    { class: "search-view" },
    facets.root,
    h("section", { class: "results", "aria-label": "Results" }, summary, list),
  );
  let shown = "";

  /** @param {KeyboardEvent} event */
  function move(event) {
    const links = /** @type {HTMLElement[]} */ ([...list.querySelectorAll(".hit-title")]);
    if (!moveFocus(event, links) && event.key === "ArrowUp" && document.activeElement === links[0]) {
      event.preventDefault();
      document.getElementById("query")?.focus();
    }
  }

  function update() {
    facets.update();
    const query = queryOf(app.state, app.task);
    if (!query) {
      latest.stop();
      shown = "";
      put(summary);
      put(list, welcome(app));
      return;
    }
    const body = {
      ...query,
      ...searchOptions(app.state),
      fields: listedColumns(app.model),
      contributions: app.mode === "hybrid",
    };
    const key = JSON.stringify(body);
    if (key === shown) return;
    shown = key;
    list.setAttribute("aria-busy", "true");
    if (!list.querySelector(".hit-title")) put(list, skeleton(6));
    latest.run(
      (signal) => ask(`/v1/${app.task}`, { body, signal }),
      draw,
      (problem) => {
        shown = "";
        list.removeAttribute("aria-busy");
        put(summary);
        put(list, app.problem(problem, update));
      },
    );
  }

  /** @param {any} answer */
  function draw(answer) {
    const { hits, partial } = answer.results[0];
    list.removeAttribute("aria-busy");
    const parts = [...new Set(hits.flatMap((/** @type {any} */ hit) => Object.keys(hit.parts ?? {})))];
    const time = answer.timing.model === null ? "" : `, the model ${number(answer.timing.model)} ms`;
    put(
      summary,
      h(
        "p",
        {},
        h("strong", {}, counted(hits.length, "result")),
        h(
          "span",
          { class: "muted" },
          ` in ${number(answer.timing.all)} ms${time} · ${MODE_NAMES[/** @type {"hybrid"} */ (answer.mode)]}`,
        ),
      ),
      parts.length > 0 && partsLegend(parts),
    );
    put(
      list,
      resultList(app, hits),
      !hits.length && nothing(app),
      partial &&
        hits.length > 0 &&
        h(
          "p",
          { class: "muted small after" },
          "Fewer than you wanted: no other item meets the filters, or time was up.",
        ),
    );
    app.announce(`${counted(hits.length, "result")}. The first is ${hits[0]?.title ?? "none"}.`);
  }

  return { root, update };
}

/** @param {App} app */
function nothing(app) {
  const clear = h("button", { type: "button", on: { click: () => app.go({ where: [] }) } }, "Remove all filters");
  return h("div", { class: "empty" }, h("h2", {}, "Nothing meets the filters"), app.state.where.length > 0 && clear);
}

/** @param {App} app */
function welcome(app) {
  const isSearch = app.task === "search";
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, isSearch ? "What are you looking for?" : "Whose next item?"),
    h(
      "p",
      {},
      isSearch
        ? "Results come as you type. Open one to see why it was found, or name any item to see where it was lost."
        : "Add items that a user has liked. The model says what comes next, and why.",
    ),
    h(
      "p",
      {},
      app.link({ view: "catalogue" }, {}, "Walk through the catalogue"),
      " or ",
      app.link({ view: "map" }, {}, "look at its map"),
      ".",
    ),
    h(
      "p",
      { class: "keys small muted" },
      h("kbd", {}, "/"),
      " search ",
      h("kbd", {}, "↑"),
      h("kbd", {}, "↓"),
      " move ",
      h("kbd", {}, "Enter"),
      " why ",
      h("kbd", {}, "Esc"),
      " back",
    ),
  );
}
