# Holds the lock of measurements on this machine for as long as the lifeline lives. Given: patience (see lifeline.sh).
exec 9>>measuring.lock || { printf '@nolock\n'; exit 0; }
(
  exec 9>&-
  while word=$(next_word) && [ -n "$word" ] && [ "$word" != q ]; do :; done
) &
lifeline=$!
told=
until flock -n 9; do
  [ -n "$told" ] || printf '@waiting\n'
  told=yes
  sleep 1 9>&-
  kill -0 "$lifeline" 2>/dev/null || exit 0
done
printf '@locked\n'
wait "$lifeline"
