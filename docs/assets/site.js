"use strict";
(() => {
  // What is wider than the screen can be scrolled by keyboard.
  const reach = () => {
    for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
      if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
      else region.removeAttribute("tabindex");
    }
  };
  window.addEventListener("load", reach);
  window.addEventListener("resize", reach);
})();
