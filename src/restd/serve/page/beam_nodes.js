/** Which prefixes of a beam are drawn, and in what order: pure functions. */

/**
 * @typedef {object} BeamNode
 * @property {number} id
 * @property {number | null} parent
 * @property {number[]} prefix
 * @property {number} code
 * @property {number} score
 * @property {boolean} kept
 * @property {number} rank
 * @property {boolean} on_path
 * @property {number} items
 * @property {string} example
 */

/**
 * @typedef {object} BeamColumn
 * @property {number} level
 * @property {number} candidates
 * @property {number} survivors
 * @property {number} edge
 * @property {BeamNode[]} nodes in the order they are drawn
 * @property {number} keptHidden
 * @property {number} prunedHidden
 */

/**
 * Choose a few nodes of every level so that each has its parent, and order them so that no two edges cross.
 *
 * From the last level up: parents of what is drawn below, then the best survivors. The item's path is always there,
 * and a few of the best that were pruned.
 *
 * @param {any[]} levels of the service's tree
 * @param {number} most survivors per level
 * @param {number} pruned per level
 * @returns {BeamColumn[]}
 */
export function chooseColumns(levels, most, pruned) {
  /** @type {Set<number | null>} */
  let needed = new Set();
  /** @type {BeamNode[][]} */
  const chosen = [];
  for (const level of [...levels].reverse()) {
    const able = level.nodes.filter((/** @type {BeamNode} */ node) => node.kept || node.on_path);
    const first = able.filter((/** @type {BeamNode} */ node) => needed.has(node.id) || node.on_path);
    const rest = able.filter((/** @type {BeamNode} */ node) => !first.includes(node));
    const own = [...first, ...rest.slice(0, Math.max(0, most - first.length))];
    needed = new Set(own.map((node) => node.parent));
    chosen.unshift(own);
  }
  /** @type {BeamNode[]} */
  let above = [];
  return levels.map((level, place) => {
    const places = new Map(above.map((node, row) => [node.id, row]));
    const lost = level.nodes
      .filter(
        (/** @type {BeamNode} */ node) =>
          !node.kept && !node.on_path && (place === 0 || places.has(Number(node.parent))),
      )
      .slice(0, pruned);
    const rowOf = (/** @type {BeamNode} */ node) => places.get(Number(node.parent)) ?? 0;
    const nodes = [...chosen[place], ...lost].sort((one, other) => rowOf(one) - rowOf(other) || one.rank - other.rank);
    above = nodes;
    const kept = nodes.filter((node) => node.kept).length;
    return {
      level: level.level,
      candidates: level.candidates,
      survivors: level.survivors,
      edge: level.edge,
      nodes,
      keptHidden: level.survivors - kept,
      prunedHidden: level.candidates - level.survivors - (nodes.length - kept),
    };
  });
}
