"use strict";

// Draws the page from its two blocks of JSON: `traces`, the member `tilec` of the schedule trace of each kernel, and
// `report`, what else is known of them as they were compiled (page_data.py makes it), or null.
//
// All that is shown is made as plain values first, and these become nodes of the document in one place, `mounted`. Text
// stays text there: nothing that a person wrote can become an element.

const element = (tag, attributes, ...parts) => ({ tag, attributes, parts: parts.flat(Infinity) });
const paragraph = (...parts) => element("p", {}, ...parts);
const hint = (...parts) => element("p", { class: "dim" }, ...parts);
const heading = (text) => element("h3", {}, text);

// ---- numbers, tables, drawings --------------------------------------------------------------------------------------

const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
const fixed = (number, digits) => {
  const [whole, ...rest] = number.toFixed(digits).split(".");
  return [count(whole), ...rest].join(".");
};
/** As `whole_percent` of tilec/support/display.py rounds it. */
const percent = (share) => `${Math.floor(100 * share + 0.5)}%`;

const scrolling = (label, inside) => element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, inside);

/** Columns of whole numbers stand to the right; null is a dash. Rows for which `marked` is true stand out. */
const table = (head, rows, marked = []) => {
  const kinds = head.map((_, at) => rows.every((row) => row[at] === null || Number.isInteger(row[at])) ? { class: "n" } : {});
  const shown = (cell) => cell === null ? "–" : typeof cell === "number" ? count(cell) : cell;
  return scrolling("Table", element("table", {},
    element("tr", {}, head.map((name, at) => element("th", { scope: "col", ...kinds[at] }, name.replaceAll("_", " ")))),
    rows.map((row, index) => element("tr", marked[index] ? { class: "binds" } : {},
      row.map((cell, at) => element("td", kinds[at], shown(cell)))))));
};
/** A row for each record, with what it says of these facts. */
const tableOf = (facts, records) => table(facts, records.map((record) => facts.map((fact) => record[fact])));

/** Where there is no room for a drawing, it scrolls. */
const drawing = (name, width, height, parts, kind = {}) => scrolling(`Drawing: ${name}`,
  element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name, ...kind }, parts));
const label = (x, y, text, more = {}) => element("text", { x, y, ...more }, text);
const line = (x1, y1, x2, y2) => element("line", { class: "mark", x1, y1, x2, y2 });
const bar = (kind, x, y, width, height, told, more = {}) =>
  element("rect", { class: kind, x, y, width, height, ...more }, told === null ? [] : element("title", {}, told));

const COLOURS = 6;  // The stages of a schedule take turns at them.
const colour = (number) => `s${number % COLOURS}`;

// ---- a pipelined loop ------------------------------------------------------------------------------------------------

const LABELS = 200, CHART = 860, ROW = 20, BAR = 14, LINE = 14, NAME = 28;
const UNLIMITED = 2 ** 31 - 1;  // As `tilec.sched.problem` has it.

const across = (cycle, total) => LABELS + Math.floor(cycle * CHART / Math.max(total, 1));
const short = (name) => name.length <= NAME ? name : `${name.slice(0, NAME - 1)}…`;
const beside = (row, text) => label(LABELS - 8, row * ROW + 13, text, { "text-anchor": "end" });
const reach = (ops) => Math.max(...ops.map((op) => op.start + op.latency));

const reservations = (loop) => {
  const used = loop.slots.filter((slot) => slot.held);
  const rows = used.map((slot, row) => [
    beside(row, `${slot.name}  ${slot.percent}%`),
    bar("row", LABELS, row * ROW + 2, CHART, BAR, null),
    loop.ops.map((op) => op.rows.filter((held) => held.slot === slot.name).map((held) => held.rows.map(([first, end]) => {
      const x = across(first, loop.ii);
      const told = `${op.name}, stage ${op.stage}, rows ${first} to ${end}, line ${op.line}`;
      // Of several units each use takes its share of the colour: where all are held, it is full.
      const share = slot.width > 1 ? { "fill-opacity": 1 / slot.width } : {};
      return bar(colour(op.stage), x, row * ROW + 2, Math.max(across(end, loop.ii) - x, 1), BAR, told, share);
    }))),
  ]);
  const below = used.length * ROW + 14;
  const ends = [
    label(LABELS, below, "0", { class: "dim" }),
    label(LABELS + CHART, below, String(loop.ii), { class: "dim", "text-anchor": "end" }),
  ];
  return drawing("reservation table", LABELS + CHART, used.length * ROW + 20, [rows, ends]);
};

