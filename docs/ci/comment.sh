#!/bin/sh
# What action.yml runs on a pull request: post the report as a comment, in place of the one of the build before.
#
# RUN is the run directory, NUMBER that of the pull request, NAME tells the comments of several models apart. GH_TOKEN is a
# token with the permission pull-requests write. A build from a fork has none: it gets a warning, and its verdict stays.
set -u

if [ ! -f "$RUN/report.md" ]; then
    exit 0
fi
export MARK="<!-- ptq: $NAME -->"
comments="repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments"
body=$(mktemp)
printf '%s\n' "$MARK" | cat - "$RUN/report.md" > "$body"

post() {
    found=$(gh api "$comments" --paginate --jq '.[] | select(.body | startswith(env.MARK)) | .id') || return 1
    # The first one, if there are several.
    found=${found%%[!0-9]*}
    if [ -n "$found" ]; then
        gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$found" --field "body=@$body"
    else
        gh api --silent --method POST "$comments" --field "body=@$body"
    fi
}
post || echo "::warning title=ptq::The report was not posted: does the job have the permission pull-requests: write?"
rm -f "$body"
