// Where the steps of a plan stand: layers by the longest way from the roots, ordered by barycentre.
// All in units: a layer has the number `layer`, a place across the layers is `at`, one step being 1 wide.

const BEND = 0.3; // how wide an edge is where it passes a layer
const YIELDING = 0.005; // how much a passing edge weighs beside a step
const MOST_BENDS = 4_000; // past it long edges go straight
const SWEEPS = 8;

// nodes: keys in the plan's order; edges: [from, to]. Gives { layers, width, places: key -> { layer, at },
// routes: [{ from, to, bends: [{ layer, at }] }] }.
export function layout(keys, edges) {
  const layerOf = layersOf(keys, edges);
  const layers = [];
  const put = (item) => (layers[item.layer] ??= []).push(item);
  const items = new Map();
  for (const key of keys) {
    const item = { layer: layerOf.get(key), size: 1, up: [], down: [], at: 0 };
    items.set(key, item);
    put(item);
  }
  const span = ([from, to]) => layerOf.get(to) - layerOf.get(from);
  const bending = edges.reduce((sum, edge) => sum + span(edge) - 1, 0) <= MOST_BENDS;
  const routes = edges.map(([from, to]) => {
    const bends = [];
    let last = items.get(from);
    for (let layer = last.layer + 1; bending && layer < layerOf.get(to); layer += 1) {
      const bend = { layer, size: BEND, up: [], down: [], at: 0 };
      join(last, bend);
      put(bend);
      bends.push(bend);
      last = bend;
    }
    join(last, items.get(to));
    return { from, to, bends };
  });
  order(layers);
  place(layers);
  for (const { bends } of routes) straighten(bends, layers);
  const width = fromZero(layers.flat());
  return { layers: layers.length, width, places: items, routes };
}

function layersOf(keys, edges) {
  const reads = new Map(keys.map((key) => [key, []]));
  for (const [from, to] of edges) reads.get(to).push(from);
  const found = new Map();
  for (const key of keys) found.set(key, Math.max(-1, ...reads.get(key).map((read) => found.get(read) ?? -1)) + 1);
  return found; // a step reads earlier ones only
}

function join(from, to) {
  from.down.push(to);
  to.up.push(from);
}

// Sort each layer by the mean place of its neighbours, down and up again, and keep the order with the fewest crossings.
function order(layers) {
  const number = (layer) => layer.forEach((item, place) => { item.place = place; });
  layers.forEach(number);
  let best = null, fewest = Infinity;
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : layers.toReversed()) {
      for (const item of layer) item.wish = mean(down ? item.up : item.down, (other) => other.place) ?? item.place;
      layer.sort((one, other) => one.wish - other.wish || one.place - other.place);
      number(layer);
    }
    const found = crossings(layers);
    if (found >= fewest) continue;
    fewest = found;
    best = layers.map((layer) => [...layer]);
    if (!found) break;
  }
  best?.forEach((layer, at) => { layers[at] = layer; number(layer); });
}

// How often edges between neighbouring layers cross: inversions, counted by a tree of sums.
function crossings(layers) {
  let total = 0;
  for (const layer of layers) {
    const ends = layer.flatMap((item) => item.down.map((other) => other.place).sort((one, other) => one - other));
    const tree = new Array(Math.max(0, ...ends) + 2).fill(0);
    ends.forEach((end, seen) => {
      let before = 0;
      for (let at = end + 1; at > 0; at -= at & -at) before += tree[at];
      total += seen - before;
      for (let at = end + 1; at < tree.length; at += at & -at) tree[at] += 1;
    });
  }
  return total;
}

// Give every item a place as near to its neighbours as its layer's order allows.
function place(layers) {
  for (const layer of layers) spread(layer, () => 0);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const last = sweep >= SWEEPS - 2, down = sweep % 2 === 0;
    for (const layer of down ? layers : layers.toReversed()) {
      spread(layer, (item) => drawn(item, last ? [...item.up, ...item.down] : down ? item.up : item.down));
    }
  }
}

// One line for a long edge where all its bends can stand on it.
function straighten(bends, layers) {
  if (bends.length < 2) return;
  let low = -Infinity, high = Infinity;
  for (const bend of bends) {
    const layer = layers[bend.layer], before = layer[bend.place - 1], behind = layer[bend.place + 1];
    if (before) low = Math.max(low, before.at + (before.size + bend.size) / 2);
    if (behind) high = Math.min(high, behind.at - (behind.size + bend.size) / 2);
  }
  if (low > high) return;
  const at = Math.max(low, Math.min(high, mean(bends, (bend) => bend.at)));
  for (const bend of bends) bend.at = at;
}

// Move all so that it begins at 0; how wide it is.
function fromZero(all) {
  const first = all.reduce((least, item) => Math.min(least, item.at - item.size / 2), Infinity);
  for (const item of all) item.at -= first;
  return all.reduce((most, item) => Math.max(most, item.at + item.size / 2), 1);
}

// Where its neighbours draw it: steps by their nearest, a long edge to be straight.
function drawn(item, others) {
  let sum = 0, weights = 0;
  for (const other of others) {
    const weight = item.size === 1 ? (other.size === 1 ? 1 : 0.01) : other.size === 1 ? 0.3 : 6;
    sum += weight * other.at;
    weights += weight;
  }
  return weights ? sum / weights : item.at;
}

// The least squares answer to "as near to each wish as can be, in order, none overlapping".
function spread(layer, wish) {
  const blocks = [];
  let offset = 0;
  layer.forEach((item, number) => {
    if (number) offset += (layer[number - 1].size + item.size) / 2;
    item.offset = offset;
    const weight = item.size === 1 ? 1 : YIELDING;
    blocks.push({ sum: weight * (wish(item) - offset), weight, count: 1 });
    while (blocks.length > 1 && blocks.at(-2).sum / blocks.at(-2).weight > blocks.at(-1).sum / blocks.at(-1).weight) {
      const last = blocks.pop(), merged = blocks.at(-1);
      for (const name of ["sum", "weight", "count"]) merged[name] += last[name];
    }
  });
  let number = 0;
  for (const { sum, weight, count } of blocks) {
    for (let each = 0; each < count; each += 1, number += 1) layer[number].at = sum / weight + layer[number].offset;
  }
}

function mean(items, value) {
  return items.length ? items.reduce((sum, item) => sum + value(item), 0) / items.length : null;
}
