# sha256 of an executable, then of the libraries beside it, links followed. Given: program.
[ -f "$program" ] || { printf '@absent\n'; exit 0; }
[ -x "$program" ] || { printf '@notexecutable\n'; exit 0; }
sha256sum <"$program" || exit 1
beside=${program%/*}
[ "$beside" != "$program" ] || beside=.
for library in "$beside"/*.so "$beside"/*.so.* "$beside"/*.dll "$beside"/*.dylib; do
  [ ! -f "$library" ] || readlink -f -- "$library"
done | sort -u | while IFS= read -r library; do
  sum=$(sha256sum <"$library") || exit 1
  printf '%s  %s\n' "${sum%% *}" "$library"
done
