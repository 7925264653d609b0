// Times of models in onnxruntime-web under node, which take turns at the same made-up input.
//
// node benchmarks/web.mjs FLOAT.onnx OTHER.onnx ...
//
// It needs the npm package onnxruntime-web here or in a folder above; times are this machine's, of one thread.

import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";

const ROUNDS = 30;
ort.env.wasm.numThreads = 1;
const models = [];
for (const path of process.argv.slice(2)) {
  const session = await ort.InferenceSession.create(readFileSync(path), { executionProviders: ["wasm"], logSeverityLevel: 3 });
  const inputs = {};
  for (const { name, type, shape } of session.inputMetadata) {
    const sizes = shape.map((size) => (typeof size === "number" ? size : 1));
    const count = sizes.reduce((one, other) => one * other, 1);
    // A wave of sines: no value repeats, and it is the same in every run.
    const wave = Array.from({ length: count }, (_, at) => Math.sin(at));
    const numbers =
      type === "int64"
        ? new BigInt64Array(count).fill(1n)
        : type === "uint8"
          ? Uint8Array.from(wave, (value) => 128 + 127 * value)
          : Float32Array.from(wave);
    inputs[name] = new ort.Tensor(type, numbers, sizes);
  }
  await session.run(inputs);
  models.push({ path, session, inputs, times: [] });
}
for (let round = 0; round < ROUNDS; round++) {
  for (const { session, inputs, times } of models) {
    const start = performance.now();
    await session.run(inputs);
    times.push(performance.now() - start);
  }
}
const typical = ({ times }) => times.sort((one, other) => one - other)[Math.floor(ROUNDS / 10)];
for (const model of models) {
  const size = (readFileSync(model.path).length / 1e6).toFixed(2);
  console.log(`${model.path}  ${size} MB  ${typical(model).toFixed(2)} ms  ${(typical(models[0]) / typical(model)).toFixed(2)} of float`);
}
process.exit(0);
