// Tabs by the pattern of WAI-ARIA: arrow keys move, the address has the open one, a panel is made when it is first shown.
import { h } from "./dom.js";

// `tabs` are {id, name, note?, make}: `make` returns the panel's elements, or a promise of them.
export function tabs(label, list) {
  const panels = list.map((each) => h("div", { id: `panel-${each.id}`, role: "tabpanel", tabindex: "0", "aria-labelledby": `tab-${each.id}`, hidden: true }));
  const buttons = list.map((each, i) => h("button", {
    type: "button", role: "tab", id: `tab-${each.id}`, "aria-controls": `panel-${each.id}`, onclick: () => open(i), onkeydown: (event) => move(event, i),
  }, each.name, each.note && h("span", { class: "note" }, ` ${each.note}`)));
  const made = new Set();
  const show = async (i) => {
    if (made.has(i)) return;
    made.add(i);
    panels[i].setAttribute("aria-busy", "true");
    let parts;
    try {
      parts = await list[i].make();
    } catch (error) {
      made.delete(i);
      parts = [h("div", { class: "alert", role: "alert" }, error.message)];
    }
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
  return {
    element: [h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons), panels],
    open: (id) => open(Math.max(find(id), 0)),
    // Makes a panel again, if it was made: its facts have changed.
    refresh: (id) => { if (made.delete(find(id)) && !panels[find(id)].hidden) show(find(id)); },
    opened: () => list[buttons.findIndex((button) => button.getAttribute("aria-selected") === "true")].id,
  };
}
