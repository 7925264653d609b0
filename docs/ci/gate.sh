#!/bin/sh
# Fail a build if the int8 model loses too much accuracy.
#
#   sh gate.sh MODEL [any flag of ptq quantize]
#
# The ptq.toml in the current folder names the data and the architecture. MAX_DROP is the limit, RUN the run directory.
# GitHub shows the report on the page of the build; junit.xml is for servers that read test results.
# Exit status: 0 the gate passed, 3 the gate failed, 2 the input cannot be used, 1 a bug in ptq.
set -u

RUN=${RUN:-ptq-run}
MAX_DROP=${MAX_DROP:-top1=0.01}

# Remove old reports, so that none is mistaken for this build's report.
rm -f "$RUN/report.json" "$RUN/report.md" "$RUN/junit.xml"
ptq quantize "$@" --run "$RUN" --max-drop "$MAX_DROP"
status=$?

case $status in
    0) echo "gate passed: the model in $RUN can be released" ;;
    3) echo "gate failed: see $RUN/report.md" >&2 ;;
    *) echo "gate not evaluated: ptq ended with exit status $status" >&2 ;;
esac
exit $status