/** How long the iterations take that are drawn: two more than overlap. */
const drawnCycles = (loop) => (loop.stages + 1) * loop.ii + (loop.ops.length ? reach(loop.ops) : 1);

/** A mark where each interval begins. */
const marks = (loop, height) => {
  const total = drawnCycles(loop);
  return Array.from({ length: Math.ceil(total / loop.ii) }, (_, interval) => across(interval * loop.ii, total))
    .map((x) => line(x, 0, x, height));
};

const span = (kind, start, end, total, y, height, told) => {
  const x = across(start, total);
  return bar(kind, x, y, Math.max(across(end, total) - x, 1), height, told);
};

const iterations = (loop) => {
  const total = drawnCycles(loop), drawn = loop.stages + 2, group = loop.ops.length * LINE + 16;
  const busy = (op) => Math.max(op.issue, 1, ...op.rows.map((held) => held.rows.reduce((sum, [first, end]) => sum + end - first, 0)));
  const rows = Array.from({ length: drawn }, (_, iteration) => [
    label(0, iteration * group + 11, `iteration ${iteration}`, { class: "dim" }),
    loop.ops.map((op, row) => {
      const start = op.start + iteration * loop.ii, y = iteration * group + 14 + row * LINE;
      const told = `${op.name}, iteration ${iteration}, cycles ${start} to ${start + op.latency}, line ${op.line}`;
      return [
        label(LABELS - 8, y + 10, short(op.name), { "text-anchor": "end" }),
        span(`${colour(op.stage)} flight`, start, start + op.latency, total, y, LINE - 2, told),
        span(colour(op.stage), start, start + busy(op), total, y, LINE - 2, told),
      ];
    }),
  ]);
  return drawing("overlapped iterations", LABELS + CHART, drawn * group, [marks(loop, drawn * group), rows]);
};

/** A row for each version: from when an iteration takes it until it has been read. */
const occupancy = (loop) => {
  const total = drawnCycles(loop), parts = [];
  let top = 0;
  for (const ring of loop.rings) {
    const producers = ring.producers.map((op) => loop.ops[op]);
    const taken = producers.length ? Math.min(...producers.map((op) => op.start)) : 0;
    const full = producers.length ? reach(producers) : 0;
    const free = taken + ring.lifetime;
    for (let version = 0; version < ring.depth; version++) parts.push(beside(top + version, `${short(ring.name)} [${version}]`));
    for (let iteration = 0; iteration < Math.ceil(total / loop.ii); iteration++) {
      const version = iteration % Math.max(ring.depth, 1), since = iteration * loop.ii, y = (top + version) * ROW + 2;
      const times = `taken at ${taken + since}, full at ${full + since}, free at ${free + since}`;
      const told = `${ring.name}[${version}], iteration ${iteration}: ${times}`;
      for (const [kind, first, end] of [[`${colour(iteration)} flight`, taken, full], [colour(iteration), full, free]])
        if (first < end && first + since < total)
          parts.push(span(kind, first + since, Math.min(end + since, total), total, y, BAR, told));
    }
    top += ring.depth;
  }
  return drawing("ring occupancy", LABELS + CHART, top * ROW, [marks(loop, top * ROW), parts]);
};

/** What a roofline and list schedulers would have chosen, and what was optimised after the interval. */
const compared = (loop) => {
  const parts = [], roof = loop.roofline;
  if (roof) {
    const share = `⌈${count(roof.memory_cycles)} / ${count(roof.compute_cycles)}⌉ = ${roof.stages}`;
    parts.push(paragraph(`Stages: ${loop.stages}; by the roofline ${share}.`));
  }
  if (loop.heuristics.length)
    parts.push(paragraph(`II by heuristics: ${loop.heuristics.map((of) => `${of.arm} ${of.ii ?? "–"}`).join(", ")}.`));
  const told = loop.objectives.map((of) => [of.name, of.value, of.proven ? "yes" : "no"]);
  return [parts, heading("After the interval, in this order"), table(["what", "value", "proven"], told)];
};

/** A pool's capacity, and the share of it that is held. */
const capacity = (pool) => pool.capacity >= UNLIMITED ? ["no limit", ""]
  : [count(pool.capacity), pool.capacity ? percent(pool.peak / pool.capacity) : ""];

