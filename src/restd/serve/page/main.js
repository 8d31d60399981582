/** The page: header, query, settings, and one view at a time. */

import { App } from "./app.js";
import { catalogueView } from "./catalogue_view.js";
import { compareView } from "./compare_view.js";
import { h, number, put } from "./dom.js";
import { itemDialog } from "./item_dialog.js";
import { mapView } from "./map_view.js";
import { queryBar } from "./query_bar.js";
import { reportView } from "./report_view.js";
import { searchView } from "./search_view.js";
import { settingsBar } from "./settings.js";
import { restoreTheme, themeButton } from "./theme.js";
import { whyView } from "./why_view.js";

const MAKERS = {
  search: searchView,
  why: whyView,
  compare: compareView,
  catalogue: catalogueView,
  map: mapView,
  report: reportView,
};
/** Views that search, and so have the query and the settings above them. */
const SEARCHING = ["search", "why", "compare", "map"];
const RETRY_SECONDS = 2;

const top = /** @type {HTMLElement} */ (document.getElementById("top"));
const content = /** @type {HTMLElement} */ (document.getElementById("content"));
const app = new App();

restoreTheme();
start();

async function start() {
  try {
    await app.load();
  } catch (error) {
    const problem = /** @type {import("./api.js").Problem} */ (error);
    if (problem.status === undefined) throw error;
    put(top, h("p", { class: "brand" }, "ResTD"), h("span", { class: "spring" }), themeButton());
    put(content, app.problem(problem, start));
    if (problem.status === 503) window.setTimeout(start, 1000 * (problem.retryAfter ?? RETRY_SECONDS));
    return;
  }
  build();
}

function build() {
  const names = {
    search: app.task === "search" ? "Search" : "Recommend",
    compare: "Compare",
    catalogue: "Catalogue",
    map: "Map",
    report: "Report",
  };
  const tabs = h("nav", { class: "tabs", "aria-label": "Views" });
  const summary = h("p", { class: "served" });
  put(
    top,
    h(
      "div",
      { class: "top-inner" },
      h("p", { class: "brand" }, app.link({ view: "search", item: "" }, {}, "ResTD")),
      tabs,
      h("span", { class: "spring" }),
      summary,
      themeButton(),
    ),
  );

  const query = queryBar(app);
  const settings = settingsBar(app);
  const dialog = itemDialog(app);
  const asking = h("div", { class: "asking" }, query.root, settings.root);
  const place = h("div", { class: "view" });
  /** @type {Record<string, { root: HTMLElement, update: () => void }>} */
  const views = {};
  put(content, h("h1", { class: "visually-hidden" }, "ResTD explorer"), asking, place, dialog.root);

  let current = "";
  app.changed = () => {
    const { state } = app;
    const tab = state.view === "why" ? "search" : state.view;
    put(
      tabs,
      Object.entries(names).map(([view, name]) =>
        app.link({ view, item: "", show: "" }, { "aria-current": view === tab ? "page" : null }, name),
      ),
    );
    summary.textContent = `${app.model.name} · ${number(app.model.items)} items`;
    document.title = [state.q, tab === "search" ? "" : names[/** @type {"map"} */ (tab)], "ResTD"]
      .filter(Boolean)
      .join(" · ");
    asking.hidden = !SEARCHING.includes(state.view);
    settings.root.hidden = state.view === "map";
    views[state.view] ??= MAKERS[/** @type {"map"} */ (state.view)](app);
    if (current !== state.view) {
      const before = current;
      current = state.view;
      put(place, views[state.view].root);
      if (before) moved(before);
    }
    query.update();
    settings.update();
    views[state.view].update();
    dialog.update();
  };

  /** After a change of view the focus is where reading goes on. @param {string} before */
  function moved(before) {
    scrollTo(0, 0);
    const active = document.activeElement;
    if (active && active !== document.body && document.contains(active) && content.contains(active)) return;
    if (before === "why" && app.state.view === "search") {
      const links = /** @type {HTMLElement[]} */ ([...place.querySelectorAll(".hit-title")]);
      links[0]?.focus({ preventScroll: true });
    }
  }

  addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const isTyping = target.matches("input, select, textarea");
    if (event.key === "/" && !isTyping && !asking.hidden) {
      event.preventDefault();
      query.focus();
    } else if (event.key === "ArrowDown" && target.id === "query") {
      event.preventDefault();
      /** @type {HTMLElement | null} */ (place.querySelector(".hit-title"))?.focus();
    } else if (event.key === "Escape" && !isTyping && app.state.view === "why" && !app.state.show) {
      app.go({ view: "search", item: "" });
    }
  });
  app.changed();
  if (app.state.view === "search" && !app.state.q && !app.state.history.length && matchMedia("(pointer: fine)").matches)
    query.focus();
}
