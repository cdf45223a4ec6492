# The rest of a model from standard input. Given: directory, name, sha256, offset (bytes that are here already), size.
mkdir -p -- "$directory" || exit 1
part="$directory/$name.part"
[ "$offset" -gt 0 ] || : >"$part" || exit 1
cat >>"$part" || exit 1
if [ "$(stat -c %s -- "$part")" -lt "$size" ]; then
  printf 'short\n' # the connection ended; what is here is kept for the next time
  exit 0
fi
found=$(sha256sum <"$part") || exit 1
if [ "${found%% *}" != "$sha256" ]; then
  rm -f -- "$part"
  printf 'other bytes\n'
  exit 0
fi
mv -f -- "$part" "$directory/$name" || exit 1
printf '%s %s\n' "$sha256" "$(stat -c '%s %y' -- "$directory/$name")" >"$directory/.$name.verified" || exit 1
printf 'whole\n'
