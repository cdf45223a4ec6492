# What this machine is, one fact a line.
sed -n 's/^\(NAME\|VERSION_ID\)=/os.&/p' /etc/os-release 2>/dev/null
printf 'kernel=%s\nmachine=%s\ncores=%s\n' "$(uname -r)" "$(uname -m)" "$(nproc)"
sed -n 's/^\([Mm]odel name\|Hardware\)[[:space:]]*: */cpu=/p' /proc/cpuinfo | sed -n 1p
sed -n 's/^MemTotal: */memory=/p' /proc/meminfo
if command -v nvidia-smi >/dev/null 2>&1; then
  ask='nvidia-smi --format=csv,noheader,nounits'
  found=$($ask --query-gpu=driver_version,memory.total,compute_cap,name 2>/dev/null) ||
    found=$($ask --query-gpu=driver_version,memory.total,name 2>/dev/null | sed 's/^\([^,]*,[^,]*,\)/\1 ,/') || found=
  printf '%s\n' "$found" | sed -n 's/^./gpu=&/p'
fi
