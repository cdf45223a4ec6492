# Before every script. Given: folder. Standard input is at the first byte after the script.
unset CDPATH
LC_ALL=C export LC_ALL
printf '\n@begin\n'
missing=
for tool in awk cat dd df flock grep ls mkdir mv nproc readlink rm sed setsid sha256sum sleep stat timeout uname; do
  command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
[ -z "$missing" ] || { printf '@missing%s\n' "$missing"; exit 0; }
cd -- "$folder" 2>/dev/null || { printf '@nofolder\n'; exit 0; }
[ -w . ] || { printf '@readonly\n'; exit 0; }
# What would change an engine unseen, and what is no business of an engine's.
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case $name in
    GGML_VK_*) ;;
    HF_* | HUGGING* | LLAMA_* | GGML_* | *_PROXY | *_proxy | *TOKEN* | *SECRET* | *PASSWORD* | *API_KEY* | *APIKEY*)
      unset "$name"
      ;;
  esac
done
# An abort would call gdb, which takes seconds and fills the log; a core file is as large as the model.
GGML_NO_BACKTRACE=1 export GGML_NO_BACKTRACE
ulimit -c 0 2>/dev/null
