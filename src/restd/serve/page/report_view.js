/** What is known of the index and of the run: quality, evaluations with their protocol cards, the fit. */

import { Latest, ask } from "./api.js";
import { h, number, percent, put, svg } from "./dom.js";
import { partName } from "./parts.js";

/** @typedef {import("./app.js").App} App */

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void }}
 */
export function reportView(app) {
  const latest = new Latest();
  const body = h("div", {});
  const root = h("article", { class: "report-view", "aria-label": "Report" }, h("h2", {}, "Report"), body);
  let shown = "";

  function update() {
    const { model } = app.state;
    if (shown === model) return;
    shown = model;
    put(body, h("div", { class: "waiting tall" }, h("i"), h("i"), h("i")));
    latest.run(
      (signal) => ask("/v1/quality", { query: { model }, signal }),
      draw,
      (problem) => {
        shown = "";
        put(body, app.problem(problem, update));
      },
    );
  }

  /** @param {any} answer */
  function draw(answer) {
    put(
      body,
      served(),
      quality(answer),
      answer.evaluations.length > 0 ? evaluations(answer.evaluations) : noEvaluations(),
      answer.fit && fit(answer.fit),
      answer.summary && summary(answer.summary),
    );
  }

  function served() {
    const { model } = app;
    return section("What is served", [
      figures([
        ["Items", number(model.items)],
        ["Task", model.task],
        ["Semantic IDs", sizesText(model.layout.sizes)],
        ["Horizon heads", model.heads ? "yes" : "no"],
        [
          "Loaded",
          new Date(model.loaded).toLocaleString("en", {
            day: "numeric",
            month: "short",
            hour: "2-digit",
            minute: "2-digit",
            hour12: false,
          }),
        ],
      ]),
      h(
        "p",
        { class: "small muted" },
        "Snapshot ",
        h("code", {}, model.snapshot.slice(0, 16)),
        ", model ",
        h("code", {}, model.model_hash.slice(0, 16)),
        `, restd ${app.info.version}`,
      ),
    ]);
  }

  return { root, update };
}

/** Codes per level. @param {number[]} sizes */
function sizesText(sizes) {
  const isEven = sizes.every((size) => size === sizes[0]);
  return isEven ? `${sizes.length} × ${sizes[0]} codes` : `${sizes.join(", ")} codes`;
}

/** @param {any} answer */
function quality(answer) {
  const { quality: measured, quality_source: source } = answer;
  const { levels = [], warnings = [], kept } = measured;
  const names = [
    "Level",
    "Codes used",
    "Perplexity",
    "Evenness",
    "Largest code",
    "Prefixes",
    "Items per prefix",
    "Error left",
  ];
  return section("Quality of the index", [
    figures([
      ["Unique Semantic IDs", percent(measured.unique)],
      ["Collided before", percent(measured.colliding_before)],
      ["Largest group", number(measured.largest_group_after ?? measured.largest_group_before)],
      ["Error after all codes", percent(measured.error_stored ?? measured.error_raw)],
    ]),
    warnings.length > 0 &&
      h(
        "ul",
        { class: "warnings" },
        warnings.map((/** @type {string} */ text) => h("li", {}, text)),
      ),
    table(
      "Quality, level by level",
      names,
      levels.map((/** @type {any} */ level) => [
        String(level.level),
        `${number(level.used)} of ${number(level.codes)}`,
        number(level.perplexity, 1),
        number(1 - level.gini, 2),
        percent(level.largest_share),
        number(level.prefixes),
        number(level.items_per_prefix, 2),
        errorBar(level.error),
      ]),
    ),
    kept && h("h4", {}, "How well each step still ranks judged queries, in per cent"),
    kept &&
      table(
        "What each step keeps",
        ["", ...Object.keys(Object.values(kept)[0] ?? {})],
        Object.entries(kept).map(([name, values]) => [
          name,
          ...Object.values(values).map((value) => number(Number(value), 2)),
        ]),
      ),
    h(
      "p",
      { class: "small muted" },
      source === "measured" ? "Measured by the service just now." : `From ${source}, written when the index was built.`,
    ),
  ]);
}

