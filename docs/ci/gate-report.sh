#!/bin/sh
# Decide limits from a report that an earlier job kept: no model is loaded, no data read.
#
#   sh gate-report.sh REPORT.JSON [any flag of ptq gate]
#
# MAX_DROP is the limit. BASELINE is the report of the main branch, where there is one: then the model must not be
# worse than it by more than MAX_REGRESSION either, and what changed is shown.
# Exit status: 0 all gates passed, 3 a gate failed, 2 a report cannot be used, 1 a bug in ptq.
set -u

REPORT=${1:?"name a report.json"}
shift
MAX_DROP=${MAX_DROP:-top1=0.01}
MAX_REGRESSION=${MAX_REGRESSION:-top1=0.002}

if [ -n "${BASELINE:-}" ]; then
    ptq compare "$BASELINE" "$REPORT" || exit $?
    set -- "$@" --baseline "$BASELINE" --max-regression "$MAX_REGRESSION"
fi
ptq gate "$REPORT" --max-drop "$MAX_DROP" "$@"
