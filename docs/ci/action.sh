#!/bin/sh
# What action.yml runs: quantize a model, and fail if a gate fails.
#
# MODEL, DATA and EVAL_DATA may be empty: then the ptq.toml in the current folder names them. GATES are limits and other
# flags of ptq quantize, separated by spaces. RUN is the run directory.
# Exit status: 0 all gates passed, 3 a gate failed, 2 the input cannot be used, 1 a bug in ptq.
set -u

# Each of these is one word, whatever characters it has.
set --
if [ -n "$MODEL" ]; then set -- "$@" "$MODEL"; fi
if [ -n "$DATA" ]; then set -- "$@" --data "$DATA"; fi
if [ -n "$EVAL_DATA" ]; then set -- "$@" --eval-data "$EVAL_DATA"; fi

# Remove old reports, so that none is mistaken for this build's report.
rm -f "$RUN/report.json" "$RUN/report.md" "$RUN/junit.xml"
# GATES are several words.
# shellcheck disable=SC2086
ptq quantize "$@" --run "$RUN" $GATES
status=$?

if [ -n "${GITHUB_OUTPUT:-}" ]; then
    # Named for its weights: model_int8.onnx, model_q4.onnx, …; a run directory has one of them.
    model=$(find "$RUN" -maxdepth 1 -name 'model_*.onnx' | head -n 1)
    printf 'model=%s\nreport=%s\n' "${model:-$RUN/model_int8.onnx}" "$RUN/report.json" >> "$GITHUB_OUTPUT"
fi
exit $status
