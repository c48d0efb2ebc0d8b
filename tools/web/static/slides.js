// Each slide as large as it fits: what is wider or higher than its slide is made smaller, once, when it is first shown.
window.addEventListener("load", () => {
  const [HEIGHT, LEAST] = [720, 0.45];
  const over = (slide) => {
    const right = slide.getBoundingClientRect().right - 8;
    const wide = [...slide.querySelectorAll("mjx-container, table, pre, svg[role=img]")].some((e) => e.getBoundingClientRect().right > right);
    return wide || slide.scrollHeight > HEIGHT + 1;
  };
  const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); // an explorer draws itself anew
  async function fit(slide) {
    if (!slide || slide.matches(".stack") || slide.dataset.everybyteFit) return;
    const live = slide.querySelector(".everybyte-live");
    if (live && !live.querySelector("svg[role=img]")) return void setTimeout(() => fit(slide), 100);
    let size = 1;
    slide.dataset.everybyteFit = "1";
    if (live) await painted();
    while (over(slide) && size > LEAST) {
      slide.style.setProperty("--everybyte-fit", String((size = Number((size - 0.05).toFixed(2)))));
      if (live) await painted();
    }
    slide.dataset.everybyteFit = String(size);
  }
  const ready = () => {
    Reveal.on("slidechanged", ({ currentSlide }) => fit(currentSlide));
    fit(Reveal.getCurrentSlide());
  };
  const wait = () => (window.Reveal?.isReady?.() ? Promise.resolve(window.MathJax?.startup?.promise).then(ready) : setTimeout(wait, 50));
  wait();
});
