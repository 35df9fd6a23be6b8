// What is wrong with a shard: open alerts (of persist_watch), and what the facts themselves say.
import { badge, h, table } from "./dom.js";
import { dagLink, shardLink } from "./links.js";
import { ATTENTION, alertValue, timeElement } from "./words.js";

const ACTIONS = "persist_actions";
const NOTES = ["paused", "conflicts"];
export const DAMAGED = "The record of alerts is damaged, so no alert is shown. The next dag run of persist_watch replaces it.";

// {text, title, isBad} for each problem, alerts first. An alert replaces the word for the same condition.
export function problems(shard, alerts) {
  const open = alerts.map((alert) => ({
    text: alert.acknowledged_by === null ? `alert: ${alert.name}` : `acknowledged: ${alert.name}`,
    title: `${alert.level}: ${alertValue(alert.alert, alert.value)}, limit ${alertValue(alert.alert, alert.limit)}`,
    isBad: alert.level === "fail" && alert.acknowledged_by === null,
  }));
  const words = [...shard.attention, ...shard.airflow.attention].filter((word) => !alerts.some((alert) => alert.alert === word));
  return [...open, ...words.map((word) => {
    const [text, title] = ATTENTION[word] ?? [word, ""];
    return { text, title, isBad: !NOTES.includes(word) };
  })];
}

export function problemBadges(found) {
  return found.map((problem) => h("span", { class: `badge ${problem.isBad ? "bad" : "note"}`, title: problem.title }, problem.text));
}

// The open alerts of all shards. `known` says which shards have a page.
export function alertsOfAll(place, known, now) {
  const columns = [{ name: "Alert", head: true }, { name: "Shard" }, ...VALUES];
  const rows = place.alerts.map((alert) => [
    what(alert), known.has(alert.shard) ? shardLink(place.conn_id, alert.shard) : `${alert.shard} (not committed yet)`, ...values(alert, now),
  ]);
  return table("Open alerts, the worst first", columns, rows);
}

// The open alerts of one shard, with what helps and how to acknowledge.
export function alertsOfShard(shard) {
  const columns = [{ name: "Alert", head: true }, ...VALUES, { name: "What helps" }, { name: "Silence it until it is resolved" }];
  const canAct = shard.airflow.action_dags.includes(ACTIONS);
  const rows = shard.alerts.map((alert) => [what(alert), ...values(alert, shard.now_ms), h("code", {}, alert.command), silence(alert, canAct)]);
  return table("Open alerts, the worst first", columns, rows);
}

const VALUES = [{ name: "Value", number: true, title: "When the level was reached" }, { name: "Limit", number: true }, { name: "Since" }, { name: "Acknowledged" }];

function values(alert, now) {
  const by = alert.acknowledged_by;
  return [
    alertValue(alert.alert, alert.value), alertValue(alert.alert, alert.limit), timeElement(alert.since_ms, now),
    by === null ? "no" : [`by ${by} at `, timeElement(alert.acknowledged_ms, now), h("div", { class: "muted" }, alert.reason)],
  ];
}

function what(alert) {
  const isLoud = alert.level === "fail" && alert.acknowledged_by === null;
  return [badge(alert.level, isLoud ? "bad" : "note"), " ", alert.name, alert.unsent > 0 && h("div", { class: "muted" }, `messages not sent yet: ${alert.unsent}`)];
}

function silence(alert, canAct) {
  if (alert.acknowledged_by !== null) return "it is silent";
  const conf = JSON.stringify({ action: "ack", shard: alert.shard, alert: alert.alert, reason: "TEXT" });
  return [
    h("code", {}, `persist ack ${alert.shard} ${alert.alert} --reason TEXT`),
    canAct && h("div", {}, "or trigger ", dagLink(ACTIONS), " with ", h("code", {}, conf)),
  ];
}