/** Everything about a loop, below its heading. */
const loopParts = (loop) => {
  const parts = [];
  if (loop.refutation) {
    const why = loop.refutation.families.join(", ") || loop.refutation.why;
    parts.push(paragraph(`II ${loop.refutation.ii} is impossible: ${why}.`));
  }
  if (loop.status === "feasible") parts.push(paragraph(loop.proof));
  const key = Array.from({ length: loop.stages }, (_, stage) => [element("span", { class: `key ${colour(stage)}` }), String(stage)]);
  parts.push(heading("Reservation table"), hint("One interval, folded. Colours are stages:", key), reservations(loop));
  parts.push(heading("Iterations"));
  parts.push(hint("Dark: the statement holds a slot. Pale: its result is on its way. Marks: a new interval."));
  parts.push(iterations(loop));
  const bounds = [...loop.bounds].sort((one, other) => other.ii - one.ii);
  parts.push(heading("Bounds on the interval"));
  parts.push(table(["II ≥", "kind", "because"], bounds.map((bound) => [bound.ii, bound.kind, bound.culprit]),
    bounds.map((bound) => bound.binds)));
  const facts = ["id", "name", "role", "line", "stage", "start", "issue", "latency"];
  parts.push(heading("Statements"), tableOf(facts, loop.order.map((op) => loop.ops[op])));
  if (loop.copies) {
    const roles = loop.copies[0].map((op) => loop.ops[op].role);
    for (let at = 1; at < roles.length; at++)
      parts.push(paragraph(`${roles[at]} runs ${count(loop.lags[at])} cycles behind ${roles[0]}.`));
  }
  if (loop.ii_by_rule !== undefined) {
    const byRule = `at least ${count(loop.ii_by_rule)} with the roles by rule`;
    parts.push(paragraph(`II ${count(loop.ii)} with these roles, ${byRule}.`));
  }
  parts.push(compared(loop));
  if (loop.rings.length) {
    parts.push(heading("Rings"), tableOf(["name", "lifetime", "depth", "max_depth", "bytes", "total_bytes"], loop.rings));
    parts.push(heading("Ring occupancy"));
    parts.push(hint("The versions of each ring. Pale: being filled. Dark: until it has been read. A colour is an iteration."));
    parts.push(occupancy(loop));
  }
  if (loop.pools.length)
    parts.push(heading("Pools"), table(["pool", "reserved", "rings", "values", "peak", "capacity", "", "carried"],
      loop.pools.map((pool) => [pool.name, pool.reserved, pool.rings, pool.values, pool.peak, ...capacity(pool), pool.carried])));
  if (loop.attempts.length)
    parts.push(heading("Intervals tried"), table(["II", "outcome", "how", "why"], loop.attempts.map((tried) =>
      [tried.from === tried.ii ? tried.ii : `${tried.from}…${tried.ii}`, tried.outcome, tried.how, tried.why])));
  return parts;
};

// ---- a kernel --------------------------------------------------------------------------------------------------------

/** What a kernel that divides its work itself says of it, and what leaves through shared memory. */
const besideLoops = (trace) => {
  const parts = [];
  if (trace.pipelines?.length)
    parts.push(heading("Pipelines"), table(["name", "tiles", "stages", "bytes", "total_bytes", "filled by", "taken by"],
      trace.pipelines.map((of) => [of.name, of.tiles.join(", "), of.stages, of.bytes, of.total_bytes,
        of.producers.join(", "), of.consumers.join(", ")])));
  for (const role of trace.roles ?? []) {
    parts.push(heading(`${role.name}, warps ${role.first_warp} to ${role.first_warp + role.warps - 1}`));
    parts.push(table(["line", "statement"], role.statements.map((of) => [of.line, "· ".repeat(of.depth) + of.name])));
  }
  if (trace.stores.length) {
    const facts = ["source", "destination", "chunks", "buffers", "buffer_bytes", "parts"];
    parts.push(heading("Stores through shared memory"), tableOf(facts, trace.stores));
  }
  return parts;
};

const microseconds = (said, cycles, digits) => `${fixed(cycles / said.clock_mhz, digits)} µs`;

