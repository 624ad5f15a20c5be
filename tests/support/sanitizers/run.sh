#!/bin/sh
# run.sh COMMAND [ARGUMENT]...: run a test built with a sanitizer; fail if any process reported.
#
# Exit codes do not tell: a leak that is found when one of Criterion's workers exits is seen by
# nobody, nor is what a rank under mpirun prints. So reports go to files, and a file is a failure.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
reports=$(mktemp -d) || exit 1
trap 'rm -rf "$reports"' EXIT
trap 'exit 143' HUP INT TERM

common="log_path='$reports/report':allocator_may_return_null=1:print_suppressions=0"
# The leak sanitizer takes what lies before a thread-local block for an old glibc's header, if the
# block begins 16 bytes into a page, and crashes: it is not to look for such blocks.
export ASAN_OPTIONS="$common:detect_leaks=1:strict_string_checks=1:intercept_tls_get_addr=0"
# Ranks walk the stack at every allocation, at several times the cost: frame pointers end in MPI's
# libraries, and what these leave could not be matched against lsan.supp. Ten frames are enough for
# that, and names are looked up below, where there is a report: half of the time of a start.
export OMPI_MCA_mca_base_env_list="ASAN_OPTIONS=$ASAN_OPTIONS:fast_unwind_on_malloc=0:malloc_context_size=10:symbolize=0"
# A rank that has waited 2 s for mpirun's answer in MPI_Finalize leaves without it, and mpirun then
# calls the job failed: on a busy machine two tests of a run ended so.
export OMPI_MCA_orte_allowed_exit_without_sync=1
export LSAN_OPTIONS="suppressions='$here/lsan.supp':print_suppressions=0"
export UBSAN_OPTIONS="$common:print_stacktrace=1"
export TSAN_OPTIONS="$common:suppressions='$here/tsan.supp':ignore_noninstrumented_modules=1"

# Shadow memory has its place, which random addresses may take: do without them where one can.
if setarch -R true 2>/dev/null; then
    set -- setarch -R "$@"
fi

# name_frames <REPORT: frames that are "(FILE+0xOFFSET)" alone get function, file and line.
name_frames() {
    while IFS= read -r line; do
        frame=${line##*(}
        frame=${frame%)}
        case $line in
        *'#'*'  (/'*'+0x'*')')
            line="$line $(addr2line -f -s -p -e "${frame%+*}" "0x${frame##*+0x}" 2>/dev/null)"
            ;;
        esac
        printf '%s\n' "$line"
    done
}

"$@"
status=$?
reported=
for report in "$reports"/report.*; do
    # That no symbolizer is installed is not a report.
    [ -s "$report" ] && grep -qv 'external symbolizer!$' "$report" || continue
    name_frames <"$report" >&2
    reported=1
done
if [ -n "$reported" ]; then
    echo "run.sh: a sanitizer reported (above)" >&2
    [ "$status" -ne 0 ] || status=1
fi
exit "$status"
