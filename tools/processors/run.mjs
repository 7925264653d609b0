// Run the cases of a pack with ONNX Runtime's WebAssembly, and write what they give, as run.py does.
//
// node run.mjs PACK ANSWER
//
// It needs the npm package onnxruntime-web, installed in this file's folder or in one above it.

import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as ort from "onnxruntime-web";

// The types of safetensors: what ONNX Runtime calls each, and what holds its numbers.
const TYPES = {
  BOOL: ["bool", Uint8Array],
  U8: ["uint8", Uint8Array],
  I8: ["int8", Int8Array],
  U16: ["uint16", Uint16Array],
  I16: ["int16", Int16Array],
  U32: ["uint32", Uint32Array],
  I32: ["int32", Int32Array],
  U64: ["uint64", BigUint64Array],
  I64: ["int64", BigInt64Array],
  F16: ["float16", Uint16Array],
  F32: ["float32", Float32Array],
  F64: ["float64", Float64Array],
};
const NAMES = Object.fromEntries(Object.entries(TYPES).map(([name, [type]]) => [type, name]));

// Return the tensors of a file of safetensors, by run and name.
function read(path) {
  const content = readFileSync(path);
  const start = 8 + Number(content.readBigUInt64LE(0));
  const runs = {};
  for (const [key, entry] of Object.entries(JSON.parse(content.toString("utf8", 8, start)))) {
    if (key === "__metadata__") continue;
    const [type, Numbers] = TYPES[entry.dtype];
    const bytes = Uint8Array.from(content.subarray(...entry.data_offsets.map((offset) => start + offset)));
    const [run, name] = [key.slice(0, key.indexOf(":")), key.slice(key.indexOf(":") + 1)];
    (runs[run] ??= {})[name] = new ort.Tensor(type, new Numbers(bytes.buffer), entry.shape);
  }
  return runs;
}

// Write tensors as a file of safetensors.
function write(path, tensors, about) {
  const header = { __metadata__: about };
  const blocks = [];
  let start = 0;
  for (const [key, tensor] of Object.entries(tensors)) {
    const { buffer, byteOffset, byteLength } = tensor.data;
    const offsets = [start, start + byteLength];
    header[key] = { dtype: NAMES[tensor.type], shape: tensor.dims, data_offsets: offsets };
    blocks.push(Buffer.from(buffer, byteOffset, byteLength));
    start += byteLength;
  }
  const text = Buffer.from(JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([size, text, ...blocks]));
}

const [pack, answer] = process.argv.slice(2);
ort.env.wasm.numThreads = 1;
const answers = {};
const seconds = {};
for (const name of readdirSync(join(pack, "cases")).sort()) {
  const folder = join(pack, "cases", name);
  const began = performance.now();
  const model = readFileSync(join(folder, "model.onnx"));
  const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"], logSeverityLevel: 3 });
  for (const [run, inputs] of Object.entries(read(join(folder, "inputs.safetensors")))) {
    for (const [output, tensor] of Object.entries(await session.run(inputs))) {
      answers[`${name}:${run}:${output}`] = tensor;
    }
  }
  await session.release();
  seconds[name] = Math.round((performance.now() - began) / 100) / 10;
}
const runtime = `onnxruntime-web ${ort.env.versions.web}`;
write(answer, answers, { machine: "wasm", runtime, seconds: JSON.stringify(seconds) });
