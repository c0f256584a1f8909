// page.mjs MODULES BROWSER URL: opens a page of another origin that uses the client, and prints what it shows
import { createRequire } from "node:module";

const [modules, executablePath, url] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(60_000);
  await page.goto(url);
  console.log(await page.textContent("#seen"));
} finally {
  await browser.close();
}