const summary = (said) => {
  const parts = [table(["what", "value"], [
    ["predicted", `${microseconds(said, said.predicted, 1)} for ${said.counted_blocks}`],
    ["bound by", said.bound],
    ...(said.gap ? [["gap", said.gap]] : []),
    ["waves", count(said.waves)],
    ["blocks of an SM", `${said.together} (${said.fits.map((fit) => `${count(fit.blocks)} by ${fit.name}`).join(", ")})`],
    ["registers of a thread", count(said.registers)],
    ["spilled", `${count(said.spilled_bytes)} bytes, ${count(said.reloaded_bytes)} reloaded`],
  ])];
  if (said.levels.length) {
    const facts = ["line", "level", "latency", "transfer", "use", "iterations", "stages", "cycles", "bound"];
    const rows = said.levels.map((level) => facts.map((fact) => level[fact]));
    parts.push(heading("Levels, in a full wave"), table([...facts.slice(0, -1), "bound by"], rows));
  }
  return parts;
};

/** What the prediction is of the roofline's rate; a prediction that is the roofline says nothing of a real run. */
const standing = (said) => said.is_a_bound ? "the roofline itself: a run takes longer"
  : `${percent(said.roofline / Math.max(said.predicted, 1))} of the roofline's rate`;

const roofline = (said) => {
  const parts = [table(["what takes at least", "cycles", "time"], [
    ["computing, on all SMs", said.compute, microseconds(said, said.compute, 2)],
    ["DRAM, each tensor once", said.dram, microseconds(said, said.dram, 2)],
    ["roofline", said.roofline, `${microseconds(said, said.roofline, 2)}, by ${said.limit}`],
    ["predicted", said.predicted, `${microseconds(said, said.predicted, 2)}, ${standing(said)}`],
  ])];
  if (said.is_one_wave)
    parts.push(paragraph("How many blocks there are is known at launch only: no traffic is counted, and no roofline drawn."));
  else if (!said.compute || !said.dram)
    parts.push(paragraph(`Nothing to ${said.compute ? "move" : "compute"} that counts: no roofline is drawn.`));
  else {
    parts.push(hint("Left of the ridge memory binds, right of it what computes. Both axes are logarithmic."));
    parts.push(roof(said.compute / said.dram, said.compute / Math.max(said.predicted, 1), said.kernel));
  }
  return parts;
};

const LEFT = 60, ABOVE = 14, WIDE = 560, HIGH = 230;
const DECADES = 2;  // Powers of ten that the chart shows to each side of the ridge, and below the roof.

/** Share of what the machine computes at most, over work for each byte, as multiples of what is just enough. */
const roof = (intensity, share, kernel) => {
  const logarithm = (value, most) => Math.min(Math.max(Math.log10(value), -DECADES), most);  // As far as the chart goes.
  const right = (value) => LEFT + Math.round(WIDE * (logarithm(value, DECADES) + DECADES) / (2 * DECADES));
  const up = (value) => ABOVE + Math.round(HIGH * -logarithm(value, 0) / DECADES);
  const parts = [], bottom = ABOVE + HIGH;
  for (let power = -DECADES; power <= DECADES; power++) {
    const x = right(10 ** power);
    parts.push(line(x, ABOVE, x, bottom), label(x, bottom + 15, String(10 ** power), { class: "dim", "text-anchor": "middle" }));
  }
  for (let power = -DECADES; power <= 0; power++) {
    const y = up(10 ** power);
    parts.push(line(LEFT, y, LEFT + WIDE, y));
    parts.push(label(LEFT - 6, y + 4, percent(10 ** power), { class: "dim", "text-anchor": "end" }));
  }
  const corners = [[10 ** -DECADES, 10 ** -DECADES], [1, 1], [10 ** DECADES, 1]];
  parts.push(element("polyline", { class: "roof", points: corners.map(([x, y]) => `${right(x)},${up(y)}`).join(" ") }));
  const x = right(intensity), y = up(share), isRight = x > LEFT + WIDE / 2;
  const told = `${kernel}: ${percent(share)} of what the machine computes, ${fixed(intensity, 2)} of the ridge's work for a byte`;
  parts.push(element("circle", { class: "point", cx: x, cy: y, r: 5 }, element("title", {}, told)));
  parts.push(label(isRight ? x - 9 : x + 9, y + 4, percent(share), { "text-anchor": isRight ? "end" : "start" }));
  parts.push(label(LEFT + WIDE / 2, bottom + 32, "work for a byte, ridge = 1", { class: "dim", "text-anchor": "middle" }));
  return drawing("roofline", LEFT + WIDE + 20, bottom + 40, parts, { class: "small" });
};

