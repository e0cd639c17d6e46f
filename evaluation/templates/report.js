// Filters, comparison and passages in place. Without it the page is whole: everything is listed and links lead there.
"use strict";
(() => {
  const form = document.getElementById("filters"), list = document.getElementById("list");
  const articles = (question) => [...question.querySelectorAll(".arms > .e")];

  // A passage opens where it was found, in place of a jump to the end of the page.
  document.addEventListener("click", (event) => {
    const link = event.target.closest(".h a");
    if (!link) return;
    event.preventDefault();
    const open = link.parentElement.querySelector("p");
    if (open) return open.remove();
    const text = document.querySelector(link.getAttribute("href") + " p").cloneNode(true);
    link.parentElement.append(text);
  });

  // A link that leads to something a filter has hidden clears the filters first.
  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (form && target.closest("#list") && (target.hidden || target.closest("[hidden]"))) { form.reset(); filter(); }
    for (let up = target; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    target.scrollIntoView();
  };

  addEventListener("hashchange", reveal);

  if (!form || !list) return reveal();
  const questions = [...list.children], order = new Map(questions.map((one, place) => [one, place]));
  const texts = new Map();
  let sorted = false;
  const textOf = (one) => {
    if (!texts.has(one)) texts.set(one, one.textContent.toLowerCase());
    return texts.get(one);
  };
  const worth = (article) => (article.dataset.outcome === "right" ? 1 : 0) + Number(article.dataset.f1) / 1000;

  function filter() {
    const want = Object.fromEntries(new FormData(form)), words = want.text.toLowerCase().trim();
    const fits = (question, article) =>
      (!want.outcome || article.dataset.outcome === want.outcome) &&
      (!want.mistake || article.dataset.mistakes.split(" ").includes(want.mistake)) &&
      (!want.status || article.dataset.status === want.status) &&
      (!want.searching || article.dataset.searching === want.searching || article.dataset.searching === "both") &&
      (!words || textOf(question.firstElementChild).includes(words) || textOf(article).includes(words));
    const arms = [want.arm, want.against].filter((arm) => arm !== "");
    const compares = arms.length === 2 && arms[0] !== arms[1];
    const gaps = new Map();
    let shown = 0, asked = 0;
    for (const question of questions) {
      const all = articles(question);
      const sides = arms.length ? all.filter((one) => arms.includes(one.dataset.arm)) : all;
      let matching = want.hops && question.dataset.hops !== want.hops ? [] : sides.filter((one) => fits(question, one));
      if (compares) {
        const pair = arms.map((arm) => all.find((one) => one.dataset.arm === arm));
        gaps.set(question, pair[0] && pair[1] ? worth(pair[1]) - worth(pair[0]) : 0);
        // Both sides are shown where one of them fits.
        if (matching.length) matching = sides;
        if (want.differ && !gaps.get(question)) matching = [];
      }
      for (const one of all) one.hidden = !matching.includes(one);
      question.hidden = !matching.length;
      shown += matching.length;
      asked += matching.length > 0;
    }
    const sorts = compares && want.differ;
    if (sorts || sorted) {
      const place = (one) => (sorts ? -Math.abs(gaps.get(one)) : 0);
      list.append(...[...questions].sort((a, b) => place(a) - place(b) || order.get(a) - order.get(b)));
    }
    sorted = sorts;
    document.getElementById("shown").textContent = `${shown} episodes of ${asked} questions`;
  }

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("unfold").addEventListener("click", () => {
    for (const question of questions) if (!question.hidden) question.open = true;
  });
  filter();
  reveal();
})();
