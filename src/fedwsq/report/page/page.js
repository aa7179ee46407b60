"use strict";
/* What the page does once it is there: draw charts one at a time, and answer to its buttons.
   All text is in the page already; nothing here writes HTML. */

const figures = new Map();  // chart id -> Bokeh figure
const zoomed = new Map();  // chart id -> ranges that the reader chose, while the page is renewed
const hidden = new Set(recall("hidden", []));
let drawing = 0;  // of the main part that is shown; an older one stops drawing

function recall(key, otherwise) {
  // A page opened from a file may have no storage at all.
  try {
    return JSON.parse(sessionStorage.getItem(`fedwsq.${key}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function remember(key, value) {
  try {
    sessionStorage.setItem(`fedwsq.${key}`, JSON.stringify(value));
  } catch { /* then it is forgotten */ }
}

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const pause = () => new Promise((done) => setTimeout(done, 0));
// A landscape has contours too, which belong to no group.
const lines = (figure) => figure.renderers.filter(({ glyph }) => glyph?.tags.length);

/* Theme: the system's, unless the reader chose; paper is always light. */

const coarse = matchMedia("(pointer: coarse)");
const dark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(printing = false) {
  const chosen = recall("theme", "auto");
  const wanted = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
  document.documentElement.dataset.theme = printing ? "light" : wanted;
  for (const button of all("[data-theme-choice]")) {
    button.setAttribute("aria-pressed", button.dataset.themeChoice === chosen);
  }
  figures.forEach((figure) => figure && paint(figure));
}

function paint(figure) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  for (const axis of [...figure.below, ...figure.left]) {
    axis.setv({
      axis_line_color: colour("--rule"),
      major_tick_line_color: colour("--rule"),
      minor_tick_line_color: colour("--rule"),
      major_label_text_color: colour("--quiet"),
      axis_label_text_color: colour("--quiet"),
    });
  }
  for (const grid of figure.center) {
    grid.grid_line_color = colour("--grid");
  }
  for (const bar of figure.right) {
    bar.setv({ major_label_text_color: colour("--quiet"), title_text_color: colour("--quiet") });
  }
  for (const { glyph } of lines(figure)) {
    const tone = colour(`--line-${glyph.tags[1]}`);
    glyph.setv({ [glyph.type === "Line" ? "line_color" : "fill_color"]: { value: tone } });
  }
}

/* The library and the charts: each part in a task of its own, so that the page never stands still. */

async function readLibrary() {
  for (const part of all("script.library")) {
    await pause();
    const script = document.createElement("script");
    script.textContent = part.textContent;
    part.replaceWith(script);
  }
}

async function drawAll() {
  const mine = ++drawing;
  for (const plot of all(".plot")) {
    await pause();
    if (mine !== drawing) {
      return;
    }
    if (!plot.closest("[hidden]")) {
      await draw(plot);
    }
  }
  document.documentElement.dataset.drawn = "yes";
}

async function draw(plot) {
  const id = plot.dataset.chart;
  if (figures.has(id)) {
    return;
  }
  figures.set(id, null);
  const item = JSON.parse(document.getElementById(`data-${id}`).textContent);
  await pause();
  const views = await Bokeh.embed.embed_item(item, plot.id);
  const figure = views.roots[0].model;
  if (coarse.matches) {
    // A finger that drags means to scroll the page.
    figure.toolbar.tools.filter((tool) => tool.type === "BoxZoomTool").forEach((tool) => { tool.active = false; });
  }
  figures.set(id, figure);
  paint(figure);
  showGroups(figure);
  smooth(figure);
  keepZoom(id, figure);
}

function showGroups(figure) {
  for (const renderer of lines(figure)) {
    renderer.visible = !hidden.has(renderer.glyph.tags[0]);
  }
}

/* Lines name their columns; smoothed ones lie beside them in the same source. */

function smooth(figure) {
  const wanted = recall("smooth", "no") === "yes";
  for (const { glyph } of lines(figure)) {
    if (!glyph.tags.includes("accuracy")) {
      continue;
    }
    const prefix = wanted ? "smoothed" : "accuracy";
    glyph.setv(glyph.type === "Line"
      ? { y: { field: prefix } }
      : { y1: { field: `${prefix}_low` }, y2: { field: `${prefix}_high` } });
  }
}

/* Zoom: by dragging, which Bokeh does, and by keys. */

function zoom(range, ends) {
  range.setv(ends);
  range.have_updated_interactively = true;  // so that Bokeh leaves it there
}

function noteZooms() {
  for (const [id, figure] of figures) {
    const ranges = figure ? [figure.x_range, figure.y_range] : [];
    if (ranges.some((range) => range.have_updated_interactively)) {
      zoomed.set(id, ranges.map(({ start, end }) => ({ start, end })));
    }
  }
}

function keepZoom(id, figure) {
  const [across, up] = zoomed.get(id) ?? [];
  if (across) {
    zoom(figure.x_range, across);
    zoom(figure.y_range, up);
    zoomed.delete(id);
  }
}

function reset(id) {
  Bokeh.index.get_by_id(figures.get(id).id)?.reset();
}

function move(id, shift, factor) {
  const figure = figures.get(id);
  const range = figure.x_range;
  // On a logarithmic axis equal steps are equal factors.
  const log = figure.x_scale.type === "LogScale";
  const [start, end] = log ? [Math.log(range.start), Math.log(range.end)] : [range.start, range.end];
  const middle = (start + end) / 2 + shift * (end - start);
  const half = (end - start) / 2 * factor;
  const ends = [middle - half, middle + half].map((x) => (log ? Math.exp(x) : x));
  zoom(range, { start: ends[0], end: ends[1] });
}

const KEYS = {
  "+": [0, 1 / 1.5], "=": [0, 1 / 1.5], "-": [0, 1.5],
  ArrowLeft: [-0.15, 1], ArrowRight: [0.15, 1],
};

document.addEventListener("keydown", (event) => {
  const id = event.target.dataset?.keys;
  if (!figures.get(id) || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.key === "0") {
    reset(id);
  } else if (event.key in KEYS) {
    move(id, ...KEYS[event.key]);
  } else {
    return;
  }
  event.preventDefault();
});

/* The pointer: the nearest point of the lines that are shown, in words. */

const readout = document.getElementById("readout");
const NEAR = 60;  // pixels

function nearest(figure, left, top) {
  const { frame } = Bokeh.index.get_by_id(figure.id);
  let found = null;
  for (const { glyph, data_source, visible } of lines(figure)) {
    if (glyph.type !== "Line" || !visible) {
      continue;
    }
    const column = glyph.y.field;
    const { x, [column]: y } = data_source.data;
    for (let point = 0; point < x.length; point++) {
      const at = [frame.x_scale.compute(x[point]), frame.y_scale.compute(y[point])];
      const far = Math.hypot(at[0] - left, at[1] - top);
      if (far < (found?.far ?? NEAR)) {
        found = { far, at, point, column, tags: glyph.tags, data: data_source.data };
      }
    }
  }
  return found;
}

function say(number, percent) {
  return percent ? `${(100 * number).toFixed(1)} %` : Number(number.toPrecision(4)).toLocaleString("en");
}

function read(frame, figure, event) {
  const box = frame.getBoundingClientRect();
  const found = nearest(figure, event.clientX - box.left, event.clientY - box.top);
  const dot = frame.querySelector(".dot");
  readout.hidden = dot.hidden = !found;
  if (!found) {
    return;
  }
  const { x, y, percent } = frame.dataset;
  const { at, data, point, column } = found;
  const value = (name) => say(data[name][point], percent === "yes");
  const rows = [[column === "smoothed" ? `${y}, smoothed` : y, value(column)]];
  if (data.seeds[point] > 1) {
    rows.push([`${data.seeds[point]} seeds`, `${value(`${column}_low`)} to ${value(`${column}_high`)}`]);
  }
  rows.push([x, say(data.x[point])]);
  if (x !== "round") {
    rows.push(["round", say(data.round[point])]);
  }
  const name = document.querySelector(`[data-group="${found.tags[0]}"]`).textContent;
  readout.replaceChildren(line("b", name), ...rows.map(([key, text]) => {
    const row = line("div", "");
    row.append(line("span", key), line("span", text));
    return row;
  }));
  dot.style.translate = `${at[0]}px ${at[1]}px`;
  dot.style.background = `var(--line-${found.tags[1]})`;
  place(box.left + at[0], box.top + at[1]);
}

function line(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function place(left, top) {
  // Beside the point, on the side where there is room.
  const { width, height } = readout.getBoundingClientRect();
  const right = left + 14 + width < innerWidth;
  readout.style.left = `${Math.max(8, right ? left + 14 : left - 14 - width)}px`;
  readout.style.top = `${Math.max(8, Math.min(top - height / 2, innerHeight - height - 8))}px`;
}

for (const kind of ["pointermove", "pointerdown", "pointerout"]) {
  document.addEventListener(kind, (event) => {
    const frame = event.target.closest(".plot-frame");
    const figure = frame && figures.get(frame.dataset.keys);
    if (!figure || kind === "pointerout") {
      readout.hidden = true;
      all(".dot").forEach((dot) => { dot.hidden = true; });
    } else {
      read(frame, figure, event);
    }
  });
}

/* Buttons. */

function press(buttons, chosen) {
  for (const button of buttons) {
    button.setAttribute("aria-pressed", button === chosen);
  }
}

const ACTIONS = {
  themeChoice(button) {
    remember("theme", button.dataset.themeChoice);
    setTheme();
  },
  view(button) {
    remember("view", button.dataset.view);
    showView();
  },
  smooth(button) {
    remember("smooth", button.dataset.smooth);
    showSmooth();
    figures.forEach((figure) => figure && smooth(figure));
  },
  group(button) {
    const group = Number(button.dataset.group);
    hidden.has(group) ? hidden.delete(group) : hidden.add(group);
    remember("hidden", [...hidden]);
    showLegends();
    figures.forEach((figure) => figure && showGroups(figure));
  },
  table(button) {
    const table = document.getElementById(button.getAttribute("aria-controls"));
    table.hidden = !table.hidden;
    button.setAttribute("aria-expanded", !table.hidden);
  },
  zoom(button) {
    const id = button.dataset.of;
    if (!figures.get(id)) {
      return;
    }
    const keys = { in: "+", out: "-" };
    const key = keys[button.dataset.zoom];
    key ? move(id, ...KEYS[key]) : reset(id);
  },
  async copy(button) {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // Browsers let a page write there only if it came from a file or over https.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  },
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  const action = button && Object.keys(ACTIONS).find((name) => name in button.dataset);
  if (action) {
    ACTIONS[action](button);
  }
});

function showView() {
  const buttons = all("[data-view]");
  const chosen = buttons.find((each) => each.dataset.view === recall("view", "")) ?? buttons[0];
  press(buttons, chosen);
  for (const button of buttons) {
    document.getElementById(`view-${button.dataset.view}`).hidden = button !== chosen;
  }
  if (chosen && document.documentElement.dataset.drawn) {
    draw(document.getElementById(`plot-${chosen.dataset.view}`));
  }
}

function showSmooth() {
  const buttons = all("[data-smooth]");
  press(buttons, buttons.find((each) => each.dataset.smooth === recall("smooth", "no")));
}

function showLegends() {
  for (const button of all("[data-group]")) {
    button.setAttribute("aria-pressed", !hidden.has(Number(button.dataset.group)));
  }
}

/* Paper. */

addEventListener("beforeprint", () => {
  setTheme(true);
  all("details").forEach((each) => { each.open = true; });
});
addEventListener("afterprint", () => setTheme());
dark.addEventListener("change", () => setTheme());

/* News: a page that is served asks whether its runs have gone on, and takes over what is new. */

const live = document.getElementById("live");

async function follow() {
  let shown = null;
  for (;;) {
    const began = performance.now();
    try {
      const state = await (await fetch("state")).text();
      live.classList.remove("lost");
      live.textContent = "following";
      if (shown !== null && state !== shown) {
        await renew();
      }
      shown = state;
    } catch {
      live.classList.add("lost");
      live.textContent = "server is gone";
    }
    // Making a page takes time that the runs may need.
    const took = performance.now() - began;
    await new Promise((done) => setTimeout(done, Math.max(1000, 5 * took)));
  }
}

async function renew() {
  const text = await (await fetch("")).text();
  const page = new DOMParser().parseFromString(text, "text/html");
  const open = all("[data-table][aria-expanded='true']").map((button) => button.dataset.table);
  const [left, top] = [scrollX, scrollY];
  noteZooms();
  for (const figure of figures.values()) {
    figure?.document?.clear();
  }
  figures.clear();
  document.querySelector("main").replaceWith(page.querySelector("main"));
  document.title = page.title;
  all("[data-table]").filter((button) => open.includes(button.dataset.table)).forEach(ACTIONS.table);
  scrollTo(left, top);
  show();
}

function show() {
  showView();
  showSmooth();
  showLegends();
  return drawAll();
}

setTheme();
readLibrary().then(() => {
  show();
  // Not before: news are drawn with the library too.
  if (live) {
    follow();
  }
});
