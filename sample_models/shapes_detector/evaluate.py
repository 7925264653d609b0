"""Prints the mean average precision of an ONNX file on scenes.

Example:
    python evaluate.py model.onnx eval.npz
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
from detections import MeanAveragePrecision, found

BATCH_SIZE = 50


def main() -> None:
    """Reads the command line, evaluates and prints."""
    parser = argparse.ArgumentParser(description="Evaluate a detector.")
    parser.add_argument("model", type=Path)
    parser.add_argument("scenes", type=Path)
    arguments = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(arguments.model), options, ["CPUExecutionProvider"])
    scenes = np.load(arguments.scenes)
    images, boxes = scenes["image"], scenes["label"]
    metric, scores = MeanAveragePrecision(), []
    for start in range(0, len(images), BATCH_SIZE):
        truth = boxes[start : start + BATCH_SIZE]
        (output,) = session.run(None, {"image": images[start : start + BATCH_SIZE]})
        metric.update(output, truth)
        scores.append(found(output, truth))
    print(f"{len(images)} scenes: mAP {metric.compute():.4f}, F1 {np.concatenate(scores).mean():.4f}")


if __name__ == "__main__":
    main()
