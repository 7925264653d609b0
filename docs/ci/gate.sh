#!/bin/sh
# Stop a build whose int8 model lost too much accuracy.
#
#   sh gate.sh MODEL [any flag of ptq quantize]
#
# The folder's ptq.toml names the data and the architecture. MAX_DROP is the limit, RUN the run directory.
# On GitHub the report is shown on the page of the build; junit.xml is for servers that read tests.
# Exit status: 0 the gate passed, 3 it failed, 2 the input cannot be used, 1 a bug in ptq.
set -u

RUN=${RUN:-ptq-run}
MAX_DROP=${MAX_DROP:-top1=0.01}

# An old report must not pass for this build's.
rm -f "$RUN/report.json" "$RUN/report.md" "$RUN/junit.xml"
ptq quantize "$@" --run "$RUN" --max-drop "$MAX_DROP"
status=$?

case $status in
    0) echo "gate: passed, $RUN/model.int8.onnx may ship" ;;
    3) echo "gate: failed, see $RUN/report.md" >&2 ;;
    *) echo "gate: not decided, ptq ended with status $status" >&2 ;;
esac
exit $status
