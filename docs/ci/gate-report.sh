#!/bin/sh
# Check limits against a report from an earlier job. No model is loaded and no data is read.
#
#   sh gate-report.sh REPORT.JSON [any flag of ptq gate]
#
# MAX_DROP is the limit. BASELINE is the report of the main branch, if there is one: then the model also must not be
# worse than that by more than MAX_REGRESSION, and the changes are shown.
# Exit status: 0 all gates passed, 3 a gate failed, 2 a report cannot be used, 1 a bug in ptq.
set -u

REPORT=${1:?"expected the path of a report.json"}
shift
MAX_DROP=${MAX_DROP:-top1=0.01}
MAX_REGRESSION=${MAX_REGRESSION:-top1=0.002}

if [ -n "${BASELINE:-}" ]; then
    ptq report "$BASELINE" "$REPORT" || exit $?
    set -- "$@" --baseline "$BASELINE" --max-regression "$MAX_REGRESSION"
fi
ptq gate "$REPORT" --max-drop "$MAX_DROP" "$@"
