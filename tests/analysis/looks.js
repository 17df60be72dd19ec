// How a page looks on its screen: an expression whose value JSON can hold.
(() => {
  const shown = [...document.querySelectorAll("body *")].filter((e) => !e.closest("style"));
  const owners = shown.filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  const labelled = (measure) => owners.map((e) => [e.textContent.trim().slice(0, 30), measure(e)]);

  // An SVG's letters are as high as its scale makes them.
  const scale = (e) => {
    const matrix = e.getScreenCTM && e.getScreenCTM();
    return matrix ? Math.hypot(matrix.b, matrix.d) : 1;
  };
  const letterPixels = (e) => parseFloat(getComputedStyle(e).fontSize) * scale(e);

  // Contrast and luminance as the Web Content Accessibility Guidelines 2.2 define them.
  const luminance = (colour) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.match(/[\d.]+/g).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (e) => {
    if (!e) return "rgb(255, 255, 255)";
    const colour = getComputedStyle(e).backgroundColor;
    return /, 0\)$/.test(colour) ? paper(e.parentElement) : colour;
  };
  const contrast = (e) => {
    const style = getComputedStyle(e);
    const both = [luminance(e instanceof SVGElement ? style.fill : style.color), luminance(paper(e))];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };

  const scrolls = (e) => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const isBeyond = (e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
  const curves = (svg) => [...svg.querySelectorAll("path")].filter((path) => path.getTotalLength() > 100);
  const area = (e) => e.getBoundingClientRect().width * e.getBoundingClientRect().height;
  return {
    pageWidth: document.scrollingElement.scrollWidth,
    screenWidth: document.documentElement.clientWidth,
    beyond: shown.filter((e) => !e.closest("svg") && !scrolls(e.parentElement) && isBeyond(e)).map((e) => e.tagName),
    letters: labelled(letterPixels),
    contrasts: labelled(contrast),
    boxes: [...document.querySelectorAll(".wide")].map((e) => [
      e.clientWidth, e.scrollWidth, e.querySelector("td").getBoundingClientRect().width,
    ]),
    charts: [...document.querySelectorAll("svg")].map((svg) => [area(svg), curves(svg).length]),
    images: [...document.images].map((image) => (image.complete ? image.naturalWidth : 0)),
  };
})()
