/** Filters: what the columns of the catalogue offer, with counts. */

import { Latest, ask } from "./api.js";
import { counted, h, number, put, svg } from "./dom.js";

/** @typedef {import("./app.js").App} App */

const FEW = 6;
const STEP = " > ";
const CONDITION = /^(.*?)(<=|>=|!=|=|<|>|~)(.*)$/;

/** @param {string} condition @returns {{ column: string, operator: string, value: string }} */
function parsed(condition) {
  const [, column, operator, value] = CONDITION.exec(condition) ?? ["", condition, "", ""];
  return { column: column.trim(), operator, value: value.trim() };
}

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void }}
 */
export function facetPanel(app) {
  const latest = new Latest();
  /** @type {Set<string>} */
  const opened = new Set();
  const toggle = h(
    "button",
    {
      type: "button",
      class: "facets-toggle",
      "aria-expanded": "false",
      "aria-controls": "facets-body",
      on: { click: open },
    },
    "Filters",
  );
  const chosen = h("ul", { class: "conditions", "aria-label": "Filters that are set" });
  const body = h("div", { class: "facets-body", id: "facets-body" });
  const root = h("aside", { class: "facets", "aria-label": "Filters" }, toggle, chosen, body);
  let shown = "";

  function open() {
    const isOpen = root.classList.toggle("open");
    toggle.setAttribute("aria-expanded", String(isOpen));
  }

  function update() {
    const { where, model } = app.state;
    toggle.textContent = where.length ? `Filters (${where.length})` : "Filters";
    drawConditions();
    const key = JSON.stringify([where, model, app.model.snapshot]);
    if (key === shown) return;
    shown = key;
    latest.run(load, draw, (problem) => {
      shown = "";
      put(body, app.problem(problem, update));
    });
  }

  /** A column with a chosen value still lists the others: it is counted without its own filter. */
  async function load(/** @type {AbortSignal} */ signal) {
    const { where, model } = app.state;
    const get = (/** @type {string[]} */ conditions) =>
      ask("/v1/facets", { query: { where: conditions, model }, signal });
    const columns = [
      ...new Set(
        where
          .map(parsed)
          .filter((one) => one.operator === "=")
          .map((one) => one.column),
      ),
    ];
    const [all, ...others] = await Promise.all([
      get(where),
      ...columns.map((column) => get(where.filter((condition) => parsed(condition).column !== column))),
    ]);
    return all.facets.map((/** @type {any} */ facet) => {
      const place = columns.indexOf(facet.column);
      const own =
        place < 0 || facet.kind === "path"
          ? null
          : others[place].facets.find((/** @type {any} */ one) => one.column === facet.column);
      return own ?? facet;
    });
  }

  function drawConditions() {
    put(
      chosen,
      app.state.where.map((condition) => {
        const remove = () => app.go({ where: app.state.where.filter((other) => other !== condition) });
        return h(
          "li",
          {},
          h(
            "button",
            { type: "button", "aria-label": `Remove the filter ${condition}`, on: { click: remove } },
            condition,
            h("span", { "aria-hidden": "true" }, " ×"),
          ),
        );
      }),
    );
    chosen.hidden = !app.state.where.length;
  }

  /** @param {any[]} facets */
  function draw(facets) {
    const focused = document.activeElement?.id;
    put(
      body,
      facets.map((facet) => (facet.kind === "number" ? numberFacet(facet) : valueFacet(facet))),
      !facets.length && h("p", { class: "muted small" }, "The catalogue has no column to filter by."),
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  /** @param {any} facet */
  function valueFacet(facet) {
    const most = Math.max(...facet.values.map((/** @type {any} */ one) => one.count), 1);
    const isOpen = opened.has(facet.column);
    const all = facet.kind === "path" ? unfolded(facet.values, chosenPath(facet.column)) : facet.values;
    const few = all.slice(0, FEW);
    const chosen = all
      .slice(FEW)
      .filter((/** @type {any} */ one) => app.state.where.includes(`${facet.column}=${one.value}`));
    const values = isOpen ? all : [...chosen, ...few];
    const more = () => {
      if (!opened.delete(facet.column)) opened.add(facet.column);
      const fresh = valueFacet(facet);
      fieldset.replaceWith(fresh);
      /** @type {HTMLElement | null} */ (fresh.querySelector(".more"))?.focus();
    };
    const rest = facet.more ? ` and ${number(facet.more)} rarer ones` : "";
    const fieldset = h(
      "fieldset",
      { class: "facet" },
      h("legend", {}, facet.column),
      values.map((/** @type {any} */ one) => valueButton(facet, one, most)),
      all.length > FEW &&
        h(
          "button",
          { type: "button", class: "more quiet", "aria-expanded": String(isOpen), on: { click: more } },
          isOpen ? "Show fewer" : `Show ${all.length - FEW} more`,
        ),
      isOpen && rest && h("p", { class: "small muted" }, `The commonest${rest}.`),
    );
    return fieldset;
  }

  /** @param {string} column */
  const chosenPath = (column) =>
    app.state.where.map(parsed).find((one) => one.column === column && one.operator === "=")?.value ?? "";

  /** @param {any} facet @param {{ value: string, count: number }} one @param {number} most */
  function valueButton(facet, one, most) {
    const condition = `${facet.column}=${one.value}`;
    const isOn = app.state.where.includes(condition);
    const depth = facet.kind === "path" ? one.value.split(STEP).length - 1 : 0;
    const label = depth ? one.value.split(STEP).slice(-1)[0] : one.value;
    const change = () => {
      const others = app.state.where.filter(
        (other) => parsed(other).column !== facet.column || parsed(other).operator !== "=",
      );
      app.go({ where: isOn ? others : [...others, condition] });
    };
    return h(
      "button",
      {
        type: "button",
        id: `facet-${facet.column}-${one.value}`,
        class: "value",
        title: one.value,
        "aria-pressed": String(isOn),
        vars: { "--width": `${(100 * one.count) / most}%`, "--depth": depth },
        on: { click: change },
      },
      h("span", { class: "value-name" }, label),
      h("span", { class: "count" }, number(one.count)),
    );
  }

  /** @param {any} facet */
  function numberFacet(facet) {
    const own = app.state.where.map(parsed).filter((one) => one.column === facet.column);
    const bound = (/** @type {string} */ operator, /** @type {string} */ label, /** @type {number} */ usual) => {
      const input = h("input", {
        type: "number",
        step: "any",
        id: `facet-${facet.column}-${label}`,
        placeholder: number(usual, Number.isInteger(usual) ? 0 : 2),
        value: own.find((one) => one.operator === operator)?.value ?? "",
        "aria-label": `${facet.column}: ${label}`,
        on: {
          change: () => {
            const others = app.state.where.filter(
              (other) => parsed(other).column !== facet.column || parsed(other).operator !== operator,
            );
            app.go({ where: input.value === "" ? others : [...others, `${facet.column}${operator}${input.value}`] });
          },
        },
      });
      return input;
    };
    return h(
      "fieldset",
      { class: "facet" },
      h("legend", {}, facet.column),
      densities(facet.quantiles),
      h(
        "div",
        { class: "range" },
        bound(">=", "at least", facet.min),
        h("span", { "aria-hidden": "true" }, "to"),
        bound("<=", "at most", facet.max),
      ),
      facet.missing > 0 &&
        h("p", { class: "small muted" }, `${counted(facet.missing, "item has", "items have")} none.`),
    );
  }

  return { root, update };
}

/**
 * Category paths as a tree that is open where one is chosen: the first names, and what is below the chosen path.
 * @param {{ value: string, count: number }[]} values
 * @param {string} chosen
 */
function unfolded(values, chosen) {
  const roots = values.filter((one) => !one.value.includes(STEP));
  const open = chosen || (roots.length === 1 ? roots[0].value : "");
  /** @type {(parent: string) => { value: string, count: number }[]} */
  const below = (parent) => {
    const start = parent && parent + STEP;
    const children = values.filter(
      (one) => one.value.startsWith(start) && !one.value.slice(start.length).includes(STEP),
    );
    return children.flatMap((one) => [one, ...(isOpenAt(one.value) ? below(one.value) : [])]);
  };
  const isOpenAt = (/** @type {string} */ path) => open === path || open.startsWith(path + STEP);
  return below("");
}

/**
 * Where the values lie: ten bars of equal area between the quantiles.
 * @param {number[]} quantiles
 */
function densities(quantiles) {
  const [least, most] = [quantiles[0], quantiles[quantiles.length - 1]];
  const span = most - least;
  if (!(span > 0)) return null;
  const widths = quantiles.slice(1).map((edge, place) => Math.max(edge - quantiles[place], span / 500));
  const tallest = 1 / Math.min(...widths);
  const bars = widths.map((width, place) => {
    const height = Math.max(1, 28 * Math.sqrt(1 / width / tallest));
    return svg("rect", {
      x: (100 * (quantiles[place] - least)) / span,
      y: 28 - height,
      width: Math.max((100 * width) / span - 0.4, 0.3),
      height,
    });
  });
  return svg(
    "svg",
    { viewBox: "0 0 100 28", class: "densities", preserveAspectRatio: "none", "aria-hidden": "true" },
    bars,
  );
}
