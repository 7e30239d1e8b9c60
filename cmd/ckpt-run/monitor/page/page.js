"use strict";
// The page asks /state once a second and shows it. It changes nothing.
(() => {
  const $ = id => document.getElementById(id);
  const open = new Set(); // ids whose subtasks are shown
  const details = new Map(); // their checkpoints, with subtasks, by id
  let latest; // what was shown last

  const el = (tag, attrs = {}, ...children) => {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(attrs)) {
      if (k === "class") e.className = v; else e.setAttribute(k, v);
    }
    e.append(...children);
    return e;
  };
  const bytes = n => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
    return (i && n < 100 ? n.toFixed(1) : Math.round(n)) + " " + units[i];
  };
  const ms = n => n >= 1000 ? (n / 1000).toFixed(2) + " s" : n.toFixed(n < 10 ? 1 : 0) + " ms";
  const percent = f => Math.round(100 * f) + " %";
  const count = n => Math.round(n).toLocaleString("en");
  const put = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

  function figures(s) {
    put("rate", count(s.records_per_second) + " /s");
    put("fill", percent(s.fill) + " full");
    put("latency", s.latency_p50_ms === null ? "–" : ms(s.latency_p50_ms) + " (p99 " + ms(s.latency_p99_ms) + ")");
    put("bottleneck", s.bottleneck || "none");
    put("age", s.last_completed_age_seconds === null ? "never" : Math.round(s.last_completed_age_seconds) + " s ago");
    put("success", s.success_rate === null ? "–" : percent(s.success_rate));
  }

  function pipeline(s) {
    const box = $("pipeline"), parts = [];
    for (const v of s.vertices) {
      for (const e of s.edges.filter(e => e.to === v.name)) {
        const part = e.capacity ? e.queued / e.capacity : 0;
        parts.push(el("div", { class: "edge", title: e.unaligned ? "may hold channel state" : "aligned " + e.why },
          e.from + " → " + e.to, el("br"), e.kind + ", " + (e.unaligned ? "unaligned" : "aligned"),
          el("progress", { max: "1", value: String(Math.min(1, part)), "aria-label": "queues from " + e.from + " to " + e.to }),
          bytes(e.queued) + " of " + bytes(e.capacity)));
      }
      const bars = el("div", { class: "bars" });
      v.subtasks.forEach((t, i) => {
        const bar = el("div", { class: "bar", role: "img", title: v.name + "/" + i,
          "aria-label": `${v.name}/${i}: busy ${percent(t.busy)}, backpressured ${percent(t.backpressured)}, idle ${percent(t.idle)}` });
        for (const [k, f] of [["busy", t.busy], ["back", t.backpressured], ["idle", t.idle]]) {
          const i = el("i", { class: k });
          i.style.width = 100 * f + "%";
          bar.append(i);
        }
        bars.append(bar);
      });
      parts.push(el("div", { class: "vertex" + (v.name === s.bottleneck ? " bottleneck" : "") },
        el("h3", {}, v.name + (v.subtasks.length > 1 ? " ×" + v.subtasks.length : "")), el("p", {}, count(v.per_second) + " records/s"), bars));
    }
    box.replaceChildren(...parts);
  }

  const cell = (text, n, c) => el("td", { class: (n ? "n " : "") + (c || "") }, text);

  function subtasks(l) {
    const head = ["subtask", "start delay", "alignment", "sync", "async", "end to end", "persisted", "unaligned"];
    const body = l.subtasks.map(t => el("tr", {}, cell(t.vertex + "/" + t.subtask), cell(ms(t.start_delay_ms), 1), cell(ms(t.alignment_ms), 1),
      cell(ms(t.sync_ms), 1), cell(ms(t.async_ms), 1), cell(ms(t.end_to_end_ms), 1), cell(bytes(t.persisted_bytes), 1), cell(t.unaligned ? "yes" : "no")));
    return el("table", {}, el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { scope: "col", class: i && i < 7 ? "n" : "" }, h)))), el("tbody", {}, ...body));
  }

  // toggle shows the subtasks of a checkpoint, or hides them.
  async function toggle(id) {
    if (open.has(id)) {
      open.delete(id);
      details.delete(id);
    } else {
      open.add(id);
      table(latest);
      try {
        const answer = await fetch("/checkpoints/" + id, { cache: "no-store" });
        details.set(id, answer.ok ? await answer.json() : { subtasks: [] });
      } catch (e) {
        open.delete(id); // the job has ended
      }
    }
    table(latest);
  }

  let drawn = "";
  function table(s) {
    const key = JSON.stringify(s.checkpoints.map(c => [c.at, c.line.id])) + [...open] + "/" + [...details.keys()];
    if (key === drawn) return;
    drawn = key;
    const focus = document.activeElement && document.activeElement.id;
    const rows = [];
    for (const { line: l } of [...s.checkpoints].reverse()) {
      const id = "c" + l.id, shown = open.has(l.id);
      const button = el("button", { id, "aria-expanded": String(shown), "aria-controls": "d" + l.id, "aria-label": "subtasks of checkpoint " + l.id }, (shown ? "▾ " : "▸ ") + l.id);
      button.onclick = () => toggle(l.id);
      rows.push(el("tr", {}, el("td", {}, button), cell(l.kind === "savepoint" ? "savepoint " + l.state : l.state, 0, l.state), cell(l.alignment), cell(ms(l.duration_ms), 1),
        cell(bytes(l.size_bytes), 1), cell(bytes(l.channel_state_bytes), 1), cell(String(l.files), 1), cell(l.reason || l.decision || "")));
      const detail = details.get(l.id);
      if (shown && detail) rows.push(el("tr", { class: "detail", id: "d" + l.id }, el("td", { colspan: "8" }, detail.subtasks.length ? subtasks(detail) : "no subtask has acknowledged it")));
    }
    if (rows.length) $("rows").replaceChildren(...rows);
    if (focus && $(focus)) $(focus).focus();
  }

  const charts = {};
  function chart(id, label, show, xs, ys) {
    const css = getComputedStyle(document.documentElement), colour = n => css.getPropertyValue(n).trim();
    const width = Math.max(200, $(id).clientWidth), dark = matchMedia("(prefers-color-scheme: dark)").matches;
    if (charts[id] && charts[id].dark !== dark) { charts[id].plot.destroy(); delete charts[id]; }
    if (!charts[id]) {
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      charts[id] = { dark, plot: new uPlot({ width, height: 200, series: [{}, { label, stroke: colour("--busy"), width: 2, points: { size: 5, fill: colour("--busy") }, value: (_, v) => v == null ? "–" : show(v) }],
        scales: { y: { range: (_, lo, hi) => [0, Math.max(hi * 1.1, 1)] } },
        axes: [axis, { ...axis, size: 70, values: (_, vs) => vs.map(show) }] }, [xs, ys], $(id)) };
    } else {
      if (charts[id].plot.width !== width) charts[id].plot.setSize({ width, height: 200 });
      charts[id].plot.setData([xs, ys]);
    }
  }

  function draw(s) {
    const done = s.checkpoints.filter(c => c.line.state === "completed");
    const xs = done.map(c => c.at / 1000);
    chart("duration", "duration", ms, xs, done.map(c => c.line.duration_ms));
    chart("size", "size", bytes, xs, done.map(c => c.line.size_bytes));
  }

  async function refresh() {
    try {
      const answer = await fetch("/state", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const s = latest = await answer.json();
      figures(s); pipeline(s); table(s); draw(s);
      put("status", "running for " + Math.round(s.uptime_seconds) + " s");
      $("status").className = "";
      document.body.dataset.ready = "true";
    } catch (e) {
      put("status", "the job does not answer: it may have ended");
      $("status").className = "lost";
    }
    setTimeout(refresh, 1000);
  }
  refresh();
})();
