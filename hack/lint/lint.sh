#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs every linter: golangci-lint on the Go code, shellcheck on the shell
# scripts, and the house rules below. All run even if one finds something.
#
#   hack/lint/lint.sh [go] [shell] [house]    all three if none is named
#
# PACKAGES limits golangci-lint to these packages; by default ./...
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/../lib.sh"
cd "$here/../.."

# Largest size, in bytes, of a Go file that is neither generated nor a test.
max_go_file_bytes=14336

findings=0
finding() {
  echo "$*" >&2
  findings=$((findings + 1))
}

# files PATTERN...: what is tracked or new and not ignored, by name.
files() {
  git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
    if [[ -f $file ]]; then
      echo "$file"
    fi
  done
}

is_generated() {
  head -n 40 "$1" | grep -q '^// Code generated .* DO NOT EDIT\.$'
}

lint_go() {
  local golangci exports patterns
  golangci=$("$here/../tools/build.sh" golangci-lint)/golangci-lint
  exports=$("$here/../env.sh" cgo)
  eval "$exports"
  read -ra patterns <<<"${PACKAGES:-./...}"
  progress "golangci-lint"
  "$golangci" run "${patterns[@]}" || finding "golangci-lint found faults (some it mends itself: make fmt)"
}

# shell_scripts lists every script, those without a suffix too.
shell_scripts() {
  files '*.sh' '*.bash'
  files | grep -v '\.' | while read -r file; do
    if head -c 32 "$file" | head -n 1 | grep -qE '^#!.*\b(ba|da)?sh$'; then
      echo "$file"
    fi
  done
  files '.ci/*'
}

lint_shell() {
  local shellcheck
  shellcheck=$("$here/../deps/shellcheck.sh")
  progress "shellcheck"
  shell_scripts | sort -u | xargs -r "$shellcheck" --external-sources --source-path=. --severity=style ||
    finding "shellcheck found faults"
}

lint_house() {
  local file size
  progress "house rules: licence headers, file sizes, no path of a home folder"
  while read -r file; do
    if is_generated "$file" && [[ $file == *.pb.go ]]; then
      continue # protoc-gen-go keeps the header of the .proto
    fi
    if ! head -n 4 "$file" | grep -q 'Copyright The Kolocate Authors\.' ||
      ! head -n 4 "$file" | grep -q 'SPDX-License-Identifier: Apache-2\.0'; then
      finding "$file: no licence header: expected \"Copyright The Kolocate Authors.\" and \"SPDX-License-Identifier: Apache-2.0\" in its first four lines"
    fi
    case $file in
    *_test.go | *.sh | *.proto) continue ;;
    esac
    size=$(wc -c <"$file")
    if [[ $size -gt $max_go_file_bytes ]] && ! is_generated "$file"; then
      finding "$file: $size bytes, over the limit of $max_go_file_bytes: split it by what its parts own"
    fi
  done < <(files '*.go' '*.sh' '*.proto')

  # The pattern is put together so that this file does not match itself.
  while read -r file; do
    finding "$file: names a folder of one person's machine; use a relative path or a variable"
  done < <(files | tr '\n' '\0' | xargs -0 grep -lIE "(^|[^A-Za-z0-9_.\$/{}-])/(""home|Users)/[a-z]|(^|[^A-Za-z0-9_.\$/{}-])/""root/" || true)
}

[[ -n $(files Makefile) ]] || die "git lists no file of this checkout: see its message above (a checkout of another user needs git config --global --add safe.directory)"

if [[ $# -eq 0 ]]; then
  set -- house shell go
fi
for part in "$@"; do
  case $part in
  go | shell | house) "lint_$part" ;;
  *) die "unknown part \"$part\": expected go, shell or house" ;;
  esac
done
if [[ $findings -gt 0 ]]; then
  die "lint: $findings finding(s)"
fi