// ---- the code --------------------------------------------------------------------------------------------------------

// All that has the same data-at, a place in the kernel's files, is one thing. The first of a place in the PTX is what
// the number of that line leads to.
const anchor = (at) => `to-${at.replace(":", "-")}`;
const listing = (name, parts) => element("pre", { tabindex: 0, role: "region", "aria-label": name }, element("code", {}, parts));

const runs = (pieces, isTarget) => {
  const seen = new Set();
  return pieces.map(({ at, text }) => {
    if (at === null) return element("span", { class: "line" }, text);
    const first = isTarget && !seen.has(at) ? { id: anchor(at) } : {};
    seen.add(at);
    return element("span", { class: "line", "data-at": at, ...first }, text);
  });
};

/** The kernel at the left, what it became at the right. */
const codeParts = (code) => {
  const linked = new Set([...code.ptx, ...code.sass ?? []].map((run) => run.at));
  const kernel = code.files.map((file, index) => [
    code.files.length > 1 ? element("span", { class: "file" }, file.name) : [],
    file.lines.map((text, above) => {
      const number = String(above + 1), at = `${index + 1}:${number}`;
      return linked.has(at)
        ? element("span", { class: "line", "data-at": at }, element("a", { class: "number", href: `#${anchor(at)}` }, number), `${text}\n`)
        : element("span", { class: "line" }, element("span", { class: "number" }, number), `${text}\n`);
    }),
  ]);
  return [
    paragraph("A line of the kernel lights up with the instructions it became; a click brings them into view."),
    element("div", { class: "code" },
      element("section", {}, element("div", { class: "beside" }, heading("Kernel"), listing("Kernel", kernel))),
      element("section", {}, heading("PTX"), listing("PTX", runs(code.ptx, true)), heading("SASS"),
        hint("Before each instruction the assembler's schedule of it: scoreboards it waits for (B), is read (R) and written (W) by, yield, stall count (S)."),
        code.package === null ? [] : hint(`No operands without a disassembler: pip install ${code.package}, or put nvdisasm on the path.`),
        listing("SASS", runs(code.sass, false)))),
  ];
};

/** What an iteration of each loop takes one warp, by the assembler's own schedule. */
const loopCode = (loops) => {
  const hex = (address) => `0x${address.toString(16).padStart(4, "0")}`;
  const rows = loops.map((one) => [
    one.kernel, one.line, one.role, `${hex(one.first)} to ${hex(one.last)}`, one.unrolled,
    one.stall_counts, one.with_waits, one.solved, one.waits.join("; "),
  ]);
  return [
    paragraph("Cycles of an iteration, for a warp that nothing else holds up."),
    table(["kernel", "line", "role", "at", "unrolled", "stall counts", "with waits", "solved", "waits"], rows),
  ];
};

// ---- the page --------------------------------------------------------------------------------------------------------

const warnings = (found) => found.length === 0 ? paragraph("None.")
  : found.map((one) => element("div", { class: `diagnostic ${one.severity}` }, element("pre", { tabindex: 0 }, one.text)));

/** Id, heading, name in the list of sections, and what stands in it. */
const sectionsOf = (traces, report) => {
  const found = [], add = (id, head, parts, name = head) => found.push({ id, head, parts, name });
  if (report) add("verdict", "In short", report.predictions.map((said) => said.verdict.map((text) => paragraph(text))));
  if (report) add("lints", "Warnings and lints", warnings(report.warnings));
  traces.forEach((trace, index) => {
    const of = traces.length > 1 ? `${trace.kernel}: ` : "", after = traces.length > 1 ? `-${index + 1}` : "";
    if (report) {
      add(`summary${after}`, `${of}Summary`, summary(report.predictions[index]));
      add(`roofline${after}`, `${of}Roofline`, roofline(report.predictions[index]));
    }
    if (trace.decisions.length) {
      const price = (each) => each.price === null ? [] : `${each.answer}: ${count(each.price)} ${each.unit}`;
      const rows = trace.decisions.map((made) => [
        made.what, made.chosen, made.by, made.why, (made.alternatives || []).flatMap(price).join("; "),
      ]);
      add(`decisions${after}`, `${of}Decisions`, table(["what", "decision", "by", "because", "weighed"], rows));
    }
    trace.loops.forEach((loop, at) => {
      const head = `${loop.name}: II ${loop.ii}, ${loop.stages} stages, ${loop.status}`;
      add(`loop${after}-${at}`, head, loopParts(loop), loop.name);
    });
    const rest = [trace.loops.length ? [] : paragraph("No pipelined loop."), besideLoops(trace)].flat(Infinity);
    if (rest.length) add(`beside${after}`, `${of}${trace.loops.length ? "Roles and stores" : "Schedule"}`, rest);
  });
  if (report && report.machine_code.length) add("machine-code", "Loops in machine code", loopCode(report.machine_code));
  if (report) add("code", "Kernel, PTX and SASS", codeParts(report.code));
  return found;
};

