// A quiz: one fieldset a question, checked one by one; the first answer to each counts for the score.

/** Text with `code` spans as nodes. */
export function marked(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

/** Right answers among those given first. answers: index of a choice, or null. */
export const score = (questions, answers) => questions.filter((q, i) => q.answer === answers[i]).length;

function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat());
  return element;
}

let instances = 0;

function render({ model, el }) {
  const uid = `ft-quiz-${++instances}`;
  const questions = model.get("questions");

  const tally = h("p", { class: "ft-tally", role: "status", "aria-live": "polite" });
  function count() {
    const answers = model.get("answers");
    const given = answers.filter((answer) => answer != null).length;
    const right = score(questions, answers);
    tally.textContent = given === 0 ? `${questions.length} questions. The first answer to each one counts.`
      : `${right} right of ${given} answered${given === questions.length ? ": that was the last one." : `, ${questions.length - given} to go.`}`;
  }

  const forms = questions.map((q, i) => {
    const result = h("div", { class: "ft-result", role: "status", "aria-live": "polite" });
    const choices = q.choices.map((choice, c) => {
      const id = `${uid}-${i}-${c}`;
      const input = h("input", { type: "radio", id, name: `${uid}-${i}`, value: c, onchange: () => {
        result.replaceChildren();
        for (const label of choices) delete label.dataset.verdict;
      } });
      return h("label", { class: "ft-choice", for: id }, input, h("span", {}, marked(choice)));
    });
    const check = h("button", { type: "submit", class: "ft-check-answer" }, "Check");

    function judge(event) {
      event.preventDefault();
      const chosen = choices.findIndex((label) => label.firstChild.checked);
      if (chosen < 0) {
        result.replaceChildren(h("p", {}, "Choose an answer first."));
        return;
      }
      const right = chosen === q.answer;
      for (const label of choices) delete label.dataset.verdict;
      choices[chosen].dataset.verdict = right ? "right" : "wrong";
      result.replaceChildren(
        h("p", {}, h("strong", { class: right ? "ft-right" : "ft-wrong" }, right ? "✓ Right. " : "✗ Not so. "), marked(q.explain[chosen])),
        h("p", { class: "ft-reread" }, right ? "More on this: " : "Reread, then try again: ", reread(q)));
      const answers = [...model.get("answers")];
      if (answers[i] == null) {
        answers[i] = chosen;
        model.set("answers", answers);
        model.save_changes();
      }
      count();
    }

    return h("form", { onsubmit: judge, novalidate: "" },
      h("fieldset", {}, h("legend", {}, h("span", { class: "ft-number" }, `${i + 1}. `), marked(q.question)),
        choices, check, result));
  });

  // In a notebook the section isn't on the page: name it instead of linking to nowhere.
  function reread(q) {
    return document.getElementById(q.section) ? h("a", { href: `#${q.section}` }, q.section_title)
      : h("cite", {}, q.section_title);
  }

  el.append(h("section", { class: "ft ft-quiz", "aria-labelledby": `${uid}-title` },
    h("h3", { id: `${uid}-title`, class: "ft-title" }, "Can you explain it?"), ...forms, tally));
  count();
  model.on("change:answers", count);
  return () => model.off("change:answers", count);
}

export default { render };
