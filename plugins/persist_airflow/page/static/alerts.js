// What is wrong with a shard: its problems as badges, and tables of open alerts (of persist_watch).
import { actionButton } from "./actions.js";
import { badge, h, table } from "./dom.js";
import { shardLink } from "./links.js";
import { alertValue, timeElement } from "./words.js";

export const DAMAGED = "The record of alerts is damaged, so no alert is shown. The next dag run of persist_watch replaces it.";

export function problemBadges(found) {
  return found.map((problem) => h("span", { class: `badge ${problem.urgency}`, title: problem.detail }, problem.text));
}

// The open alerts of all shards. `known` says which shards have a page.
export function alertsOfAll(place, known, now) {
  const columns = [{ name: "Alert", head: true }, { name: "Shard" }, ...VALUES];
  const rows = place.alerts.map((alert) => [
    what(alert), known.has(alert.shard) ? shardLink(place.conn_id, alert.shard) : `${alert.shard} (not committed yet)`, ...values(alert, now),
  ]);
  return table(`Open alerts of ${place.conn_id}, the most urgent first`, columns, rows, { kind: "cards" });
}

// The open alerts of one shard, with what helps and how to acknowledge.
export function alertsOfShard(shard) {
  const columns = [{ name: "Alert", head: true }, ...VALUES, { name: "What helps" }, { name: "Silence it until it is resolved" }];
  const rows = shard.alerts.map((alert) => [what(alert), ...values(alert, shard.now_ms), h("code", {}, alert.command), silence(shard, alert)]);
  return table("Open alerts, the most urgent first", columns, rows, { kind: "cards" });
}

const VALUES = [{ name: "Value", number: true, title: "When the level was reached" }, { name: "Limit", number: true }, { name: "Since" }, { name: "Acknowledged" }];

function values(alert, now) {
  const by = alert.acknowledged_by;
  return [
    alertValue(alert, alert.value), alertValue(alert, alert.limit), timeElement(alert.since_ms, now),
    by === null ? "no" : [`by ${by} at `, timeElement(alert.acknowledged_ms, now), h("div", { class: "muted" }, alert.reason)],
  ];
}

function what(alert) {
  return [badge(alert.level, alert.urgency), " ", alert.name, alert.unsent > 0 && h("div", { class: "muted" }, `messages not sent yet: ${alert.unsent}`)];
}

function silence(shard, alert) {
  if (alert.acknowledged_by !== null) return "it is silent";
  return [
    h("code", {}, `persist ack ${alert.shard} ${alert.alert} --reason TEXT`), " ",
    actionButton(shard, "Acknowledge", "ack", { alert: alert.alert, reason: "TEXT" }, "Say why instead of TEXT: others read it."),
  ];
}
