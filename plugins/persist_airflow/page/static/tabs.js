// Tabs by the pattern of WAI-ARIA: arrow keys move, the address has the open one, a panel is made when it is first shown.
import { alertBox, h } from "./dom.js";

// `tabs` are {id, name, note?, make}: `make` returns the panel's elements, or a promise of them; `note` returns a text.
export function tabs(label, list) {
  const panels = list.map((each) => h("div", { id: `panel-${each.id}`, role: "tabpanel", tabindex: "0", "aria-labelledby": `tab-${each.id}`, hidden: true }));
  const notes = list.map(() => h("span", { class: "note" }));
  const buttons = list.map((each, i) => h("button", {
    type: "button", role: "tab", id: `tab-${each.id}`, "aria-controls": `panel-${each.id}`, onclick: () => open(i), onkeydown: (event) => move(event, i),
  }, each.name, notes[i]));
  const drawNotes = () => {
    for (const [i, each] of list.entries()) {
      const text = each.note?.();
      notes[i].textContent = text ? ` ${text}` : "";
    }
  };
  const made = new Set(), stale = new Set(), turns = list.map(() => 0); // stale: to be made again by itself
  const show = async (i) => {
    if (made.has(i)) return;
    made.add(i);
    stale.delete(i);
    const mine = ++turns[i];
    panels[i].setAttribute("aria-busy", "true");
    let parts;
    try {
      parts = await list[i].make();
    } catch (error) {
      if (mine === turns[i]) { made.delete(i); stale.add(i); }
      parts = [alertBox(error.message)];
    }
    if (mine !== turns[i]) return; // a newer answer is on its way, or has come first
    panels[i].replaceChildren(...[parts].flat(Infinity).filter(Boolean));
    panels[i].setAttribute("aria-busy", "false");
  };
  const open = (i, focus = false) => {
    for (const [k, button] of buttons.entries()) {
      button.setAttribute("aria-selected", String(k === i));
      button.tabIndex = k === i ? 0 : -1;
      panels[k].hidden = k !== i;
    }
    if (location.hash !== `#${list[i].id}`) history.replaceState(null, "", `#${list[i].id}`);
    if (focus) buttons[i].focus();
    return show(i);
  };
  const move = (event, i) => {
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: list.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    open((to + list.length) % list.length, true);
  };
  const find = (id) => list.findIndex((each) => each.id === id);
  // A user is at work in a panel that has opened details, or says so.
  const isUsed = (panel) => panel.querySelector("details[open], [data-used]") !== null;
  drawNotes();
  return {
    element: [h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons), panels],
    open: (id) => open(Math.max(find(id), 0)),
    // The facts were read again: a panel is made again when it is opened. If they have changed (`isNew`), or if it could not
    // be made, the open one is made again by itself, as soon as no user is at work in it.
    refresh: (id, isNew) => {
      const i = find(id);
      if (!turns[i]) return; // it was never opened
      made.delete(i);
      if (isNew) stale.add(i);
      if (stale.has(i) && !panels[i].hidden && !isUsed(panels[i])) show(i);
    },
    drawNotes,
  };
}
