#!/bin/sh
# test_nvcc.sh SOURCE CMAKE GENERATOR CC NVCC: of an nvcc that works only as its user says how, the
# build makes use then; without that CUDA is left out, and found anew once another nvcc is named.
source=$1 cmake=$2 generator=$3 cc=$4 nvcc=$5
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset CUDACXX CUDAHOSTCXX CUDAFLAGS CUDAToolkit_ROOT

fail() {
    echo "test_nvcc: $*" >&2
    cat "$work/log" >&2
    exit 1
}

mkdir -p "$work/toolkit/bin" "$work/other/bin"
cat >"$work/toolkit/bin/nvcc" <<END
#!/bin/sh
case " \$* " in
*' -ccbin'* | *' -allow-unsupported-compiler '*) ;;
*' -c '*) echo 'unsupported GNU version!' >&2; exit 1 ;;
esac
exec "$nvcc" "\$@"
END
printf '#!/bin/sh\nexec "%s" "$@"\n' "$nvcc" >"$work/other/bin/nvcc"
chmod +x "$work/toolkit/bin/nvcc" "$work/other/bin/nvcc"

# configure BUILD CUDA OPTION...: whether CUDA is ON or OFF then.
configure() {
    build=$work/$1 cuda=$2
    shift 2
    "$cmake" -S "$source" -B "$build" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DBUILD_TESTING=OFF \
        "$@" >"$work/log" 2>&1 || fail "cmake $*"
    grep -q ", CUDA $cuda, NCCL" "$work/log" || fail "cmake $*: CUDA is not $cuda"
}

configure refused OFF -DCUDAToolkit_ROOT="$work/toolkit"
grep -q 'CUDA is left out: unsupported GNU version' "$work/log" || fail "why is not said"
configure refused ON -DCUDAToolkit_ROOT="$work/other" # the same folder
configure host ON -DCUDAToolkit_ROOT="$work/toolkit" -DCMAKE_CUDA_HOST_COMPILER="$(command -v c++)"
CUDAFLAGS=-allow-unsupported-compiler
export CUDAFLAGS
configure flags ON -DCUDAToolkit_ROOT="$work/toolkit"
