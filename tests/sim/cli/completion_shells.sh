#!/usr/bin/env bash
# Words that zsh or fish offers with the completion that kvsim writes: completion_shells.sh PROGRAM SHELL
set -u
program=$1 shell=$2
here=$(cd "$(dirname "$0")" && pwd)
command -v "$shell" > /dev/null || { echo "KVSIM-SKIPPED: $shell is not installed"; exit 0; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
mkdir results && echo '{}' > results.json
failures=0

offers() { # LINE: prints the words offered when the tab key is pressed, one per line
  case $shell in
    zsh) timeout 60 zsh -f "$here/complete_in_zsh.zsh" "$scratch" "$1" ;;
    fish) fish --no-config -c "source $scratch/_kvsim; complete -C'$1'" | cut -f 1 ;;
  esac
}
expect() { # LINE WORD…: all of these are offered
  local line=$1 offered word
  shift
  offered=$(offers "$line")
  for word in "$@"; do
    grep -qxF -- "$word" <<< "$offered" && continue
    echo "\"$line\" does not offer \"$word\" but: $offered"
    failures=$((failures + 1))
  done
}
refuse() { # LINE WORD…: none of these is offered
  local line=$1 offered word
  shift
  offered=$(offers "$line")
  for word in "$@"; do
    grep -qxF -- "$word" <<< "$offered" || continue
    echo "\"$line\" offers \"$word\""
    failures=$((failures + 1))
  done
}

"$program" completion "$shell" > _kvsim || exit 1
expect 'kvsim ru' run
expect 'kvsim ' run plan replay sweep explain completion
expect 'kvsim trace ' info check generate convert
expect 'kvsim list me' methods
expect 'kvsim show gp' gpu
expect 'kvsim completion ' bash zsh fish
expect 'kvsim replay --tr' --trace
expect 'kvsim run --form' --formats
expect 'kvsim plan --model llama-3.1-8' llama-3.1-8b
expect 'kvsim plan --gpu H200' H200-141GB-SXM
expect 'kvsim plan --method full,streaming-' full,streaming-llm
expect 'kvsim run --formats svg,p' svg,png svg,pdf
expect 'kvsim run --set /engine/max_n' /engine/max_num_seqs=
expect 'kvsim sweep -s /plan/conf' /plan/confidence=
refuse 'kvsim run --form' --trace
refuse 'kvsim replay --' --gpu
refuse 'kvsim list ' run gpu
if [[ $failures -gt 0 ]]; then exit 1; fi
echo "$shell offers what it should"
