"use strict";
// Switching, sorting, filtering, turning pages and landing. Python drew every card for the main method; this only fills
// in other values, so the page says the same without it. Verdicts come from Python (scoring/reading.py): one rule, one
// place. What is chosen is in the address, behind the #: a place, then settings: #s1-00287&method=logo&page=2. Of a file
// a browser lets a page change nothing else of its address.
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const list = $("cards");
  const cards = [...list.children].map((el, q) => ({
    el, q,
    rows: [...el.querySelectorAll(".bars li")],
    axis: el.querySelector(".axis"),
    verdict: el.querySelector(".verdict"),
    validation: el.querySelector(".validation"),
    oracle: el.querySelector(".oracle-says"),
    placebo: el.querySelector(".placebo-says"),
    odds: el.querySelector(".odds"),
    direction: el.querySelector(".direction"),
    claimed: el.querySelector(".claimed"),
    evidence: el.querySelector(".evidence"),
    top: [...el.querySelectorAll(".top figure")],
  }));
  const controls = $("controls");
  controls.hidden = false;
  // A text in the page's language, with its placeholders filled in.
  const say = (text, values) => D.text[text].replace(/\{(\w+)\}/g, (_, key) => values[key]);

  const plain = (v, d) => {
    const text = Math.abs(v).toLocaleString("en-US", { minimumFractionDigits: d, maximumFractionDigits: d });
    return v < 0 && /[1-9]/.test(text) ? "\u2212" + text : text;
  };
  const signed = (v, d) => {
    const text = plain(v, d);
    return v > 0 && /[1-9]/.test(text) ? "+" + text : text;
  };
  // The same as measured() of table.py: two significant digits of half an interval's width decide the decimals.
  const isZero = (text) => !/[1-9]/.test(text);
  const nonzero = (v, d) => {
    const text = plain(v, d);
    return v === 0 || !isZero(text) ? text : plain(v, -Number(v.toExponential(0).split("e")[1]));
  };
  const measured = (v, lo, hi, d) => {
    if (lo === null) return [signed(v, d), ""];
    const half = (hi - lo) / 2;
    if (half > 0) d = Math.max(1 - Number(half.toExponential(1).split("e")[1]), 0);
    let text = signed(v, d);
    if ((lo > 0 || hi < 0) && isZero(text)) text = (v > 0 ? "+" : "") + nonzero(v, d);
    return [text, `[${nonzero(lo, d)}, ${nonzero(hi, d)}]`];
  };

  // The same as times() of scoring/reading.py.
  const times = (v) => {
    const factor = Math.exp(Math.min(v, 50));
    return say("{p} times the average picture", { p: plain(factor, factor >= 10 ? 0 : factor >= 1 ? 1 : factor >= 0.095 ? 2 : 3) });
  };

  const scaleOf = (values) => {
    let lo = 0, hi = 0;
    for (const v of values) { if (v < lo) lo = v; if (v > hi) hi = v; }
    if (hi <= lo) hi = lo + 1;
    return { lo, hi, at: (v) => (100 * (v - lo)) / (hi - lo) };
  };
  const ticksOf = (s) => {
    const raw = (s.hi - s.lo) / 4, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    const out = [];
    for (let n = Math.ceil(s.lo / step - 1e-9); n <= Math.floor(s.hi / step + 1e-9); n++) out.push([s.at(n * step), plain(n * step, digits)]);
    return out;
  };

  const known = (table, q, g, factor) => (table === null || table[q][g] === null ? null : table[q][g] * factor);
  // What is shown: ranked groups of every picture, for the chosen method and view.
  let shown = [];
  const compute = () => {
    const m = D.methods[$("method").value], per = $("view").value === "per" && m.perVerdicts;
    const factor = D.groups.map((g) => (per ? 1000 / g.size : 1));
    shown = cards.map(({ q }) => {
      const rows = D.groups.map((_, g) => ({
        g,
        v: m.score[q][g] * factor[g],
        lo: known(m.lo, q, g, factor[g]),
        hi: known(m.hi, q, g, factor[g]),
      }));
      const order = per ? m.perOrder : m.order;
      if (order) rows.splice(0, rows.length, ...order[q].map((g) => rows[g]));
      else rows.sort((a, b) => b.v - a.v || a.g - b.g);
      const [kind, headline, detail, note] = (per ? m.perVerdicts : m.verdicts)[q];
      return { rows, kind, headline, detail, note, top: rows[0].v, margin: rows[0].v - rows[1].v, odds: per ? null : m.odds && m.odds[q] };
    });
    return { m, per, digits: per ? m.perDigits : m.digits };
  };

  const probability = (p) => (p < 0.005 ? "<1" : p >= 0.995 ? ">99" : Math.round(100 * p)) + "\u00a0%";
  const span = (cls, text) => {
    const el = document.createElement("span");
    el.className = cls;
    el.textContent = text;
    return el;
  };

  const draw = () => {
    const { m, per, digits } = compute();
    const line = per ? null : m.null; // placebos have one size: no line per 1,000 images
    const every = (rows) => rows.flatMap((r) => (r.lo === null ? [r.v] : [r.v, r.lo, r.hi])).concat(line === null ? [] : [line]);
    const common = $("scale").value === "common" ? scaleOf(shown.flatMap((s) => every(s.rows))) : null;
    const unit = per ? `${m.unit} ${say("per {n} images", { n: "1,000" })}` : m.axis;
    for (const card of cards) {
      const { rows, kind, headline, detail, note, odds } = shown[card.q];
      card.el.className = "card " + kind;
      const s = common || scaleOf(every(rows)), zero = s.at(0);
      card.el.style.setProperty("--zero", zero + "%");
      if (line !== null) card.el.style.setProperty("--null", s.at(line) + "%");
      card.odds.hidden = !odds || !odds.length;
      card.odds.replaceChildren(`${m.oddsLabel}${kind === "nothing" && !m.answers ? D.oddsNone : ""}: `, ...(odds || []).slice(0, m.answers || 3).flatMap(([g, p], i) => {
        const name = document.createElement("b");
        name.textContent = D.groups[g].name;
        return [i ? ", " : "", name, p === null ? "" : "\u00a0" + probability(p)];
      }), m.answers && odds && odds.length > m.answers ? " " + say("and {n} more", { n: odds.length - m.answers }) : "");
      if (card.direction) {
        card.direction.textContent = m.directions ? m.directions[card.q] : "";
        card.direction.hidden = !card.direction.textContent;
      }
      const said = m.claims && !per ? m.claims[1][card.q] : -1; // verdicts per image are not what was compared
      if (card.claimed) {
        card.claimed.hidden = said < 0;
        card.claimed.textContent = said < 0 ? "" : m.claims[0][said];
      }
      if (card.evidence) card.evidence.hidden = per || m !== D.methods[D.main]; // it is of that method's first group
      if (card.placebo) {
        card.placebo.hidden = line === null;
        card.placebo.classList.toggle("below", line !== null && !m.above[card.q]);
        if (line !== null) card.placebo.textContent = D.placeboSays[m.above[card.q]];
      }
      card.verdict.className = "verdict " + kind;
      card.verdict.querySelector("b").textContent = headline;
      card.verdict.querySelector("span span").textContent = `(${detail})`;
      const compared = said >= 0 || m.id === D.oracleName; // the same as _noted() of page.py
      card.validation.textContent = compared && note === D.notValidated ? "" : note;
      card.validation.hidden = !card.validation.textContent;
      card.axis.replaceChildren(...ticksOf(s).map(([x, label]) => {
        const tick = span("", label);
        tick.style.left = x + "%";
        return tick;
      }), span("unit", unit));
      const gold = D.oracle ? D.oracle[card.q] : null;
      rows.forEach((r, i) => {
        const li = card.rows[i], [name, , value] = li.children, at = s.at(r.v);
        const [told, between] = measured(r.v, r.lo, r.hi, digits);
        li.className = (r.v < 0 ? "neg" : "pos") + (r.lo !== null && (r.lo > 0 || r.hi < 0) ? " sure" : r.lo === null ? " open" : "") + (r.g === gold ? " gold" : "");
        li.title = `${D.groups[r.g].name}: ${told} ${between}${m.times ? ", " + times(r.v) : " " + unit} (${say("group of {n}", { n: D.groups[r.g].size.toLocaleString("en-US") })})`;
        if (odds && !m.answers) li.title += `; ${say("first with probability {p}", { p: probability((odds.find(([g]) => g === r.g) || [0, 0])[1]) })}`;
        li.style.setProperty("--a", Math.min(at, zero) + "%");
        li.style.setProperty("--w", Math.abs(at - zero) + "%");
        if (r.lo === null) li.style.removeProperty("--h");
        else { li.style.setProperty("--l", s.at(r.lo) + "%"); li.style.setProperty("--h", s.at(r.hi) - s.at(r.lo) + "%"); }
        name.firstElementChild.textContent = D.groups[r.g].name;
        value.replaceChildren(span("number", told), " ", span("interval", between));
        if (card.top[i]) {
          card.top[i].querySelector("use").setAttribute("href", "#" + D.groups[r.g].thumb);
          card.top[i].querySelector("svg").setAttribute("aria-label", say("training image of {group}", { group: D.groups[r.g].name }));
          card.top[i].lastElementChild.textContent = D.groups[r.g].name;
        }
      });
      if (card.oracle) {
        card.oracle.hidden = m.id === D.oracleName;
        const rank = rows.findIndex((r) => r.g === gold) + 1;
        card.oracle.lastElementChild.textContent = `${D.oracleSays[card.q]}; ${rank === 1 ? say("this method agrees", {}) : say("this method ranks it number {rank}", { rank })}`;
      }
    }
    $("about").textContent = `${m.id}${m.about ? ": " + m.about : ""} (${m.estimand}; ${unit}).`;
    list.style.setProperty("--values", (per ? m.perWidth : m.width) + "ch");
    list.classList.toggle("bare", !m.lo);
    list.classList.toggle("nulled", line !== null);
    if ($("null-key")) $("null-key").hidden = line === null;
    const kinds = Object.keys(D.labels).map((k) => [shown.filter((s) => s.kind === k).length, D.labels[k].toLowerCase(), k]);
    $("tally").textContent = `${m.id}${per ? ", " + say("per {n} images", { n: "1,000" }) : ""}: ${kinds.filter(([n, , k]) => n || (m.lo && !["unmeasured", "foreign", "copy"].includes(k))).map(([n, label]) => `${label} ${n}`).join(", ")}${per && m.null !== null ? " " + say("(placebo groups have one size and are not taken into account here)", {}) : ""}.`;
    $("view").disabled = !m.perVerdicts;
    arrange();
  };

  // ---- what is shown: filters, order, page -----------------------------------------------------------------------
  const names = ["method", "view", "scale", "sort", "group", "kind", "search"];
  const usual = { method: D.methods[D.main].id, view: "group", scale: "own", sort: "id", group: "", kind: "", search: "" };
  let page = 1, place = "", found = cards;
  const state = () => {
    const now = Object.fromEntries(names.map((k) => [k, $(k).value]));
    now.method = D.methods[now.method].id;
    now.group = now.group === "" ? "" : D.groups[now.group].name;
    return now;
  };
  const restore = (asked) => {
    const want = { ...usual, ...asked };
    const method = D.methods.findIndex((m) => m.id === want.method);
    $("method").value = method < 0 ? D.main : method;
    const group = D.groups.findIndex((g) => g.name === want.group);
    $("group").value = group < 0 ? "" : group;
    for (const k of ["view", "scale", "sort", "kind"]) $(k).value = [...$(k).options].some((o) => o.value === want[k]) ? want[k] : usual[k];
    $("search").value = want.search;
  };
  const address = (target, number) => {
    const now = state(), parts = names.filter((k) => now[k] !== usual[k]).map((k) => `${k}=${encodeURIComponent(now[k])}`);
    if (number > 1) parts.push("page=" + number);
    return "#" + [target, ...parts].filter((p) => p !== "").join("&");
  };
  const remember = () => {
    const now = address(place, page);
    if (now !== (location.hash || "#")) history.replaceState(null, "", now);
  };

  const matches = (card) => {
    const s = shown[card.q], first = s.kind === "foreign" ? "" : D.groups[s.rows[0].g].name.toLowerCase();
    const group = $("group").value, kind = $("kind").value;
    if ((group !== "" && (s.rows[0].g !== +group || s.kind === "foreign")) || (kind !== "" && s.kind !== kind)) return false;
    const words = $("search").value.trim().toLowerCase().split(/\s+/);
    return words.every((w) => D.queries[card.q].includes(w)) || words.every((w) => first.includes(w));
  };
  const arrange = () => {
    const sort = $("sort").value, order = [...cards];
    if (sort !== "id") order.sort((a, b) => shown[b.q][sort] - shown[a.q][sort] || a.q - b.q);
    found = order.filter(matches);
    list.append(...order.map((c) => c.el));
    turn();
  };
  // One page of what was found; all pages are links.
  const turn = () => {
    const pages = Math.max(1, Math.ceil(found.length / D.page));
    page = Math.min(Math.max(1, page), pages);
    const from = (page - 1) * D.page, visible = new Set(found.slice(from, from + D.page));
    for (const card of cards) card.el.hidden = !visible.has(card);
    const n = found.length, total = cards.length, range = { n, total, from: from + 1, to: Math.min(from + D.page, n) };
    $("count").textContent = pages === 1 ? say(n === total ? "All {n} pictures" : "{n} of {total} pictures", range)
      : say(n === total ? "{from} to {to} of {n} pictures" : "{n} of {total} pictures match; {from} to {to} of them", range);
    $("nothing").hidden = n > 0;
    const wanted = [...new Set([1, page - 1, page, page + 1, pages])].filter((p) => p >= 1 && p <= pages);
    const link = (number, text, title) => {
      const a = document.createElement("a");
      a.href = address("pictures", number) + (number === 1 ? "&page=1" : ""); // or it would be only a place
      a.textContent = text;
      a.title = title;
      return a;
    };
    for (const pager of document.querySelectorAll(".pager")) {
      pager.hidden = pages === 1;
      const parts = page > 1 ? [link(page - 1, "\u2039", say("previous", {}))] : [];
      wanted.forEach((p, i) => {
        if (i && p - wanted[i - 1] > 1) parts.push(span("", "\u2026"));
        const here = document.createElement("b");
        here.textContent = p;
        parts.push(p === page ? here : link(p, p, say("page {n}", { n: p })));
      });
      if (page < pages) parts.push(link(page + 1, "\u203a", say("next", {})));
      pager.replaceChildren(...parts);
    }
  };
  const changed = (redraw) => () => {
    page = 1;
    place = place === "" ? "" : "pictures";
    if (redraw) draw(); else arrange();
    remember();
  };
  const fresh = () => { restore({}); page = 1; draw(); };

  // ---- landing: a place may be on another page, filtered away, or folded ---------------------------------------------
  const land = (target) => {
    document.querySelectorAll(".landed").forEach((e) => e.classList.remove("landed"));
    const q = D.places.indexOf(target), el = document.getElementById(target);
    if (!el) return;
    if (q >= 0) {
      if (!found.some((c) => c.q === q)) fresh();
      page = 1 + Math.floor(found.findIndex((c) => c.q === q) / D.page);
      turn();
      el.classList.add("landed");
    }
    if (el.tagName === "DETAILS") el.open = true;
    for (let d = el.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
    el.scrollIntoView({ block: "start" });
  };
  const arrive = () => {
    const parts = location.hash.slice(1).split("&").map((p) => { try { return decodeURIComponent(p); } catch { return ""; } });
    const settings = Object.fromEntries(parts.filter((p) => p.includes("=")).map((p) => [p.slice(0, p.indexOf("=")), p.slice(p.indexOf("=") + 1)]));
    place = parts[0].includes("=") ? "" : parts[0];
    if (Object.keys(settings).length || place === "") {
      const before = state();
      restore(settings);
      page = parseInt(settings.page, 10) || 1;
      const now = state(), other = (keys) => keys.some((k) => now[k] !== before[k]);
      if (other(["method", "view", "scale"])) draw();
      else if (other(names)) arrange();
      else turn();
    } else if (place === "pictures") {  // back from another page: its address names none
      page = 1;
      turn();
    }
    if (place !== "") land(place);
    remember();
  };

  compute();
  restore({});
  for (const id of ["method", "view", "scale"]) $(id).addEventListener("change", changed(true));
  for (const id of ["sort", "group", "kind"]) $(id).addEventListener("change", changed(false));
  $("search").addEventListener("input", changed(false));
  controls.addEventListener("submit", (e) => e.preventDefault());
  const all = (e) => { e.preventDefault(); fresh(); remember(); };
  controls.addEventListener("reset", all);
  $("nothing").querySelector("button").addEventListener("click", all);
  addEventListener("hashchange", arrive);
  // the same link once more changes no address, but must land
  document.addEventListener("click", (e) => {
    const a = e.target.closest("a[href^='#']");
    if (a && a.getAttribute("href") === location.hash) { e.preventDefault(); arrive(); }
  });
  arrange();
  if (location.hash.length > 1) { history.scrollRestoration = "manual"; arrive(); }

  // ---- groups and tables that can be sorted ------------------------------------------------------------------------
  document.querySelector(".sorter").hidden = false;
  $("order").addEventListener("change", () => {
    const by = $("order").value, number = by === "first" || by === "size";
    for (const el of document.querySelectorAll(".grouplist")) {
      el.append(...[...el.children].sort((a, b) => (number ? b.dataset[by] - a.dataset[by] : by === "order" ? a.dataset[by] - b.dataset[by] : a.dataset[by].localeCompare(b.dataset[by])) || a.dataset.order - b.dataset.order));
    }
  });
  const valueOf = (row, i) => {
    const text = row.cells[i].textContent.trim(), number = parseFloat(text.replace(/[\u2212]/g, "-").replace(/,/g, ""));
    return Number.isNaN(number) ? text : number;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((th, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...th.childNodes);
      th.append(button);
      button.addEventListener("click", () => {
        const down = th.getAttribute("aria-sort") !== "descending" && (i > 0 || th.getAttribute("aria-sort") === "ascending");
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        th.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].map((row) => [valueOf(row, i), row]);
        rows.sort(([a], [b]) => (typeof a !== typeof b ? (typeof a === "number" ? -1 : 1) : (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true })) * (down ? -1 : 1)));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }
  // Paper cannot unfold: the experts' part is opened, what is there once per picture or method stays folded.
  addEventListener("beforeprint", () => document.querySelectorAll("details.expert, details.table").forEach((d) => (d.open = true)));
})();
