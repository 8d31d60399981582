/** Why an item is in the results, or where it was lost and what would have kept it. */

import { Latest, ask } from "./api.js";
import { beamTree } from "./beam_tree.js";
import { h, hiddenText, number, put, sidChips } from "./dom.js";
import { itemPicker } from "./item_picker.js";
import { partsBar, partsTable } from "./parts.js";
import { queryOf, searchOptions } from "./state.js";

/** @typedef {import("./app.js").App} App */

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void }}
 */
export function whyView(app) {
  const explaining = new Latest();
  const searching = new Latest();
  const strip = h("nav", { class: "strip", "aria-label": "Results of this search" });
  const body = h("div", { class: "why-body" });
  const picker = itemPicker(app, {
    label: "Why not another item?",
    placeholder: "Name any item",
    pick: (item) => app.go({ item: item.item }),
  });
  const back = h("div", { class: "why-back" });
  const root = h(
    "article",
    { class: "why-view", "aria-label": "Why" },
    h("div", { class: "why-top" }, back, strip, picker),
    body,
  );
  let shown = "";
  let listed = "";

  function update() {
    const query = queryOf(app.state, app.task);
    put(back, app.link({ view: "search", item: "" }, { class: "back" }, "← Results"));
    if (!query) {
      put(
        body,
        h(
          "div",
          { class: "empty" },
          h("h2", {}, "There is nothing to explain yet"),
          h("p", {}, "Search first, then open a result."),
        ),
      );
      put(strip);
      return;
    }
    updateStrip(query);
    if (!app.state.item) {
      put(
        body,
        h("div", { class: "empty" }, h("h2", {}, "Which item?"), h("p", {}, "Choose a result, or name any item.")),
      );
      return;
    }
    const request = { ...query, ...searchOptions(app.state), item: app.state.item };
    const key = JSON.stringify(request);
    if (key === shown) return;
    shown = key;
    body.setAttribute("aria-busy", "true");
    if (!body.querySelector("h2"))
      put(body, h("div", { class: "waiting tall" }, h("i"), h("i"), h("i")), hiddenText("Following the beam"));
    explaining.run(
      (signal) => ask("/v1/explain", { body: request, signal }),
      draw,
      (problem) => {
        shown = "";
        body.removeAttribute("aria-busy");
        put(body, app.problem(problem, update));
      },
    );
  }

  /** @param {Record<string, any>} query */
  function updateStrip(query) {
    const request = { ...query, ...searchOptions(app.state) };
    const key = JSON.stringify(request);
    if (key === listed) {
      markCurrent();
      return;
    }
    listed = key;
    searching.run(
      (signal) => ask(`/v1/${app.task}`, { body: request, signal }),
      (answer) => {
        const hits = answer.results[0].hits;
        put(
          strip,
          hits
            .slice(0, 20)
            .map((/** @type {any} */ hit, /** @type {number} */ place) =>
              app.link(
                { item: hit.item },
                { title: hit.title, data: { item: hit.item } },
                String(place + 1),
                hiddenText(`: ${hit.title}`),
              ),
            ),
        );
        markCurrent();
      },
      () => {
        listed = "";
        put(strip);
      },
    );
  }

  function markCurrent() {
    for (const link of /** @type {NodeListOf<HTMLElement>} */ (strip.querySelectorAll("a"))) {
      if (link.dataset.item === app.state.item) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  /** @param {any} answer */
  function draw(answer) {
    const { explanation, tree, parts } = answer;
    const title = h("h2", { tabindex: "-1" }, explanation.title || explanation.item);
    const sentence = gist(answer.sentence, explanation.item);
    body.removeAttribute("aria-busy");
    put(
      body,
      h(
        "header",
        { class: "why-head" },
        h(
          "p",
          { class: "eyebrow" },
          explanation.rank !== null && explanation.rank <= explanation.k ? "Why" : "Why not",
        ),
        title,
        h(
          "p",
          { class: "ids" },
          sidChips(explanation.sid),
          h("code", {}, explanation.item),
          h(
            "button",
            { type: "button", class: "quiet", on: { click: () => app.go({ show: explanation.item }) } },
            "Details",
          ),
        ),
        h("p", { class: `verdict ${explanation.rank === null ? "lost" : "kept"}` }, sentence),
        aside(explanation),
      ),
      figures(explanation),
      remedy(explanation),
      parts && Object.keys(parts).length > 0 && scoreSection(parts),
      treeSection(explanation, tree),
    );
    app.announce(sentence);
    if (document.activeElement === document.body) title.focus({ preventScroll: true });
  }

  /** @param {any} explanation */
  function aside(explanation) {
    if (explanation.rank === null || explanation.lost_at === null) return null;
    return h(
      "p",
      { class: "muted" },
      `The beam alone lost it at level ${explanation.lost_at}; other parts of the hybrid search proposed it.`,
    );
  }

  /** @param {any} explanation */
  function remedy(explanation) {
    const { beam_needed: needed, beam } = explanation;
    if (needed === null || needed <= beam) return null;
    if (needed > app.info.limits.max_beam) {
      return h(
        "p",
        { class: "remedy" },
        `A beam of ${number(needed)} would keep it; this service allows ${number(app.info.limits.max_beam)}.`,
      );
    }
    return h(
      "p",
      { class: "remedy" },
      `A beam of ${number(needed)} keeps it. `,
      app.link({ beam: needed }, { class: "button" }, `Search with a beam of ${number(needed)}`),
    );
  }

  /** @param {any} explanation @param {any} tree */
  function treeSection(explanation, tree) {
    return h(
      "section",
      { "aria-labelledby": "beam-title" },
      h("h3", { id: "beam-title" }, "The beam, level by level"),
      h(
        "p",
        { class: "muted measure" },
        "Each column is one code of the Semantic ID. A box is a prefix with its log-probability; ",
        "the number on an edge is what the code adds. ",
        "Grey prefixes were pruned. ",
        h("span", { class: "key-path" }, "The item's path"),
        " is highlighted.",
      ),
      beamTree(app, tree, explanation.sid),
      levelTable(explanation.levels),
    );
  }

  return { root, update };
}

/**
 * The service's sentence without the id that the title above stands for.
 * @param {string} sentence
 * @param {string} item
 */
function gist(sentence, item) {
  return sentence.startsWith(item) ? `It${sentence.slice(item.length)}` : sentence.replace(item, "this item");
}

/** @param {any} explanation */
function figures(explanation) {
  const lost = explanation.levels.find((/** @type {any} */ level) => !level.kept);
  /** @type {[string, string, string][]} */
  const entries = [
    ["Rank", explanation.rank === null ? "none" : number(explanation.rank), "in this search"],
    ["Exact rank", number(explanation.exact_rank), "if nothing were pruned"],
    ["Beam", number(explanation.beam), "prefixes kept per level"],
    ["Beam needed", neededText(explanation), "to reach the item"],
  ];
  if (lost)
    entries.push([
      "Lost at",
      `level ${lost.level + 1}`,
      lost.gap === null ? "" : `${number(-lost.gap, 2)} below the last survivor`,
    ]);
  return h(
    "dl",
    { class: "figures" },
    entries.map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("small", {}, note)))),
  );
}

