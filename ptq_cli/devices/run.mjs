// Run these cases with ONNX Runtime under node, and write what they give, as run.py does.
//
// node run.mjs [--runtime onnxruntime-web] [--provider wasm] [--threads 1] [--repeats 10] [--name NAME] [--emulated] [-o FILE]
//
// It needs the npm package onnxruntime-web or onnxruntime-node, installed in this folder or in one above it.

import { closeSync, openSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { runCases } from "./cases.mjs";

const refuse = (text) => {
  console.error(`run.mjs: ${text}`);
  process.exit(2);
};
const options = {
  runtime: { type: "string", default: "onnxruntime-web" },
  provider: { type: "string" },
  threads: { type: "string", default: "1" },
  repeats: { type: "string", default: "10" },
  name: { type: "string", default: process.arch },
  emulated: { type: "boolean", default: false },
  output: { type: "string", short: "o", default: "answer.safetensors" },
};
let values;
try {
  ({ values } = parseArgs({ options }));
} catch (error) {
  refuse(`${error.message.split(". ")[0]}; it takes ${Object.keys(options).map((it) => `--${it}`).join(", ")}`);
}
const isWeb = values.runtime === "onnxruntime-web";
const ort = await import(values.runtime).catch((error) => refuse(`${error.message}: npm install ${values.runtime}`));
try {
  closeSync(openSync(values.output, "a")); // Before all runs, which take long on a small device.
} catch (error) {
  refuse(`cannot write: ${error.message}`);
}
if (isWeb) ort.env.wasm.numThreads = Number(values.threads);
const place = (name) => join(dirname(fileURLToPath(import.meta.url)), name);
const { content, failed } = await runCases(
  ort,
  async (name) => new Uint8Array(readFileSync(place(name))),
  console.log,
  {
    provider: values.provider ?? (isWeb ? "wasm" : "cpu"),
    threads: Number(values.threads),
    repeats: Number(values.repeats),
    name: values.name,
    emulated: values.emulated,
    machine: isWeb ? "wasm" : process.arch,
    system: process.platform,
    runtime: `${values.runtime} ${ort.env.versions[isWeb ? "web" : "node"]}`,
  },
  isWeb ? undefined : place,
);
writeFileSync(values.output, content);
console.log(`wrote ${values.output}`);
process.exit(failed ? 1 : 0);
