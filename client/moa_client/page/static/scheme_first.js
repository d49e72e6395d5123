// Sets the colours that were chosen before the first picture: a module would come too late.

(() => {
  try {
    const scheme = localStorage.getItem("moa.scheme");
    if (scheme === "light" || scheme === "dark") document.documentElement.dataset.scheme = scheme;
  } catch {
    // No storage: the colours are those of the system.
  }
})();