/** The narrowest beam is only looked for where the present one loses the item. @param {any} explanation */
function neededText({ beam_needed: needed, beam }) {
  return needed !== null && needed <= beam ? `≤ ${number(needed)}` : number(needed);
}

/** @param {Record<string, import("./parts.js").Part>} parts */
function scoreSection(parts) {
  const total = Object.values(parts).reduce((sum, part) => sum + part.share, 0);
  return h(
    "section",
    { "aria-labelledby": "parts-title" },
    h("h3", { id: "parts-title" }, "What its score is made of"),
    h("div", { class: "parts-large" }, partsBar(parts, total)),
    partsTable(parts),
  );
}

/** The same path without a drawing. @param {any[]} levels */
function levelTable(levels) {
  const names = ["Level", "Code", "Rank", "Candidates", "Kept", "Score", "Last survivor", "Gap", ""];
  return h(
    "details",
    { class: "levels" },
    h("summary", {}, "The item's path as a table"),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "The item's path as a table" },
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
          levels.map((one) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, String(one.level + 1)),
              [
                String(one.code),
                number(one.rank),
                number(one.candidates),
                number(one.survivors),
                number(one.score, 3),
                number(one.edge, 3),
                number(one.gap, 3),
              ].map((text) => h("td", {}, text)),
              h("td", {}, one.rank === null ? "lost before" : one.kept ? "kept" : "lost here"),
            ),
          ),
        ),
      ),
    ),
  );
}
