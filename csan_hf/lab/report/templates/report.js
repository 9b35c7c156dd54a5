"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const element = id => document.getElementById(id);
const PAGE_SIZE = 20;
const LONG_TEXT = 1000;  // characters
const count = data.sources.length;
let order = Uint32Array.from({ length: count }, (_, row) => row); // sentences found, in the order shown
let page = 0;

const make = (tag, text, attributes = {}) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};
const number = value => value.toLocaleString("en");
// Python's white space, which is not JavaScript's: words are counted there
const words = text => text.split(/[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/).filter(Boolean);
const inOneForm = text => text.normalize().toLocaleLowerCase(); // "ä" may be one character or two

// ---- search and order

let haystacks = null; // made at the first search
const haystack = row => {
  haystacks ??= new Array(count);
  return haystacks[row] ??= inOneForm(
    [data.sources[row], ...data.references[row], ...data.systems.map(s => s.hypotheses[row])].join("\n"));
};

const sorts = [["number", row => row], ["length of the source", row => words(data.sources[row]).length]];
data.metrics.forEach((metric, m) => {
  data.systems.forEach(system => sorts.push([`${metric.label} of ${system.name}`, row => system.scores[m][row]]));
  const baseline = data.systems[data.baseline];
  data.systems.filter(system => system !== baseline).forEach(system => sorts.push([
    `${metric.label}: ${system.name} minus ${baseline.name}`,
    row => system.scores[m][row] - baseline.scores[m][row],
  ]));
});

let waiting;  // the search that starts when typing pauses

function refresh() {
  clearTimeout(waiting);
  const query = inOneForm(element("search").value.trim());
  const onlyDiffering = element("differ")?.checked;
  const found = [];
  for (let row = 0; row < count; row++) {
    if (query && !haystack(row).includes(query)) continue;
    if (onlyDiffering && data.systems.every(s => s.hypotheses[row] === data.systems[0].hypotheses[row])) continue;
    found.push(row);
  }
  const keys = new Float64Array(count);
  const key = sorts[element("sort").value][1];
  for (const row of found) keys[row] = key(row);
  const sign = element("order").value === "up" ? 1 : -1;
  order = Uint32Array.from(found).sort((a, b) => sign * (keys[a] - keys[b]) || a - b);
  page = 0;
  show();
}

// ---- differences between two lists of words: the longest common subsequence

const MOST_CELLS = 2 ** 22; // beyond, a page of sentences would take seconds

function difference(from, to) {
  if (from.length * to.length > MOST_CELLS) return [["del", from], ["ins", to]];
  const width = to.length + 1;
  const lengths = new Uint16Array((from.length + 1) * width);
  for (let i = from.length - 1; i >= 0; i--)
    for (let j = to.length - 1; j >= 0; j--)
      lengths[i * width + j] = from[i] === to[j]
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
  const parts = [];
  const add = (kind, word) => parts.at(-1)?.[0] === kind ? parts.at(-1)[1].push(word) : parts.push([kind, [word]]);
  let i = 0, j = 0;
  while (i < from.length || j < to.length) {
    if (i < from.length && j < to.length && from[i] === to[j]) { add("same", to[j]); i++; j++; }
    else if (j === to.length || (i < from.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) add("del", from[i++]);
    else add("ins", to[j++]);
  }
  return parts;
}

function markedText(text, other) {
  const node = make("span", undefined, { class: "text", dir: "auto" });
  if (other === null || other === text) {
    node.textContent = text;
    return node;
  }
  difference(words(other), words(text)).forEach(([kind, run], place) => {
    if (place) node.append(" ");
    node.append(kind === "same" ? run.join(" ") : make(kind, run.join(" ")));
  });
  return node;
}

// ---- the list

function comparedWith(row, system) {
  const against = element("against").value;
  if (against === "none" || Number(against) === system) return null;
  return against === "reference" ? data.references[row][0] : data.systems[against].hypotheses[row];
}

function named(name, text) {
  const pair = make("div");
  pair.append(name, text);
  return pair;
}

function example(row) {
  const isLong = data.references[row][0].length > LONG_TEXT;  // a page: texts beside each other
  const item = make("li", undefined, { class: isLong ? "example long" : "example" });
  item.append(make("h3", `Sentence ${number(row + 1)}`));
  const list = make("dl");
  list.append(named(make("dt", "source"), make("dd", data.sources[row], { dir: "auto" })));
  for (const reference of data.references[row])
    list.append(named(make("dt", "reference"), make("dd", reference, { dir: "auto" })));
  data.systems.forEach((system, s) => {
    const text = make("dd");
    text.append(markedText(system.hypotheses[row], comparedWith(row, s)), make("br"));
    const values = data.metrics.map((metric, m) => `${metric.label} ${system.scores[m][row].toFixed(metric.decimals)}`);
    text.append(make("span", values.join(" · "), { class: "values" }));
    if (system.alignments[row]) {
      const button = make("button", "Alignment", { type: "button", "aria-haspopup": "dialog" });
      button.append(make("span", ` of sentence ${row + 1} by ${system.name}`, { class: "unseen" }));
      button.addEventListener("click", () => showAlignment(row, system));
      text.append(button);
    }
    const name = make("dt");
    name.append(make("bdi", system.name));
    list.append(named(name, text));
  });
  item.append(list);
  return item;
}

function show() {
  const pages = Math.max(1, Math.ceil(order.length / PAGE_SIZE));
  page = Math.min(Math.max(page, 0), pages - 1);
  element("list").replaceChildren(...Array.from(order.slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE), example));
  element("list").setAttribute("start", page * PAGE_SIZE + 1);
  element("status").textContent = `${number(order.length)} of ${number(count)} sentences, page ${number(page + 1)} of ${number(pages)}`;
  element("page").value = page + 1;
  element("page").max = pages;
  element("pages").textContent = `of ${number(pages)}`;
  element("previous").disabled = page === 0;
  element("next").disabled = page === pages - 1;
}

function turn(to) {
  page = to;
  show();
  element("examples").focus();
  element("browser").scrollIntoView();
}

// ---- the alignment of a sentence

function showAlignment(row, system) {
  const { matrix, links } = system.alignments[row];
  const sources = words(data.sources[row]), targets = words(system.hypotheses[row]);
  const table = make("table", undefined, { class: "matrix" });
  const head = table.createTHead().insertRow();
  head.append(make("th", "target \\ source", { scope: "col" }));
  sources.forEach(word => head.append(make("th", word, { scope: "col", dir: "auto" })));
  const body = table.createTBody();
  matrix.forEach((values, i) => {
    const line = body.insertRow();
    line.append(make("th", targets[i] ?? "", { scope: "row", dir: "auto" }));
    values.forEach((value, j) => {
      const cell = make("td", value ? String(value) : "");
      cell.style.background = `rgba(var(${value < 0 ? "--cold" : "--heat"}), ${(Math.abs(value) / 99 * 0.6).toFixed(2)})`;
      if (links.some(([source, target]) => source === j && target === i)) cell.className = "best";
      line.append(cell);
    });
  });
  element("alignment-title").replaceChildren(`Sentence ${number(row + 1)}: alignment by `, make("bdi", system.name));
  element("alignment-matrix").replaceChildren(table);
  element("alignment-note").textContent = `99 is the largest number of this sentence. Framed: the best source word for each target word, ${links.map(link => link.join("-")).join(" ")}.`;
  element("alignment").showModal();
}

// ---- light and dark

const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
const nameTheme = () => { element("theme").textContent = isDark() ? "Light mode" : "Dark mode"; };
const plots = document.getElementById("plots");
if (plots) plots.open = matchMedia("(min-width: 60rem)").matches;
element("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
dark.addEventListener("change", nameTheme);
nameTheme();

addEventListener("beforeprint", () => element("plots")?.setAttribute("open", ""));

// ---- controls

sorts.forEach(([label], value) => element("sort").append(make("option", label, { value })));
element("against").append(make("option", "the reference", { value: "reference" }));
if (data.systems.length > 1) data.systems.forEach((system, value) => element("against").append(make("option", system.name, { value })));
element("against").append(make("option", "nothing", { value: "none" }));
element("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(refresh, 150); });
for (const id of ["sort", "order", "differ"]) element(id)?.addEventListener("change", refresh);
element("against").addEventListener("change", show);
element("controls").addEventListener("submit", event => { event.preventDefault(); refresh(); });
element("previous").addEventListener("click", () => turn(page - 1));
element("next").addEventListener("click", () => turn(page + 1));
element("page").addEventListener("change", () => turn(Math.trunc(element("page").value) - 1));
refresh();
