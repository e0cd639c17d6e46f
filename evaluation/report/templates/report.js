// Filters, comparison and passages in place. Without it the page is whole: everything is listed and links lead there.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");
  const form = document.getElementById("filters"), list = document.getElementById("list");
  const articles = (question) => [...question.querySelectorAll(".arms > .e")];

  // A passage opens where it was found, in place of a jump to the end of the page.
  document.addEventListener("click", (event) => {
    const within = event.target.closest('a[href^="#"]'), link = event.target.closest(".h a");
    if (within && !link && within.hash === location.hash) reveal(); // followed before: the address does not change
    if (!link) return;
    event.preventDefault();
    const open = link.parentElement.querySelector("p");
    link.setAttribute("aria-expanded", String(!open));
    if (open) return open.remove();
    const text = document.querySelector(link.getAttribute("href") + " p").cloneNode(true);
    link.parentElement.append(text);
  });
  // Which makes its link a button; thousands of them are told so when they come into sight.
  document.addEventListener("toggle", ({ target }) => {
    if (!target.matches(".h")) return;
    for (const link of target.querySelectorAll("a:not([role])")) {
      link.setAttribute("role", "button");
      link.setAttribute("aria-expanded", "false");
    }
  }, true);
  // The space bar presses a button.
  document.addEventListener("keydown", (event) => {
    const button = event.key === " " && event.target.closest(".h a[role=button]");
    if (!button) return;
    event.preventDefault();
    button.click();
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
  const asks = (question) => `${textOf(question.firstElementChild)} ${textOf(question.querySelector(".about"))}`;
  const verdict = (worth) => (worth === "failed" ? worth : worth >= 1 ? "right" : "wrong");
  // How well each arm answered a question, also where the page has no room for its episode.
  const worths = new Map(questions.map((one) => [one, new Map(one.dataset.worth.split(" ").map((each) => each.split(":")))]));
  const named = (arm) => form.elements.arm.options[Number(arm) + 1].text;

  function filter() {
    const { arm, against, differ } = form.elements, arms = [arm.value, against.value].filter((one) => one !== "");
    const compares = arms.length === 2 && arms[0] !== arms[1];
    differ.disabled = !compares;
    const want = Object.fromEntries(new FormData(form)), words = want.text.toLowerCase().trim();
    const fits = (question, article) =>
      (!want.outcome || article.dataset.outcome === want.outcome) &&
      (!want.mistake || article.dataset.mistakes.split(" ").includes(want.mistake)) &&
      (!want.status || article.dataset.status === want.status) &&
      (!want.searching || article.dataset.searching === want.searching || article.dataset.searching === "both") &&
      (!words || asks(question).includes(words) || textOf(article).includes(words));
    const narrowed = want.outcome || want.mistake || want.status || want.searching;
    const gaps = new Map();
    let shown = 0, asked = 0;
    for (const question of questions) {
      const all = articles(question);
      const sides = arms.length ? all.filter((one) => arms.includes(one.dataset.arm)) : all;
      let matching = want.hops && question.dataset.hops !== want.hops ? [] : sides.filter((one) => fits(question, one));
      let listed = matching.length > 0;
      question.querySelector(".absent")?.remove();
      if (compares) {
        const worth = worths.get(question), [one, two] = arms.map((arm) => worth.get(arm));
        gaps.set(question, two - one || 0); // none where one has no answer or failed
        // Both sides are shown where one of them fits, and named where the page has no room for them.
        if (listed) matching = sides;
        else listed = want.differ && !sides.length && !narrowed && (!want.hops || question.dataset.hops === want.hops) &&
          (!words || asks(question).includes(words));
        if (want.differ && !gaps.get(question)) [matching, listed] = [[], false];
        const absent = arms.filter((arm) => worth.has(arm) && !sides.some((side) => side.dataset.arm === arm));
        if (listed && absent.length) {
          const note = Object.assign(document.createElement("p"), { className: "n absent" });
          const told = absent.map((arm) => `${named(arm)} ${verdict(worth.get(arm))}`);
          note.textContent = `Left out to keep the page small: ${told.join(", ")}.`;
          question.querySelector(".arms").before(note);
        }
      }
      for (const one of all) one.hidden = !matching.includes(one);
      question.hidden = !listed;
      shown += matching.length;
      asked += listed;
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
    for (const question of questions) {
      if (question.hidden) continue;
      for (const one of [question, ...question.querySelectorAll("details")]) one.open = true;
    }
  });
  filter();
  reveal();
})();