/** @param {number} error */
function errorBar(error) {
  const bar = svg(
    "svg",
    { viewBox: "0 0 60 8", class: "error-bar", "aria-hidden": "true" },
    svg("rect", { width: 60, height: 8, class: "bed" }),
    svg("rect", { width: 60 * Math.min(1, Math.max(0, error)), height: 8 }),
  );
  return h("span", { class: "with-bar" }, bar, percent(error));
}

/** @param {any[]} all */
function evaluations(all) {
  const measures = [...new Set(all.flatMap((one) => Object.keys(one.summary.item ?? one.summary.sid ?? {})))];
  const best = Object.fromEntries(
    measures.map((measure) => [
      measure,
      Math.max(...all.map((one) => (one.summary.item ?? one.summary.sid)[measure] ?? -1)),
    ]),
  );
  const rows = all.map((one) => [
    `${one.name}${one.same_snapshot ? "" : " *"}`,
    one.card.split ?? "",
    number(one.card.queries?.judged ?? one.card.users?.judged ?? null),
    ...measures.map((measure) => {
      const value = (one.summary.item ?? one.summary.sid)[measure];
      return value === best[measure] && all.length > 1 ? h("strong", {}, number(value, 2)) : number(value, 2);
    }),
  ]);
  return section("Evaluations", [
    table("Evaluations, by item, in per cent", ["Ranker", "Split", "Queries", ...measures], rows),
    h(
      "p",
      { class: "small muted" },
      "By item, in per cent; the best of each column is bold.",
      all.some((one) => !one.same_snapshot) && " * Made with another snapshot: the figures hold for other items.",
    ),
    h("h4", {}, "Protocol cards"),
    all.map((one) =>
      h(
        "details",
        { class: "card" },
        h("summary", {}, one.name, h("span", { class: "muted small" }, ` ${one.folder}`)),
        groups(one.summary.groups),
        tree(one.card),
      ),
    ),
  ]);
}

/** @param {any} all averages of groups of queries */
function groups(all) {
  if (!all || !Object.keys(all).length) return null;
  const measures = Object.keys(Object.values(all)[0]).filter((name) => name !== "queries");
  return table(
    "Groups of queries",
    ["Queries whose positives training saw", "Queries", ...measures],
    Object.entries(all).map(([name, values]) => [
      name,
      number(values.queries),
      ...measures.map((measure) => number(values[measure], 2)),
    ]),
  );
}

const noEvaluations = () =>
  section("Evaluations", [
    h(
      "p",
      { class: "muted" },
      "There is none beside this model. Make one with ",
      h("code", {}, "restd evaluate --model RUN --out RUN/result"),
      ".",
    ),
  ]);

/** @param {any} report */
function fit(report) {
  const { parts = {}, ...others } = report;
  return section("Fit of the hybrid search", [
    Object.keys(parts).length > 0 &&
      table(
        "Each part alone",
        ["Part alone", report.measure ?? "measure"],
        Object.entries(parts).map(([name, value]) => [partName(name), number(Number(value), 2)]),
      ),
    tree({ ...others, dropped: (report.dropped ?? []).map(partName) }),
  ]);
}

/** @param {any} report */
const summary = (report) => section("Summary of the quickstart", [tree(report)]);

/** @param {string} title @param {any[]} children */
const section = (title, children) => h("section", { class: "panel" }, h("h3", {}, title), children);

/** @param {[string, string][]} entries */
const figures = (entries) =>
  h(
    "dl",
    { class: "figures" },
    entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );

/**
 * @param {string} label
 * @param {string[]} names
 * @param {any[][]} rows the first cell heads the row
 */
function table(label, names, rows) {
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      { class: "numbers" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          names.map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(([first, ...cells]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, first),
            cells.map((cell) => h("td", {}, cell)),
          ),
        ),
      ),
    ),
  );
}

/** Values of any shape as lists of names. @param {any} value @returns {any} */
function tree(value) {
  if (Array.isArray(value))
    return value.length
      ? value.map((one) => (typeof one === "object" ? JSON.stringify(one) : String(one))).join(", ")
      : "none";
  if (value === null || typeof value !== "object")
    return typeof value === "number" ? number(value, Number.isInteger(value) ? 0 : 2) : String(value ?? "–");
  return h(
    "dl",
    { class: "fields" },
    Object.entries(value).map(([name, own]) =>
      h("div", {}, h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, tree(own))),
    ),
  );
}
