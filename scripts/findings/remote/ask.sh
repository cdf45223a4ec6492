# One question to a program. Given: program, flag, limit (seconds).
[ -f "$program" ] || { printf '@absent\n'; exit 0; }
[ -x "$program" ] || { printf '@notexecutable\n'; exit 0; }
timeout -k 5 "$limit" "$program" "$flag" </dev/null
