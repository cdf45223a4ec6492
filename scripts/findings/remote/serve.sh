# Starts a server and ends it when it is told to, or when whoever asked for it is gone (see lifeline.sh).
# Given: program, port, key, patience, grace (seconds between terminate and kill); the server's arguments as $@.
[ -f "$program" ] || { printf '@absent\n'; exit 0; }
[ -x "$program" ] || { printf '@notexecutable\n'; exit 0; }

# Fields of nvidia-smi; the last one was renamed.
readings=
if command -v nvidia-smi >/dev/null 2>&1; then
  for reasons in clocks_throttle_reasons.active clocks_event_reasons.active; do
    if nvidia-smi --query-gpu="$reasons" --format=csv,noheader -i 0 >/dev/null 2>&1; then
      readings="clocks.sm,temperature.gpu,power.draw,memory.used,$reasons"
      break
    fi
  done
fi

family() {
  printf '%s ' "$server"
  cat "/proc/$server/task/"*/children 2>/dev/null
}

sample() {
  files=
  for process in $(family); do files="$files /proc/$process/stat /proc/$process/status"; done
  text=$(grep -hE "$counters" /proc/uptime /proc/stat /proc/meminfo /proc/vmstat $files 2>/dev/null)
  gpu=
  [ -z "$readings" ] || gpu=$(nvidia-smi --query-gpu="$readings" --format=csv,noheader,nounits -i 0 2>/dev/null)
  printf '@sample\n%s\n@gpu %s\n@sampled\n' "$text" "$gpu"
}
counters='^(cpu |MemTotal:|MemAvailable:|pswpin |pswpout |oom_kill |VmHWM:|VmRSS:|VmSwap:|[0-9]+\.[0-9]+ [0-9]|[0-9]+ \()'

# Inodes of the sockets that listen at the port.
listeners() {
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
    awk -v port=":$(printf '%04X' "$port")" '$4 == "0A" && substr($2, length($2) - 4) == port { print $10 }'
}

# Whether the server itself listens at the port; on a taken port somebody else's answers.
owner() {
  inodes=$(listeners)
  for process in $(family); do
    sockets=$(ls -l "/proc/$process/fd" 2>/dev/null)
    for inode in $inodes; do
      case $sockets in *"socket:[$inode]"*) printf '@owner yes\n' && return ;; esac
    done
  done
  printf '@owner no\n'
}

serve_words() {
  trap '' PIPE
  while word=$(next_word); do
    case $word in
      .) ;;
      s) sample ;;
      o) owner ;;
      *) break ;; # told to stop, or nobody is there any more
    esac
  done
  [ "$word" = q ] || printf '@silent\n'
  kill -s TERM "$server" 2>/dev/null
  tries=0
  while kill -0 "$server" 2>/dev/null && [ "$tries" -lt "$((grace * 5))" ]; do
    sleep 0.2
    tries=$((tries + 1))
  done
  kill -s KILL -- "-$server" 2>/dev/null
}

units="$(nproc) $(getconf CLK_TCK 2>/dev/null || echo 100) $(getconf PAGESIZE 2>/dev/null || echo 4096)"
# An answer that nobody takes must end neither this shell nor its watch before they have ended the server; a handler,
# unlike an ignored signal, is not handed on to the server.
trap : PIPE
# A session of its own, so that everything it starts is killed with it; where the system offers it, it also dies with
# this shell. The key is in its environment, never on a command line; both its streams are our standard error.
tie=
if setpriv --pdeathsig KILL true 2>/dev/null; then tie='setpriv --pdeathsig KILL'; fi
LLAMA_API_KEY=$key setsid $tie "$program" "$@" 3<&- >&2 &
server=$!
serve_words &
words=$!
printf '@started %s\n' "$units"
wait "$server"
code=$?
kill -s KILL -- "-$server" 2>/dev/null
kill "$words" 2>/dev/null
# Everything that the server said came before this line.
printf '\n@logged\n' >&2
taken=
[ -z "$(listeners)" ] || taken=taken
printf '@ended %s %s %s\n' "$code" "$(sed -n 's/^oom_kill //p' /proc/vmstat 2>/dev/null || true)" "$taken"
# When a command ends, sshd drops what it has not read of its standard error yet, and the reason of an end stands there:
# stay until the other side has it and closes our input, or is gone.
timeout "$patience" cat <&3 >/dev/null 2>&1
