"""ONNX Runtime: sessions, threads, taps. A model and a batch go in, arrays come out."""
