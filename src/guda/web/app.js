"use strict";
// What the page does by itself: preview of an upload, dropping files, and answers as they come (server-sent events).
(() => {
  const $ = (id) => document.getElementById(id);
  const drop = $("drop"), input = $("picture");
  if (drop && input) {
    const image = $("preview").querySelector("img"), caption = $("preview").querySelector("figcaption");
    const show = () => {
      const file = input.files[0];
      $("preview").hidden = !file;
      if (image.src) URL.revokeObjectURL(image.src);
      if (!file) return;
      image.src = URL.createObjectURL(file);
      caption.textContent = `${file.name}, ${Math.max(1, Math.round(file.size / 1024)).toLocaleString("en-US")} KB`;
    };
    image.addEventListener("load", () => { caption.textContent += `, ${image.naturalWidth} \u00d7 ${image.naturalHeight}`; });
    input.addEventListener("change", show);
    show(); // a reload may keep what was chosen
    for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) drop.addEventListener(kind, (e) => {
      e.preventDefault();
      drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
      if (kind === "drop" && e.dataTransfer.files.length) { input.files = e.dataTransfer.files; show(); }
    });
  }
  const answer = $("answer");
  if (answer && answer.dataset.events) {
    const source = new EventSource(answer.dataset.events); // opened again by the browser where a connection is lost
    const fill = (e) => { answer.innerHTML = JSON.parse(e.data); };
    source.addEventListener("answer", fill);
    source.addEventListener("done", (e) => {
      source.close();
      const to = JSON.parse(e.data);
      if (to) location.replace(to);
    });
  }
})();
