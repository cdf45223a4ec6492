# What is here of a model. Given: directory, name, sha256. Prints its state, the bytes of an unfinished copy, free KiB.
state=absent
if [ -f "$directory/$name" ]; then
  stamp="$sha256 $(stat -c '%s %y' -- "$directory/$name")"
  if [ "$(cat "$directory/.$name.verified" 2>/dev/null)" = "$stamp" ]; then
    state=whole
  else
    found=$(sha256sum <"$directory/$name")
    if [ "${found%% *}" = "$sha256" ]; then
      state=whole
      printf '%s\n' "$stamp" >"$directory/.$name.verified"
    else
      state=damaged
      rm -f -- "$directory/$name" "$directory/.$name.verified"
    fi
  fi
fi
part=0
[ ! -f "$directory/$name.part" ] || part=$(stat -c %s -- "$directory/$name.part")
printf '%s %s %s\n' "$state" "$part" "$(df -Pk . | awk 'NR == 2 { print $4 }')"
