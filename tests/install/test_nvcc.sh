#!/bin/sh
# test_nvcc.sh SOURCE CMAKE GENERATOR CC NVCC: of an nvcc that works only as its user says how, the
# build makes use then; without that CUDA is left out, and found anew once another nvcc is named.
# Within a project that has CUDA, and GPUs of its own to compile for, kernels are for what they need.
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
unset CUDAFLAGS

# compiled_for WANT [OPTION]...: what a kernel is compiled for within a project that has CUDA.
mkdir "$work/within"
cat >"$work/within/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(within LANGUAGES C CUDA)
add_subdirectory("$source" ringattn)
get_target_property(architectures ra_sparse_cuda CUDA_ARCHITECTURES)
message("kernels: \${architectures}; own: \${CMAKE_CUDA_ARCHITECTURES}")
END
compiled_for() {
    want=$1
    shift
    rm -rf "$work/within/build"
    "$cmake" -S "$work/within" -B "$work/within/build" -G "$generator" -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_CUDA_COMPILER="$nvcc" "$@" >"$work/log" 2>&1 || fail "within: cmake $*"
    grep -qx "kernels: $want" "$work/log" || fail "within, $*: not $want"
}
compiled_for '80-real;90-real;90-virtual; own: 75' -DCMAKE_CUDA_ARCHITECTURES=75
compiled_for '86-real;90; own: 75-real;86-real;90' '-DCMAKE_CUDA_ARCHITECTURES=75-real;86-real;90'

# On its own it does not take others for the only ones that were asked for.
if "$cmake" -S "$source" -B "$work/old" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DBUILD_TESTING=OFF \
    -DRA_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES=75 >"$work/log" 2>&1; then
    fail "kernels for 7.5"
fi
grep -q 'kernels need GPUs of 8.0 or newer' "$work/log" || fail "why 7.5 is refused is not said"
