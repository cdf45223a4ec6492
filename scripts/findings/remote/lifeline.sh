# The lifeline: standard input as descriptor 3. Whoever asked for this sends a byte every few seconds.
# Given: patience (seconds). A cut connection, which closes nothing, ends it, too.
exec 3<&0 </dev/null
next_word() {
  timeout "$patience" dd bs=1 count=1 2>/dev/null <&3
}
