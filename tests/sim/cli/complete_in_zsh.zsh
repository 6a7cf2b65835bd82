#!/usr/bin/env zsh
# Words that zsh offers when the tab key is pressed: complete_in_zsh.zsh FOLDER LINE. FOLDER holds the completion as
# _kvsim. Prints one word per line. LINE is typed into a separate shell at a separate terminal; offered words are
# printed instead of being listed.
zmodload zsh/zpty || exit 3
zpty inner zsh -f -i
type_in() { zpty -w inner "$1"; }
type_in "PROMPT= RPROMPT= COLUMNS=2000 LISTMAX=0"
type_in "fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -D -u"
type_in "bindkey '^I' complete-word; zstyle ':completion:*' list-prompt ''"
# Queries (-O, -A, -D) are not offers.
type_in 'compadd () {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return $?; fi
  local -a offered
  builtin compadd -A offered "$@"
  print -rl -- ${offered/#/$IPREFIX}
}'
# In two parts, so that the echo of this line does not match.
type_in 'first_of () { print "@beg""in@"; compprefuncs=(first_of) }; last_of () { print "@e""nd@"; exit }'
type_in 'compprefuncs=(first_of); comppostfuncs=(last_of)'
sleep 0.5
zpty -w -n inner "$2"$'\t'
while zpty -r inner line; do
  line=${line%$'\r\n'}
  [[ $line == *@begin@* ]] && on=1 && continue
  [[ $line == *@end@* ]] && break
  [[ -n $on ]] && print -r -- "${line//$'\r'/}"
done
zpty -d inner 2>/dev/null
exit 0
