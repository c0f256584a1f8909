// node page.mjs MODULES BROWSER URL FOLDER: a user of the chat page; writes a line for each thing that is seen
import { createRequire } from "node:module";

const [modules, executablePath, url, folder] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
const seen = (name) => page.screenshot({ path: `${folder}/${name}.png` }).then(() => console.log(name));
page.setDefaultTimeout(30_000);
try {
  await page.goto(url);
  await page.context().setOffline(true);
  await page.fill("input", "wipe it");
  await page.click("form button");
  await page.waitForSelector(".error:has-text('No connection')");
  await seen("away");
  await page.context().setOffline(false);
  await page.waitForFunction(() => document.querySelector(".assistant")?.textContent.startsWith("I will "));
  await seen("half");
  await page.reload();
  await page.waitForFunction(() => document.querySelector(".assistant")?.textContent.startsWith("I will "));
  if ((await page.textContent(".assistant")).includes("left")) throw new Error("this is no middle");
  await seen("reloaded");
  await page.click("text=Approve");
  await page.waitForSelector("text=It is wiped.");
  await seen("approved");
  await page.reload();
  await page.waitForSelector("text=It is wiped.");
  console.log(JSON.stringify(await page.$$eval("#log > *", (all) => all.map((one) => [one.className, one.textContent]))));
} finally {
  await browser.close();
}
