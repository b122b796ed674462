// node check.mjs CHROMIUM PAGE.html... [--shots FOLDER] [--widths 360,1280]: what axe-core finds in each page, as JSON on standard output.
//
// Every page is opened offline, dark and light, at the widths given, with every part unfolded. Beside the checker's findings:
// whether the page is wider than the window, and what it asked the network. At WIDE columns scrolled tables are laid out whole:
// of text that a scroll box hides, no background can be told and so no contrast.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const words = process.argv.slice(2);
const option = (name, otherwise) => {
  const at = words.indexOf(name);
  return at < 0 ? otherwise : words.splice(at, 2)[1];
};
const shots = option("--shots", null);
const widths = option("--widths", "360,768,1280,1920").split(",").map(Number);
const [executablePath, ...pages] = words;
const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const WIDE = 5000;
const UNFOLD = ".scroll, pre { overflow: visible !important; } .wrap { max-width: none !important; }";

async function look(browser, page, width, colorScheme) {
  const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme, offline: true });
  const tab = await context.newPage();
  const asked = [];
  tab.on("request", (request) => request.url().startsWith("file:") || asked.push(request.url()));
  await tab.goto(pathToFileURL(path.resolve(page)).href);
  const name = `${path.basename(path.dirname(path.resolve(page)))}-${width}-${colorScheme}.png`;
  if (shots) await tab.screenshot({ path: path.join(shots, name) });
  const folded = await tab.evaluate(() => document.documentElement.scrollWidth);
  await tab.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
  const unfolded = await tab.evaluate(() => document.documentElement.scrollWidth);
  if (width === WIDE) await tab.addStyleTag({ content: UNFOLD });
  await tab.evaluate(axe);
  const found = await tab.evaluate(() => axe.run(document, { resultTypes: ["violations", "incomplete"] }));
  const told = (kind) =>
    found[kind].map((one) => ({
      rule: one.id,
      impact: one.impact,
      places: one.nodes.length,
      first: one.nodes[0].target.join(" "),
      html: one.nodes.map((node) => node.html.slice(0, 60)).slice(0, 400),
      why: (one.nodes[0].failureSummary || "").split("\n").slice(0, 3).join(" "),
    }));
  await context.close();
  const seen = { page, width, colorScheme, widest: Math.max(folded, unfolded), asked };
  return { ...seen, violations: told("violations"), incomplete: told("incomplete") };
}

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
try {
  const all = [];
  for (const page of pages)
    for (const width of [...widths, WIDE])
      for (const scheme of ["light", "dark"]) all.push(await look(browser, page, width, scheme));
  console.log(JSON.stringify(all, null, 1));
} finally {
  await browser.close();
}