const titleOf = ([{ kernel, target }], report) => report ? `${report.file} on ${report.target}`
  : (kernel || "schedule") + (target ? ` on ${target}` : "");

const about = ([{ calibration, constants }], report) => {
  const changed = Object.entries(constants ?? {}).map(([name, value]) => ` ${name}=${value}`).join("");
  const how = report ? `Optimisation level ${report.optimisation_level}, calibration ${calibration}.`
    : calibration ? `Calibration: ${calibration}.` : "";
  return [changed && `Constants changed:${changed}.`, how, "Times are cycles."].filter((part) => part).join(" ");
};

/** What the body of the page holds. */
const body = (traces, report) => {
  const sections = sectionsOf(traces, report);
  return [
    element("a", { class: "skip", href: "#main" }, "Skip to the content"),
    element("header", {},
      element("h1", {}, titleOf(traces, report)),
      element("button", { id: "theme", type: "button", "aria-label": "Switch between light and dark" }),
      hint(about(traces, report)),
      element("nav", { "aria-label": "Sections" }, element("ul", {},
        sections.map(({ id, name }) => element("li", {}, element("a", { href: `#${id}` }, name)))))),
    element("main", { id: "main" }, sections.map(({ id, head, parts }) =>
      element("section", { id, "aria-labelledby": `${id}-h` }, element("h2", { id: `${id}-h` }, head), parts))),
  ];
};

// ---- in a browser ----------------------------------------------------------------------------------------------------

/** What has no glyph or turns the direction of writing is shown as such, and does neither. */
const plain = (text) => String(text).replace(/[^\P{C}\n\t]|[^\P{Z} ]/gu, "\ufffd");

/** The node for one of the values above. What is inside a drawing is of its kind. */
const mounted = (part, isDrawn = false) => {
  if (typeof part !== "object") return document.createTextNode(plain(part));
  const { tag, attributes, parts } = part, isSvg = isDrawn || tag === "svg";
  const node = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, plain(value));
  for (const one of parts) node.append(mounted(one, isSvg));
  return node;
};

const switchThemes = () => {
  const page = document.documentElement, theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => page.dataset.theme ? page.dataset.theme === "dark" : system.matches;
  const named = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { page.dataset.theme = isDark() ? "light" : "dark"; named(); });
  system.addEventListener("change", named);
  named();
};

const linkCode = () => {
  const placed = (node) => node.closest("[data-at]");
  const same = (at) => [...document.querySelectorAll("[data-at]")].filter((one) => one.dataset.at === at);
  const light = (event) => {
    const found = placed(event.target);
    if (!found) return;
    for (const one of document.querySelectorAll(".lit")) one.classList.remove("lit");
    for (const one of same(found.dataset.at)) one.classList.add("lit");
  };
  document.addEventListener("mouseover", light);
  document.addEventListener("focusin", light);
  document.addEventListener("click", (event) => {
    const found = placed(event.target);
    if (!found) return;
    event.preventDefault();
    const here = found.closest("pre");
    for (const panel of document.querySelectorAll(".code pre")) {
      const first = panel === here ? null : same(found.dataset.at).find((one) => panel.contains(one));
      if (first) panel.scrollTop = first.offsetTop - panel.clientHeight / 3;
    }
  });
};

if (typeof document !== "undefined") {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const traces = read("traces"), report = read("report");
  document.title = plain(titleOf(traces, report));
  for (const part of body(traces, report)) document.body.append(mounted(part));
  switchThemes();
  linkCode();
}
