// As much of a browser's document as the script of a report's page needs, so that Node can run it. Reads an array from
// standard input: the page's JSON by the ids of their elements, its script, and an expression; writes what the expression is
// when the script has run. `tree` makes an array of an element: name, attributes, and what is in it.
"use strict";

class Text {
  constructor(data) { this.textContent = data; }
}

class Element {
  constructor(name) { Object.assign(this, { name, attributes: {}, parts: [], parent: null, listeners: {} }); }
  append(part) {
    part.parent = this;
    this.parts.push(part);
  }
  setAttribute(name, value) {
    if (typeof value !== "string" || !/^[A-Za-z-]+[0-9]?$/.test(name)) throw new TypeError(`${name}=${value}`);
    this.attributes[name] = value;
  }
  get textContent() { return this.parts.map((part) => part.textContent).join(""); }
  set textContent(text) { this.parts = [new Text(text)]; }
  get dataset() {
    return new Proxy(this.attributes, {
      get: (all, name) => all[`data-${name}`],
      set: (all, name, value) => { all[`data-${name}`] = value; return true; },
    });
  }
  get classList() {
    const names = () => new Set((this.attributes.class ?? "").split(" ").filter((name) => name));
    const keep = (found) => { this.attributes.class = [...found].join(" "); };
    return {
      add: (name) => keep(names().add(name)),
      remove: (name) => keep([...names()].filter((one) => one !== name)),
    };
  }
  contains(other) { return other !== null && (other === this || this.contains(other.parent)); }
  is(simple) {
    if (simple.startsWith("[")) return simple.slice(1, -1) in this.attributes;
    if (simple.startsWith(".")) return (this.attributes.class ?? "").split(" ").includes(simple.slice(1));
    return this.name === simple;
  }
  matches(selector) {
    const steps = selector.split(" "), last = steps.pop();
    let at = this;
    for (const step of steps.reverse()) {
      do at = at.parent; while (at && !at.is(step));
      if (!at) return false;
    }
    return this.is(last);
  }
  closest(selector) { return this.matches(selector) ? this : this.parent ? this.parent.closest(selector) : null; }
  *all() {
    for (const part of this.parts) if (part instanceof Element) { yield part; yield* part.all(); }
  }
  addEventListener(kind, listener) { (this.listeners[kind] ??= []).push(listener); }
  /** What a person does: it reaches all elements that this one is in. */
  meet(kind) {
    const event = { target: this, isPrevented: false, preventDefault() { this.isPrevented = true; } };
    for (let at = this; at; at = at.parent) for (const listener of at.listeners[kind] ?? []) listener(event);
    return event.isPrevented;
  }
}

const SVG = "http://www.w3.org/2000/svg";
const documentElement = new Element("html"), body = new Element("body");
documentElement.append(body);
const named = {};
globalThis.document = {
  documentElement, body, title: "",
  createElement: (name) => new Element(name),
  createElementNS: (space, name) => { if (space !== SVG) throw new TypeError(space); return new Element(name); },
  createTextNode: (text) => new Text(text),
  getElementById: (id) => named[id] ?? [...documentElement.all()].find((one) => one.attributes.id === id) ?? null,
  querySelectorAll: (selector) => [...documentElement.all()].filter((one) => one.matches(selector)),
  addEventListener: (kind, listener) => documentElement.addEventListener(kind, listener),
};
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.tree = (part) => part instanceof Text ? part.textContent : [part.name, part.attributes, part.parts.map(tree)];

const [data, script, expression] = JSON.parse(require("fs").readFileSync(0, "utf8"));
for (const [id, text] of Object.entries(data)) named[id] = new Text(text);
const { runInThisContext } = require("vm");
runInThisContext(script);
process.stdout.write(JSON.stringify(runInThisContext(expression)));
