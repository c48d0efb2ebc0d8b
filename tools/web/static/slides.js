// Each slide as large as it fits: words, formulas and tables grow or shrink together; a figure takes what they leave. Once,
// when the slide is first shown.
window.addEventListener("load", () => {
  const [HEIGHT, LEAST] = [704, 0.45];
  const over = (slide) => {
    const right = slide.getBoundingClientRect().right - 8 * Reveal.getScale();
    const wide = [...slide.querySelectorAll("mjx-math, table, pre, svg[role=img]")].some(
      (e) => e.getBoundingClientRect().right > right || (e.matches("pre") && e.scrollWidth > e.clientWidth + 1),
    );
    const bottoms = [...slide.children].filter((e) => !e.matches("aside")).map((e) => e.getBoundingClientRect().bottom);
    return wide || (Math.max(...bottoms) - slide.getBoundingClientRect().top) / Reveal.getScale() > HEIGHT;
  };
  const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); // an explorer draws itself anew
  const covered = (live) => {
    const sentence = live.querySelector(".everybyte-sentence").getBoundingClientRect();
    const inputs = [...live.querySelectorAll(".everybyte-explorer > :is(.widget-box, .widget-toggle-buttons)")];
    return inputs.some((e) => e.getBoundingClientRect().bottom > sentence.top);
  };
  async function fit(slide) {
    if (!slide || slide.matches(".stack") || "everybyteFit" in slide.dataset) return;
    const live = slide.querySelector(".everybyte-live");
    if (live && !live.querySelector("svg[role=img]")) return void setTimeout(() => fit(slide), 100);
    slide.dataset.everybyteFit = "";
    const image = live ? null : slide.querySelector("img");
    const wordy = slide.querySelectorAll("th").length > 4 || slide.querySelectorAll("tbody tr").length > 5; // it wraps when it grows
    let size = live ? 1.1 : image ? 1 : wordy ? 1.2 : 1.5;
    const set = async () => {
      slide.style.setProperty("--everybyte-fit", String(size));
      if (live) await painted();
    };
    if (image) {
      const top = (image.getBoundingClientRect().top - slide.getBoundingClientRect().top) / Reveal.getScale();
      image.style.cssText += `display: block; height: ${Math.max(HEIGHT - 12 - top, 200)}px`;
    }
    await set();
    while (size > LEAST) {
      if (live && covered(live)) live.classList.add("everybyte-above");
      if (!over(slide)) break;
      size = Number((size - 0.05).toFixed(2));
      await set();
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
