// Run cases with ONNX Runtime in JavaScript: what run.mjs (node) and index.html (a browser) have in common.

const FORMAT = "ptq.answer";
const VERSION = "1";
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
  F16: ["float16", globalThis.Float16Array ?? Uint16Array],
  F32: ["float32", Float32Array],
  F64: ["float64", Float64Array],
};
const NAMES = Object.fromEntries(Object.entries(TYPES).map(([name, [type]]) => [type, name]));

// Run all cases, and return the content of the answer file and how many cases failed.
//
// ort: onnxruntime-web or onnxruntime-node. read: returns the bytes of a file of the folder.
// whole: returns where a file lies, for a runtime that finds a model's constants there itself, or nothing.
// say: is given a line per case. about: provider, threads, repeats, name, emulated, machine, system, runtime.
export async function runCases(ort, read, say, about, whole) {
  const manifest = JSON.parse(new TextDecoder().decode(await read("manifest.json")));
  const [answers, seconds, faults] = [{}, {}, {}];
  for (const item of manifest.cases) {
    const title = [item.name, item.op, item.node].filter(Boolean).join(" ").padEnd(44);
    try {
      let [model, apart] = [await checked(read, item, "model"), {}];
      if (item.data) {
        const data = await checked(read, item, "data");
        if (whole) model = whole(item.model);
        else apart = { externalData: [{ path: item.data, data }] };
      }
      const runs = unpacked(ort, await checked(read, item, "tensors"));
      const [found, times] = await runCase(ort, model, apart, runs, about, item.op ? 0 : about.repeats);
      for (const [key, tensor] of Object.entries(found)) answers[`${item.name}:${key}`] = tensor;
      seconds[item.name] = times;
      say(`${title} ${(1000 * median(times)).toFixed(3).padStart(9)} ms  ${compare(found, runs)}`);
    } catch (error) {
      faults[item.name] = String(error?.message ?? error).replace(/\s+/g, " ").slice(0, 400);
      say(`${title} failed: ${faults[item.name]}`);
    }
  }
  const { name, machine, system, runtime, provider, threads, emulated = false } = about;
  const header = { format: FORMAT, format_version: VERSION, id: manifest.id };
  const content = packed(answers, {
    ...header,
    model_sha256: manifest.cases[0].model_sha256,
    ...{ name, machine, system, runtime, provider, threads: String(threads), emulated: String(emulated) },
    ...{ seconds: JSON.stringify(seconds), faults: JSON.stringify(faults) },
  });
  return { content, failed: Object.keys(faults).length };
}

// Return a file whose hash is the one in the manifest. Browsers have no hashes on a page without https.
async function checked(read, item, part) {
  const content = await read(item[part]);
  if (globalThis.crypto?.subtle) {
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
    const text = [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    if (text !== item[`${part}_sha256`]) throw new Error(`${item[part]} was changed or cut off: copy the folder again`);
  }
  return content;
}

async function runCase(ort, model, apart, runs, { provider, threads }, repeats) {
  const options = { executionProviders: [provider], intraOpNumThreads: threads, logSeverityLevel: 3, ...apart };
  const session = await ort.InferenceSession.create(model, options);
  const [found, times] = [{}, []];
  for (const [number, run] of runs.entries()) {
    const taken = [];
    let results;
    for (let count = 0; count <= repeats; count++) {
      const start = performance.now();
      results = await session.run(run.input);
      taken.push((performance.now() - start) / 1000);
    }
    for (const [name, tensor] of Object.entries(results)) {
      found[`${number}:${name}`] = { type: tensor.type, dims: tensor.dims, data: (await tensor.getData()).slice() };
    }
    times.push(median(repeats ? taken.slice(1) : taken));
  }
  await session.release();
  return [found, times];
}

// Say how far outputs are from what is expected; the workstation decides what that means.
function compare(found, runs) {
  let [largest, differing, count] = [0, 0, 0];
  for (const [number, run] of runs.entries()) {
    for (const [name, expected] of Object.entries(run.output ?? {})) {
      const tensor = found[`${number}:${name}`];
      if (String(tensor.dims) !== String(expected.dims)) return `has the shape ${tensor.dims}, expected ${expected.dims}`;
      const limits = run.tolerance[name].data;
      expected.data.forEach((value, index) => {
        const apart = Math.abs(Number(tensor.data[index]) - Number(value));
        if (!(apart <= limits[limits.length > 1 ? index : 0])) differing += 1;
        largest = Math.max(largest, apart);
      });
      count += expected.data.length;
    }
  }
  return differing ? `${differing} of ${count} values differ, by up to ${largest.toPrecision(6)}` : "as expected";
}

function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// Return the tensors of a file of safetensors, whose names are RUN:KIND:NAME.
function unpacked(ort, content) {
  const size = Number(new DataView(content.buffer, content.byteOffset).getBigUint64(0, true));
  const runs = [];
  const table = JSON.parse(new TextDecoder().decode(content.subarray(8, 8 + size)));
  for (const [key, entry] of Object.entries(table)) {
    if (key === "__metadata__") continue;
    const [type, Numbers] = TYPES[entry.dtype];
    const [begin, end] = entry.data_offsets;
    const numbers = new Numbers(content.slice(8 + size + begin, 8 + size + end).buffer);
    const [run, kind, ...name] = key.split(":");
    const kinds = (runs[Number(run)] ??= {});
    // Only inputs become tensors of ONNX Runtime: it takes no float64 in a browser, as tolerances are.
    const tensor = kind === "input" ? new ort.Tensor(type, numbers, entry.shape) : { dims: entry.shape, data: numbers };
    (kinds[kind] ??= {})[name.join(":")] = tensor;
  }
  for (const run of runs) run.input ??= {};
  return runs;
}

// Return the content of a file of safetensors, with texts about it.
function packed(tensors, about) {
  const header = { __metadata__: about };
  const blocks = [];
  let start = 0;
  for (const [key, { type, dims, data }] of Object.entries(tensors)) {
    const block = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    header[key] = { dtype: NAMES[type], shape: dims, data_offsets: [start, start + block.length] };
    blocks.push(block);
    start += block.length;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const content = new Uint8Array(8 + text.length + start);
  new DataView(content.buffer).setBigUint64(0, BigInt(text.length), true);
  content.set(text, 8);
  let place = 8 + text.length;
  for (const block of blocks) {
    content.set(block, place);
    place += block.length;
  }
  return content;
}
