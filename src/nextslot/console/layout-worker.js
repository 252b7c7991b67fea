// Where the nodes of a graph go. Nodes without edges are set in rows below, which a layered layout would put in one line.
import { Graph, layout } from "./vendor/dagre.js";

const GAP = 24;

onmessage = ({ data: { nodes, edges, width, height } }) => {
  const linked = new Set(edges.flat());
  const graph = new Graph();
  // A simpler ranking for many: it is the difference between a second and a minute.
  graph.setGraph({
    rankdir: "LR",
    nodesep: 14,
    ranksep: 56,
    marginx: 8,
    marginy: 8,
    ranker: nodes.length > 400 ? "longest-path" : "network-simplex",
  });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of nodes) if (linked.has(id)) graph.setNode(id, { width, height });
  for (const [from, to] of edges) graph.setEdge(from, to);
  if (linked.size) layout(graph);
  const at = {};
  let [right, bottom] = [0, 0];
  for (const id of graph.nodes()) {
    const { x, y } = graph.node(id);
    at[id] = { x, y };
    right = Math.max(right, x + width / 2);
    bottom = Math.max(bottom, y + height / 2);
  }
  const alone = nodes.filter((id) => !linked.has(id));
  const perRow = Math.max(1, Math.round(Math.max(right / (width + GAP), Math.sqrt(alone.length / 3))));
  alone.forEach((id, index) => {
    at[id] = {
      x: 8 + width / 2 + (index % perRow) * (width + GAP),
      y: bottom + GAP + height / 2 + Math.floor(index / perRow) * (height + GAP),
    };
  });
  for (const id of alone) {
    right = Math.max(right, at[id].x + width / 2);
    bottom = Math.max(bottom, at[id].y + height / 2);
  }
  postMessage({
    at,
    edges: graph.edges().map((edge) => [`${edge.v} ${edge.w}`, graph.edge(edge).points]),
    width: right + 8,
    height: bottom + 8,
  });
};
