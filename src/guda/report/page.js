"use strict";
// Switching, sorting and filtering. The server drew every card for the main method; this only fills in other values,
// so the page says the same without it. Verdicts come from Python (scoring/reading.py): one rule, one place.
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
    drawn: el.querySelector(".drawn"),
    top: [...el.querySelectorAll(".top figure")],
  }));
  const controls = $("controls");
  controls.hidden = false;

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
    return `${plain(factor, factor >= 10 ? 0 : factor >= 1 ? 1 : factor >= 0.095 ? 2 : 3)} times the average picture`;
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
  // Whose pictures stand for the method, and which columns of them: a group's own prompt first (report/same_noise.py).
  const drawn = (card, m, g) => {
    const d = D.drawings.methods[m.id], n = D.drawings.columns.length;
    card.drawn.hidden = !d;
    if (!d) return;
    const all = [...Array(n).keys()], own = D.drawings.own && g < n;
    const columns = (own ? [g, ...all.filter((c) => c !== g)] : all).slice(0, D.drawings.shown);
    const [full, without] = card.drawn.children;
    without.firstElementChild.lastElementChild.textContent = D.groups[g].name;
    columns.forEach((c, i) => {
      full.querySelectorAll("use")[i].setAttribute("href", "#" + d.full[c]);
      without.querySelectorAll("use")[i].setAttribute("href", "#" + d.without[g][c]);
    });
  };

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
    const unit = per ? `${m.unit} per 1,000 images` : m.axis;
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
      }), m.answers && odds && odds.length > m.answers ? ` and ${odds.length - m.answers} more` : "");
      if (card.direction) {
        card.direction.textContent = m.directions ? m.directions[card.q] : "";
        card.direction.hidden = !card.direction.textContent;
      }
      const said = m.claims && !per ? m.claims[1][card.q] : -1; // verdicts per image are not what was compared
      if (card.claimed) {
        card.claimed.hidden = said < 0;
        card.claimed.textContent = said < 0 ? "" : m.claims[0][said];
      }
      if (card.drawn) drawn(card, m, rows[0].g);
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
        li.title = `${D.groups[r.g].name}: ${told} ${between}${m.times ? ", " + times(r.v) : " " + unit} (group of ${D.groups[r.g].size.toLocaleString("en-US")})`;
        if (odds && !m.answers) li.title += `; first with probability ${probability((odds.find(([g]) => g === r.g) || [0, 0])[1])}`;
        li.style.setProperty("--a", Math.min(at, zero) + "%");
        li.style.setProperty("--w", Math.abs(at - zero) + "%");
        if (r.lo === null) li.style.removeProperty("--h");
        else { li.style.setProperty("--l", s.at(r.lo) + "%"); li.style.setProperty("--h", s.at(r.hi) - s.at(r.lo) + "%"); }
        name.firstElementChild.textContent = D.groups[r.g].name;
        value.replaceChildren(span("number", told), " ", span("interval", between));
        if (card.top[i]) {
          card.top[i].querySelector("use").setAttribute("href", "#" + D.groups[r.g].thumb);
          card.top[i].querySelector("svg").setAttribute("aria-label", "training image of " + D.groups[r.g].name);
          card.top[i].lastElementChild.textContent = D.groups[r.g].name;
        }
      });
      if (card.oracle) {
        card.oracle.hidden = m.id === D.oracleName;
        const rank = rows.findIndex((r) => r.g === gold) + 1;
        card.oracle.lastElementChild.textContent = `${D.oracleSays[card.q]}; this method ${rank === 1 ? "agrees" : "ranks it number " + rank}`;
      }
    }
    $("about").textContent = `${m.id}${m.about ? ": " + m.about : ""} (${m.estimand}; ${unit}).`;
    list.style.setProperty("--values", (per ? m.perWidth : m.width) + "ch");
    list.classList.toggle("bare", !m.lo);
    list.classList.toggle("nulled", line !== null);
    if ($("null-key")) $("null-key").hidden = line === null;
    const kinds = Object.keys(D.labels).map((k) => [shown.filter((s) => s.kind === k).length, D.labels[k].toLowerCase(), k]);
    $("tally").textContent = `${m.id}${per ? ", per 1,000 images" : ""}: ${kinds.filter(([n, , k]) => n || (m.lo && !["unmeasured", "foreign", "copy"].includes(k))).map(([n, label]) => `${label} ${n}`).join(", ")}${per && m.null !== null ? " (placebo groups have one size and are not taken into account here)" : ""}.`;
    $("view").disabled = !m.perVerdicts;
    arrange();
  };

  const arrange = () => {
    const group = $("group").value, kind = $("kind").value, words = $("search").value.trim().toLowerCase().split(/\s+/);
    const sort = $("sort").value;
    const order = [...cards];
    if (sort !== "id") order.sort((a, b) => shown[b.q][sort] - shown[a.q][sort] || a.q - b.q);
    let n = 0;
    for (const card of order) {
      const s = shown[card.q];
      const keep = (group === "" || (s.rows[0].g === +group && s.kind !== "foreign")) && (kind === "" || s.kind === kind) && words.every((w) => D.queries[card.q].includes(w));
      card.el.hidden = !keep;
      n += keep;
    }
    list.append(...order.map((c) => c.el));
    $("count").textContent = n === cards.length ? `All ${n} pictures` : `${n} of ${cards.length} pictures`;
    $("nothing").hidden = n > 0;
  };

  compute();
  for (const id of ["method", "view", "scale"]) $(id).addEventListener("change", draw);
  for (const id of ["sort", "group", "kind"]) $(id).addEventListener("change", arrange);
  $("search").addEventListener("input", arrange);
  controls.addEventListener("submit", (e) => e.preventDefault());
  // A reload may keep what was chosen before, and `reset` takes effect only after its event.
  controls.addEventListener("reset", () => setTimeout(draw));
  $("nothing").querySelector("button").addEventListener("click", () => controls.reset());
  if ($("method").value !== String(D.main) || $("view").value !== "group" || $("scale").value !== "own") draw();
  else arrange();
  for (const a of document.querySelectorAll("a[data-kind]")) a.addEventListener("click", () => {
    controls.reset();
    setTimeout(() => { $("kind").value = a.dataset.kind; draw(); });
  });
  // Paper cannot unfold. What is there once per method and picture stays folded where it would fill a book.
  const folded = list.classList.contains("many") ? ":not(.aside):not(.methods)" : ":not(.aside)";
  addEventListener("beforeprint", () => document.querySelectorAll("details" + folded).forEach((d) => (d.open = true)));
})();
