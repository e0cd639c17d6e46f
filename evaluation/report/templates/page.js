// What a page draws of its data: figures, counts, episodes, trees. Text of others is only ever text of an element.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const SIGNS = { right: "✓", wrong: "✗", failed: "!" };

  const grown = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
    return element;
  };
  const h = (tag, attributes = {}, ...children) => grown(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) => grown(document.createElementNS(NAMESPACE, tag), attributes, children);
  const bdi = (...text) => h("bdi", {}, text);
  const note = (...children) => h("p", { class: "n" }, ...children);
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  const into = (id, ...children) => grown(document.getElementById(`${id}-drawn`), {}, children);

  // What is folded is drawn when it is unfolded first.
  const waiting = new WeakMap();
  const fill = (fold) => {
    const draw = waiting.get(fold);
    waiting.delete(fold);
    if (draw) grown(fold, {}, [draw()]);
  };
  const unfold = (fold) => { fill(fold); fold.open = true; };
  const folded = (summary, draw, attributes = {}) => {
    const handle = h("summary", {}, summary), fold = h("details", attributes, handle);
    waiting.set(fold, draw);
    handle.addEventListener("click", () => fill(fold));  // at once: a toggle is told a moment later
    fold.addEventListener("toggle", () => { if (fold.open) fill(fold); });
    return fold;
  };

  // What is wider than its place says that it scrolls.
  const widths = new ResizeObserver((all) =>
    all.forEach(({ target }) => target.classList.toggle("wide", target.scrollWidth > target.clientWidth + 1)));
  const scrolling = (one) => { widths.observe(one); return one; };

  // The kind of an arm is its colour, too.
  const kinds = new Map(Object.entries(data.kinds ?? {}));
  const armed = (arm) => (kinds.has(arm) ? { class: `arm k-${kinds.get(arm)}`, title: kinds.get(arm) } : {});

  const table = (caption, header, rows, labels = 1) =>
    scrolling(h("div", { class: "w", tabindex: 0, role: "region", "aria-label": caption },
      h("table", {}, h("caption", {}, caption),
        h("thead", {}, h("tr", {}, header.map((cell) => h("th", { scope: "col", title: cell.title }, cell.name ?? cell)))),
        h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) =>
          place ? h("td", { class: place < labels ? "l" : null }, cell) : h("th", { scope: "row", ...armed(cell) }, cell))))))));

  // Episodes

  const chip = ([text, tone, strength]) =>
    [h("i", { class: `c ${tone}`, style: strength < 1 ? `--v:${strength}` : null }, text), " "];
  const plain = (text) => chip([text, "", 1]);

  // Tags are chips; their brackets are not seen, but are there for whoever copies the text or listens to it.
  const tag = (text) => h("i", { class: text[1] === "/" ? "tag end" : "tag" }, h("s", {}, "<"), text.slice(1, -1), h("s", {}, ">"));
  const written = (text) => text.split(/(<\/?[A-Za-z][\w-]*>)/).map((part, place) => (place % 2 ? tag(part) : part));

  const mark = (episode) => {
    const told = `${episode.arm}: ${episode.outcome}${episode.mistakes.includes("flawed") ? ", flawed" : ""}`;
    const sign = (SIGNS[episode.outcome] ?? "–") + (episode.mistakes.includes("flawed") ? "?" : "");
    return h("i", { class: `m ${episode.outcome}`, role: "img", "aria-label": told, title: told }, sign);
  };

  const found = ([title, place, marks]) => {
    const name = [bdi(title), marks && h("b", {}, ` ${marks}`)];
    if (place === null) return h("li", {}, name);
    const [id, , text] = data.passages[place];
    return h("li", {}, folded(name, () => h("p", { dir: "auto" }, text, " ", h("code", {}, bdi(id)))));
  };

  const step = (one, number, level) =>
    h("div", { class: "s" },
      h(`h${level}`, {}, `${number}. ${one.agent ? `${one.agent}, ` : ""}${one.kind}`), " ", one.chips.map(chip),
      one.evidence && note("Evidence held: ", bdi(one.evidence)),
      h("p", { dir: "auto" }, one.said ? written(one.said) : "(nothing)"),
      one.hits.length > 0 && folded(plural(one.hits.length, "passage") + (one.gold ? `, ${one.gold} gold` : ""),
        () => h("ul", {}, one.hits.map(found)), { class: "h" }));

  const ending = (episode, level) =>
    h("div", { class: "s end" },
      h(`h${level}`, {}, "Answer"), " ",
      chip([`${episode.outcome} ${SIGNS[episode.outcome] ?? "–"}`, { right: "good", unscored: "" }[episode.outcome] ?? "bad", 1]),
      plain(episode.status), plain(episode.scores), episode.rewards.map(chip),
      h("p", { dir: "auto" }, h("b", {}, episode.prediction || "(none)")),
      episode.error && h("p", { dir: "auto" }, episode.error));

  const article = (episode, title, level = 4) =>
    h("article", { class: "e", style: `--n:${episode.steps.length + 2}` },
      h(`h${level}`, armed(title), bdi(title)),
      episode.steps.map((one, place) => step(one, place + 1, level + 1)), ending(episode, level + 1));

  const about = (question) =>
    h("div", { class: "about" },
      note("Accepted: ", question.answers ? bdi(question.answers) : "–", question.hops && ` · ${plural(question.hops, "hop")}`,
        question.type && [" · ", bdi(question.type)], " · ", h("code", {}, bdi(question.id))),
      question.gold.length > 0 && h("details", { class: "g", open: true }, h("summary", {}, "Gold chain"),
        h("ol", {}, question.gold.map(([asked, answer]) => h("li", {}, bdi(asked), " ", h("b", {}, bdi(answer)))))));

  // Episodes side by side; a keyboard scrolls what is wider than the page.
  const beside = (question, articles) =>
    h("div", { class: "beside" }, about(question),
      h("div", { class: "arms", tabindex: 0, role: "group", "aria-label": "Episodes side by side" }, articles));

  // Counts: each leads to the list of episodes, with the filters that leave just those

  const leads = (count, filters) =>
    count === null || count === undefined ? "–" : count === 0 ? "0"
      : h("a", { href: `#${new URLSearchParams(filters)}` }, String(count));

  const drawCounts = () => {
    if (!data.counts.length) return into("mistakes", h("p", {}, "– No evaluation is finished."));
    const headings = Object.entries(data.mistakes);
    const place = ({ arm, dataset }) => ({ arm: data.arms.indexOf(arm), dataset });
    into("mistakes",
      table("Episodes by arm; each count leads to its episodes",
        ["arm", "dataset", "n", ...headings.map(([, [name, title]]) => ({ name, title }))],
        data.counts.map((row) => [row.arm, row.dataset, String(row.n),
          ...headings.map(([mistake]) => leads(row.mistakes[mistake], { ...place(row), mistake }))]), 2),
      note(headings.map(([, [name, meaning]]) => `${name[0].toUpperCase()}${name.slice(1)}: ${meaning}. `),
        "An episode may be in several columns. A dash: not judged."));
    const judged = data.counts.filter((row) => row.untrue);
    const none = "no untrue step";
    const kinds = [...new Set(judged.flatMap((row) => Object.keys(row.untrue)))].filter((kind) => kind !== none).sort();
    if (judged.length) {
      into("mistakes", table("Wrong and flawed episodes by the kind of their first untrue step",
        ["arm", "dataset", ...kinds, none],
        judged.map((row) => [row.arm, row.dataset,
          ...[...kinds, none].map((untrue) => leads(row.untrue[untrue] ?? 0, { ...place(row), untrue }))]), 2));
    }
  };

  const drawPair = () => {
    const { pair } = data;
    if (!pair) return into("arms", h("p", {}, "– No two arms answered the same question differently well."));
    into("arms",
      h("p", {}, `${pair.first} against ${pair.second}, on the questions that both answered and neither failed: ` +
        `${pair.better} better with the second, ${pair.worse} worse. Any other two can be chosen in the list of episodes.`),
      table("Where they differ, the largest difference first",
        ["question", "difference in EM", "in F1", pair.first, pair.second],
        pair.rows.map(([question, text, em, f1, one, other]) =>
          [h("a", { href: `#q${question}` }, bdi(text)), em, f1, bdi(one), bdi(other)])),
      pair.more > 0 && note(`${pair.more} more differ; the list of episodes has them, sorted by difference.`));
  };

  // The list of episodes and its filters

  const lower = (...texts) => texts.flat(Infinity).join(" ").toLowerCase();
  const asks = (question) => (question.words ??= lower(question.text, question.answers, question.id, question.gold));
  const says = (episode) => (episode.words ??=
    lower(episode.prediction, episode.error, episode.steps.map((one) => [one.kind, one.agent, one.said, one.hits.map(([title]) => title)])));
  const unique = (values) => [...new Set(values)].sort((a, b) => (a > b ? 1 : a < b ? -1 : 0));

  const choice = (name, label, options) =>
    h("label", {}, `${label} `, h("select", { name }, options.map(([value, text]) => h("option", { value }, text))));

  const filters = () => {
    const all = data.questions.flatMap((question) => question.episodes), named = (values) => values.map((one) => [one, one]);
    const arms = data.arms.map((arm, place) => [String(place), arm]), any = ["", "all"];
    const kinds = unique(all.map((one) => one.untrue).filter(Boolean));
    return h("form", { id: "filters" },
      choice("arm", "Arm", [any, ...arms]), choice("against", "Against", [["", "none"], ...arms]),
      choice("dataset", "Dataset", [any, ...named(unique(data.questions.map((one) => one.dataset)))]),
      choice("outcome", "Answer", [any, ...named(["right", "wrong", "failed"])]),
      choice("mistake", "Mistake", [any, ...Object.entries(data.mistakes).map(([name, [heading]]) => [name, heading])]),
      choice("untrue", "First untrue step", [any, ...named(kinds)]),
      choice("hops", "Hops", [any, ...named(unique(data.questions.map((one) => one.hops).filter(Boolean)).map(String))]),
      choice("status", "Stop", [any, ...named(unique(all.map((one) => one.status)))]),
      choice("searching", "Searched", [any, ["over", "too much"], ["under", "too little"]]),
      h("label", {}, h("input", { type: "checkbox", name: "differ" }), " only where the two differ, sorted by difference"),
      h("label", {}, "Text ", h("input", { type: "search", name: "text" })),
      h("button", { type: "button", id: "unfold" }, "Unfold all shown"), h("button", { type: "reset" }, "Show all"),
      h("output", { id: "shown", "aria-live": "polite" }));
  };

  // A question, folded, with the articles of its episodes; those that a filter hides are hidden.
  const listed = (question, number) => {
    const fold = folded([h("h3", {}, bdi(question.text)), " ", question.episodes.map(mark)],
      () => beside(question, question.episodes.map((episode, place) =>
        Object.assign(article(episode, episode.arm), { id: `q${number}e${place}`, hidden: !fold.matching.includes(episode) }))),
      { class: "q", id: `q${number}` });
    return Object.assign(fold, { question, matching: question.episodes });
  };

  const show = (fold, matching) => {
    fold.matching = matching;
    fold.hidden = !matching.length;
    fold.querySelectorAll(".arms > .e").forEach((one, place) => { one.hidden = !matching.includes(fold.question.episodes[place]); });
  };

  const drawEpisodes = () => {
    if (!data.questions.length) return into("episodes", h("p", {}, "– There are none yet."));
    const form = filters(), list = h("div", { id: "list" }, data.questions.map(listed)), folds = [...list.children];
    into("episodes", data.mended && note(`Open at first: ${data.mended[0]} answers it wrongly, ${data.mended[1]} rightly.`), form, list);
    if (data.mended) {
      unfold(folds[0]);
      const place = folds[0].question.episodes.findIndex((one) => one.arm === data.mended[0]);
      const before = document.getElementById(`q0e${place}`), side = before.parentElement;
      side.scrollLeft = before.offsetLeft - side.offsetLeft; // both in view, where there are many arms
    }

    const filter = () => {
      const want = Object.fromEntries(new FormData(form)), words = want.text.toLowerCase().trim();
      const chosen = [want.arm, want.against].filter(Boolean).map((place) => data.arms[place]);
      const compares = chosen.length === 2 && chosen[0] !== chosen[1], differ = compares && form.elements.differ.checked;
      form.elements.differ.disabled = !compares;
      const fits = (question, episode) =>
        (!want.dataset || question.dataset === want.dataset) && (!want.hops || String(question.hops) === want.hops) &&
        (!want.outcome || episode.outcome === want.outcome) && (!want.mistake || episode.mistakes.includes(want.mistake)) &&
        (!want.untrue || episode.untrue === want.untrue) && (!want.status || episode.status === want.status) &&
        (!want.searching || episode.searching === want.searching || episode.searching === "both") &&
        (!words || asks(question).includes(words) || says(episode).includes(words));
      // How much better the second arm did; nothing where one has no answer or failed.
      const gap = ({ episodes }) => {
        const [one, other] = chosen.map((arm) => episodes.find((episode) => episode.arm === arm)?.worth ?? null);
        return one === null || other === null ? 0 : Math.abs(other - one);
      };
      let shown = 0, asked = 0;
      for (const fold of folds) {
        const sides = fold.question.episodes.filter((one) => !chosen.length || chosen.includes(one.arm));
        let matching = sides.filter((one) => fits(fold.question, one));
        if (compares && matching.length) matching = sides; // both sides, where one of them fits
        if (differ && !gap(fold.question)) matching = [];
        show(fold, matching);
        shown += matching.length;
        asked += matching.length > 0;
      }
      const order = differ ? [...folds].sort((a, b) => gap(b.question) - gap(a.question)) : folds;
      if (order.some((fold, place) => list.children[place] !== fold)) list.append(...order);
      document.getElementById("shown").textContent = `${plural(shown, "episode")} of ${plural(asked, "question")}`;
    };

    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(filter));
    document.getElementById("unfold").addEventListener("click", () => folds.filter((fold) => !fold.hidden).forEach(unfoldAll));
    filter();
    return { form, filter };
  };

  const unfoldAll = (fold) => { unfold(fold); fold.querySelectorAll("details").forEach(unfoldAll); };

  // Trees are drawn, depth from left to right and a row for each leaf, and listed: there, a node with nothing below it
  // has nothing to unfold

  const COLUMN = 110, ROW = 22, MARGIN = 10;
  const drawing = (root) => {
    const edges = [], nodes = [];
    let leaves = 0, right = 0;
    const grow = (one, x) => {
      right = Math.max(right, x + COLUMN);
      const below = one.children.map((child) => [child, grow(child, x + COLUMN)]);
      const y = below.length ? (below[0][1] + below.at(-1)[1]) / 2 : MARGIN + ROW * leaves++;
      for (const [child, to] of below) {
        const middle = x + COLUMN / 2;
        edges.push(svg("path", { class: child.chosen ? "chosen" : null, d: `M${x},${y}C${middle},${y} ${middle},${to} ${x + COLUMN},${to}` }));
      }
      const radius = 3 + 5 * Math.sqrt(one.size / (root.size || 1));
      nodes.push(svg("g", {}, svg("title", {}, [one.kind, one.figures[0], one.ended, one.said].filter(Boolean).join("\n")),
        svg("circle", { class: one.figures[1], cx: x, cy: y, r: radius }), svg("text", { x: x + radius + 3, y: y + 4 }, one.kind)));
      return y;
    };
    grow(root, MARGIN);
    const height = MARGIN + ROW * leaves;
    return scrolling(h("div", { class: "w", tabindex: 0, role: "region", "aria-label": "The tree, drawn" },
      svg("svg", { class: "grown", width: right, height, viewBox: `0 0 ${right} ${height}`, role: "img",
        "aria-label": `A tree of ${plural(nodes.length, "node")}; the list below has them all` }, edges, nodes)));
  };

  const node = (one) => {
    const line = [one.chosen && [h("b", { title: "on the most visited path" }, "★"), " "], h("b", {}, one.kind), " ", chip(one.figures),
      one.ended && plain(one.ended), one.judged.length > 0 && plain(plural(one.judged.length, "judgement")), bdi(written(one.said))];
    if (!one.judged.length && !one.children.length) return h("li", {}, line);
    return h("li", {}, h("details", { open: one.chosen }, h("summary", {}, line),
      one.judged.length > 0 && h("ul", { class: "n" }, one.judged.map(([relation, other, why]) =>
        h("li", {}, `judged ${relation}`, other && [" “", bdi(other), "”"], why && [": ", bdi(why)]))),
      one.children.length > 0 && h("ul", {}, one.children.map(node))));
  };

  const tree = (one) =>
    folded(bdi(one.question.text), () => [about(one.question), drawing(one.root), h("ul", { class: "tree" }, node(one.root)),
      one.cut > 0 && note(`${one.cut} of its nodes, with the fewest visits, are left out.`)], { class: "t" });

  const drawTrees = () => {
    if (!data.trees.length) return into("trees", h("p", {}, "– No stage searched."));
    for (const { stage, searched, read, trees } of data.trees) {
      into("trees", h("h3", {}, stage),
        note(`${trees.length} of ${searched} trees: where least was decided${read < searched ? `, of the first ${read}` : ""}.`),
        trees.map(tree));
    }
    into("trees", note("Drawn: the larger, the more visits; the thick line is the most visited path. N: visits. Q: mean backed-up value. P: prior. ★: the most visited path."));
  };

  // Training: episodes of iterations, and the same questions along a curve

  const iteration = ({ iteration: number, update, trees, episodes }) =>
    folded(`Iteration ${number}, after update ${update}`, () => [trees.map(tree), episodes.map((one) =>
      h("div", { class: "one" }, h("h4", {}, bdi(one.question.text)), beside(one.question, [article(one.episode, one.name)])))]);

  const changed = ({ question, points }) =>
    folded(bdi(question.text), () => beside(question, points.map(({ update, episode }) =>
      episode ? article(episode, `after update ${update}`)
        : h("article", { class: "e same" }, h("h4", {}, `after update ${update}`), note("the same steps")))));

  const drawTraining = () => {
    for (const { stage, points, more } of data.iterations) {
      into("training", h("h3", {}, `${stage}: iterations`), points.map(iteration),
        more > 0 && note(`${more} more iterations are left out.`));
    }
    for (const curve of data.minds) {
      const verdict = (outcome) => h("i", { class: `m ${outcome}`, role: "img", "aria-label": outcome }, SIGNS[outcome] ?? "–");
      into("training", h("h3", {}, `${curve.stage}: the same questions of ${curve.dataset} along its curve`),
        table(`${curve.stage}, ${curve.dataset}: right (✓) or wrong (✗) after so many updates; those that change most come first`,
          ["question", ...curve.updates.map(String)], curve.rows.map(([text, outcomes]) => [bdi(text), ...outcomes.map(verdict)])),
        curve.more > 0 && note(`${curve.more} more questions are left out.`), curve.changed.map(changed),
        curve.more_changed > 0 && note(`The episodes of ${curve.more_changed} more questions whose verdict changed are left out.`));
    }
    if (!data.iterations.length && !data.minds.length) into("training", h("p", {}, "– None were kept."));
  };

  // Figures. Lines: a small chart for each panel, a line for each label, told apart by colour and by dashes

  const WIDTH = 300, HEIGHT = 160, LEFT = 48, BOTTOM = 34, EDGE = 8;
  const short = (value) => String(Number(value.toPrecision(3)));
  const hue = (label, place) => (kinds.has(label) ? `k-${kinds.get(label)}` : `l${place % 6}`);
  const look = (place, one, label) => ({ class: one.reference ? "line reference" : `line ${hue(label, place)}`,
    "stroke-dasharray": one.reference ? "2 2" : ["", "6 3", "2 2", "8 3 2 3", "1 3"][place % 5] || null });
  const scale = (values, start, end) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return Object.assign((value) => start + ((value - low) / (high - low || 1)) * (end - start), { low, high });
  };
  // What an axis shows: at least 5 % to each side of its middle, of the value there or of the whole range that ends at
  // `most`; not beyond 0 and `most`, where no value is.
  const range = (values, most) => {
    const [least, greatest] = [Math.min(...values), Math.max(...values)], middle = (least + greatest) / 2;
    const half = Math.max((greatest - least) / 2, 0.05 * (most ?? Math.abs(middle))) || 1;
    const [low, high] = [middle - half, middle + half];
    if (least >= 0 && low < 0) return [0, high - low];
    return most && greatest <= most && high > most ? [low - (high - most), most] : [low, high];
  };
  const labelled = (panels) => [...new Set(Object.values(panels).flatMap(Object.keys))];

  // The values where a pointer is, of all lines that have some there
  const hovered = (drawn, x, axis, series) => {
    const tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    const places = unique(Object.values(series).flatMap((one) => one.points.map((point) => point[0])));
    drawn.addEventListener("pointermove", (event) => {
      const box = drawn.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * WIDTH;
      const place = places.reduce((best, one) => (Math.abs(x(one) - at) < Math.abs(x(best) - at) ? one : best));
      const told = Object.entries(series).map(([label, one]) => [label, one.points.find((point) => point[0] === place)]);
      tip.textContent = [`${short(place)} ${axis}`, ...told.filter((one) => one[1]).map(([label, point]) => `${label}: ${short(point[1])}`)].join("\n");
      tip.style[at < WIDTH / 2 ? "right" : "left"] = "0";
      tip.style[at < WIDTH / 2 ? "left" : "right"] = "auto";
      tip.hidden = false;
    });
    drawn.addEventListener("pointerleave", () => { tip.hidden = true; });
    return [drawn, tip];
  };

  const chart = (name, series, { x: axis, shares, most }, labels) => {
    const points = Object.values(series).flatMap((one) => [...one.points, ...(one.seeds ?? []).flat()]);
    const x = scale(shares ? [0, 1] : points.map((point) => point[0]), LEFT, WIDTH - EDGE);
    const y = scale(shares ? [0, 1] : range(points.map((point) => point[1]), most[name]), HEIGHT - BOTTOM, EDGE);
    const path = (all) => all.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
    const text = (value, left, top, anchor) => svg("text", { x: left, y: top, "text-anchor": anchor }, value);
    return h("div", { class: "chart" }, h("p", {}, name), hovered(
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name} by ${axis}` },
        [...new Set([y.low, (y.low + y.high) / 2, y.high])].map((value) => [
          svg("line", { class: "grid", x1: LEFT, x2: WIDTH - EDGE, y1: y(value), y2: y(value) }),
          text(short(value), LEFT - 4, y(value) + 4, "end")]),
        text(short(x.low), LEFT, HEIGHT - 20, "start"), text(short(x.high), WIDTH - EDGE, HEIGHT - 20, "end"),
        text(axis, (LEFT + WIDTH) / 2, HEIGHT - 6, "middle"),
        shares && svg("polyline", { class: "line reference", "stroke-dasharray": "1 3", points: path([[0, 0], [1, 1]]) }),
        Object.entries(series).map(([label, one]) => {
          const drawn = look(labels.indexOf(label), one, label);
          const few = one.points.length <= 20 ? one.points : [];
          return [(one.seeds ?? []).map((all) => svg("polyline", { ...drawn, opacity: 0.3, points: path(all) })),
            svg("polyline", { ...drawn, points: path(one.points) }, svg("title", {}, label)),
            few.map((point, place) => svg("circle", { class: drawn.class, cx: x(point[0]), cy: y(point[1]),
              r: one.sizes ? 1.5 + 5 * Math.sqrt(one.sizes[place]) : 1.5 }))];
        })), x, axis, series));
  };

  const lines = (figure) => {
    const labels = labelled(figure.panels), of = (label) => Object.values(figure.panels).find((series) => series[label])[label];
    return [h("div", { class: "charts" }, Object.entries(figure.panels).map(([name, series]) => chart(name, series, figure, labels))),
      h("figcaption", { class: "n" }, labels.map((label, place) => [
        svg("svg", { class: "key", viewBox: "0 0 30 10", "aria-hidden": "true" },
          svg("polyline", { ...look(place, of(label), label), points: "0,5 30,5" })), ` ${label} `]))];
  };

  // Dots: a row for each label, a column for each panel, on one scale: the value, its interval, seeds, what is beside it

  const dots = ({ panels, axis, chance, most }) => {
    const all = Object.values(panels).flatMap(Object.values), others = unique(all.flatMap((dot) => Object.keys(dot.beside)));
    const values = all.flatMap((dot) => [dot.value, dot.low, dot.high, ...dot.seeds, ...Object.values(dot.beside)]);
    const x = scale(range([...values, chance].filter((value) => value !== null), most), 6, 194), digits = most === 1 ? 3 : 1;
    const cell = (dot, label) => !dot ? "–" : svg("svg", { class: `dot ${hue(label, 0)}`, viewBox: "0 0 200 18", role: "img", "aria-label": bounded(dot, digits) },
      svg("title", {}, [`${label}: ${bounded(dot, digits)}`, dot.seeds.length && `seeds ${dot.seeds.map((value) => fixed(value, digits)).join(", ")}`,
        ...Object.entries(dot.beside).map(([name, value]) => `${name} ${fixed(value, digits)}`)].filter(Boolean).join("\n")),
      chance !== null && svg("line", { class: "line reference", "stroke-dasharray": "1 3", x1: x(chance), x2: x(chance), y1: 0, y2: 18 }),
      dot.low !== null && svg("line", { class: "line", x1: x(dot.low), x2: x(dot.high), y1: 10, y2: 10 }),
      dot.seeds.map((value) => svg("circle", { class: "seed", cx: x(value), cy: 3, r: 2 })),
      svg("circle", { class: "value", cx: x(dot.value), cy: 10, r: 4 }),
      Object.entries(dot.beside).map(([name, value]) =>
        svg("rect", { class: `line l${1 + (others.indexOf(name) % 5)}`, x: x(value) - 3, y: 7, width: 6, height: 6 })));
    return [h("table", {},
      h("thead", {}, h("tr", {}, h("td"), Object.keys(panels).map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, labelled(panels).map((label) =>
        h("tr", {}, h("th", { scope: "row" }, label, kinds.has(label) && [" ", h("i", { class: `kind ${hue(label)}` }, kinds.get(label))]),
          Object.values(panels).map((rows) => h("td", {}, cell(rows[label], label)))))),
      h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, axis),
        Object.keys(panels).map(() => h("td", {}, h("span", { class: "ends" }, h("span", {}, short(x.low)), h("span", {}, short(x.high)))))))),
      others.length > 0 && note(others.map((name, place) => [
        svg("svg", { class: "key", viewBox: "0 0 30 10", "aria-hidden": "true" },
          svg("rect", { class: `line l${1 + (place % 5)}`, x: 12, y: 2, width: 6, height: 6 })), ` ${name} `]))];
  };

  // The values of a figure: of each dot, of each point of a line, or of a long line its ends and how far it goes

  const fixed = (value, digits = 3) => (value === null ? "–" : value.toFixed(digits));
  const bounded = (dot, digits) =>
    fixed(dot.value, digits) + (dot.low === null ? "" : ` [${fixed(dot.low, digits)}, ${fixed(dot.high, digits)}]`);
  const rowsOf = (figure, row) => Object.entries(figure.panels).flatMap(([panel, series]) =>
    Object.entries(series).flatMap(([label, one]) => row(one).map((cells) => [panel, label, ...cells])));
  const dotValues = (figure, digits) => {
    const all = Object.values(figure.panels).flatMap(Object.values), others = unique(all.flatMap((dot) => Object.keys(dot.beside)));
    const seeds = all.some((dot) => dot.seeds.length);
    return [[figure.of, "name", figure.axis, ...others, ...(seeds ? ["single seeds"] : [])], rowsOf(figure, (dot) => [[
      bounded(dot, digits),
      ...others.map((name) => fixed(dot.beside[name] ?? null, digits)),
      ...(seeds ? [dot.seeds.map((value) => fixed(value, digits)).join(", ") || "–"] : [])]])];
  };
  const lineValues = (figure) => [[figure.of, "name", figure.x, "value"],
    rowsOf(figure, (line) => line.points.map(([x, y]) => [short(x), fixed(y)]))];
  const curveValues = (figure) => [[figure.of, "stage", figure.x, "first", "last", "least", "most"],
    rowsOf(figure, ({ points }) => {
      const values = points.map((point) => point[1]), [first, last] = [points[0], points.at(-1)];
      return [[`${first[0]} to ${last[0]}`, ...[first[1], last[1], Math.min(...values), Math.max(...values)].map((value) => fixed(value))]];
    })];

  const drawFigures = () => {
    const draw = (id, figure, drawn, values) => {
      const place = document.getElementById(id), caption = place.getAttribute("aria-label");
      grown(place, {}, [drawn(figure)]);
      place.after(folded(`${caption}: the values`, () => table(`${caption}, the values`, ...values, 2)));
    };
    const { arms, hops, auc, reliability } = data.figures;
    if (arms) draw("figure-arms", arms, dots, dotValues(arms, 1));
    if (hops) draw("figure-hops", hops, lines, lineValues(hops));
    if (auc) draw("figure-auc", auc, dots, dotValues(auc, 3));
    if (reliability) draw("figure-reliability", reliability, lines, lineValues(reliability));
    data.curves.forEach(([, figure], place) => draw(`figure-curves-${place}`, figure, lines, curveValues(figure)));
  };

  if (data.one) {
    const { question, episode, name } = data.one;
    document.getElementById("main").append(beside(question, [article(episode, name, 2)]));
    return;
  }
  document.querySelectorAll(".w").forEach(scrolling);
  drawFigures();
  drawCounts();
  drawPair();
  const list = drawEpisodes();
  drawTrees();
  drawTraining();

  // A link to filters sets just these; one to a question that a filter hides clears them first.
  const go = () => {
    const hash = decodeURIComponent(location.hash.slice(1)), told = new URLSearchParams(location.hash.slice(1));
    if (hash.includes("=") && list) {
      list.form.reset();
      for (const [name, value] of told) if (list.form.elements[name]) list.form.elements[name].value = value;
      list.filter();
      document.getElementById("episodes").scrollIntoView();
      return;
    }
    const target = hash && document.getElementById(hash);
    if (!target) return;
    if (target.hidden) { list.form.reset(); list.filter(); }
    if (target.tagName === "DETAILS") unfold(target);
    target.scrollIntoView();
  };
  addEventListener("hashchange", go);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) go(); // followed before: the address does not change
  });
  go();
})();
